"""vLLM's rejection samplers: that of V1, and that of Model Runner V2.

Written from vLLM 0.33.0, ``vllm/v1/sample/rejection_sampler.py`` and
``vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py``; both call it ``rejection_sample``.

In both, a drafted id of -1 is a placeholder for a token that was not drafted: it is never accepted,
and neither are those behind it. With nothing drafted there, the law of the token at its place is
the target's own. So it is in Model Runner V2, and here; vLLM's V1 draws from the residual.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from draftverify import ChainVerdict, verify_chain, verify_chain_logits
from draftverify._kinds import type_name
from draftverify._tokens import as_index, as_integers
from draftverify.adapters._torch import (
    Tensor,
    counted_from,
    expect_integers,
    expect_ndim,
    expect_shape,
    expect_tensors,
    in_words_of_the_engine,
)

_EACH = "pass one for each request"


@in_words_of_the_engine(target_probs="target_logits", indptr="cu_num_draft_tokens")
def rejection_sample_v1(  # noqa: PLR0913, PLR0917 - vLLM's arguments
    draft_token_ids: Tensor,
    num_draft_tokens: Sequence[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    sampling_metadata: Any,
    *,
    uniforms: Tensor | None,
    synthetic_mode: bool = False,
    fly_window_size: int | None = None,
) -> Tensor:
    """Verify chains as ``rejection_sample`` of vLLM's V1 sampler does.

    Parameters
    ----------
    draft_token_ids : Tensor, shape (num_tokens,), int32
        The drafted ids of all requests; -1 where none was drafted.
    num_draft_tokens : sequence of int, length batch_size
        How many each request has.
    max_spec_len : int
        The width of the output is one more.
    cu_num_draft_tokens : Tensor, shape (batch_size,), int32
        Their running totals: no 0 in front.
    draft_probs : Tensor, shape (num_tokens, vocab_size), or None
        The draft's probabilities, float32. None for proposals that were the only possible ones.
    target_logits : Tensor, shape (num_tokens, vocab_size), float32
        The target's logits, divided by the temperature and filtered, as
        ``apply_sampling_constraints`` leaves them.
    bonus_token_ids : Tensor, shape (batch_size, 1)
        What follows where all is accepted; vLLM has drawn it before.
    sampling_metadata : object
        vLLM's ``SamplingMetadata``, or any object with its ``all_greedy`` and ``temperature``,
        shape (batch_size,), 0 for greedy requests.
    uniforms : Tensor, shape (num_tokens + batch_size,), or None
        Float32 or float64 numbers in [0, 1), independent of each other and of the drafting: for
        each request one for each drafted token and one for its replacement. They stand for vLLM's
        generators. None if all requests are greedy.
    synthetic_mode, fly_window_size
        Lossy ways of vLLM, refused if they are asked for.

    Returns
    -------
    Tensor, shape (batch_size, max_spec_len + 1), int32
        The accepted ids, the replacement or the bonus token, then -1.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain` and `draftverify.verify_chain_logits`; no Torch tensors;
        metadata without what is read of it; running totals that do not fit; lossy ways. vLLM
        rejects a token whose draft probability is 0; here it is refused: the rows are not those
        that it was drawn from.

    Notes
    -----
    Without ``draft_probs``, and for greedy requests, the logits are read as they are. With
    ``draft_probs`` the target's probabilities are made by Torch, as vLLM makes them at this place:
    ``target_logits.softmax(dim=-1, dtype=torch.float32)``, the one array of this size.

    Examples
    --------
    >>> import torch
    >>> from types import SimpleNamespace
    >>> rejection_sample_v1(
    ...     torch.tensor([1, 1, 0]),
    ...     [2, 1],
    ...     2,
    ...     torch.tensor([2, 3]),
    ...     torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.25, 0.75]]),
    ...     torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]]).log(),
    ...     torch.tensor([[0], [1]]),
    ...     SimpleNamespace(all_greedy=False, temperature=torch.tensor([1.0, 0.7])),
    ...     uniforms=torch.tensor([0.9, 0.5, 0.1, 0.9, 0.1]),
    ... )
    tensor([[ 1,  0, -1],
            [ 0,  1, -1]], dtype=torch.int32)
    """
    _refuse_lossy(synthetic_mode=synthetic_mode, fly_window_size=fly_window_size)
    expect_tensors(
        draft_token_ids=draft_token_ids,
        cu_num_draft_tokens=cu_num_draft_tokens,
        target_logits=target_logits,
        bonus_token_ids=bonus_token_ids,
    )
    import torch  # noqa: PLC0415 - the caller has imported it

    lengths = _counts(num_draft_tokens)
    max_spec_len = as_index("max_spec_len", max_spec_len)
    requests = len(lengths)
    expect_ndim("draft_token_ids", draft_token_ids, "(T,)", "put the requests' ids in a row")
    expect_integers("draft_token_ids", draft_token_ids)
    expect_shape("cu_num_draft_tokens", cu_num_draft_tokens, (requests,), _EACH)
    expect_shape("bonus_token_ids", bonus_token_ids, (requests, 1), _EACH)
    starts = _starts(lengths, cu_num_draft_tokens, max_spec_len)
    expect_shape(
        "draft_token_ids",
        draft_token_ids,
        (starts[-1],),
        "pass as many as cu_num_draft_tokens says",
    )
    expect_ndim("target_logits", target_logits, "(T, V)", "pass a row for each drafted token")
    rows_shape = (starts[-1], target_logits.shape[1])
    expect_shape("target_logits", target_logits, rows_shape, "pass a row for each drafted token")
    if draft_probs is not None:
        expect_tensors(draft_probs=draft_probs)
        expect_shape("draft_probs", draft_probs, rows_shape, "pass a row for each drafted token")
    greedy = _greedy(sampling_metadata, requests)
    numbers = _uniforms(uniforms, starts[-1] + requests, needed=not all(greedy))
    target_probs: Tensor = None
    if draft_probs is not None and not all(greedy):
        target_probs = target_logits.softmax(dim=-1, dtype=torch.float32)

    output = target_logits.new_full((requests, max_spec_len + 1), -1, dtype=torch.int32)
    drafted = _drafted(draft_token_ids.split(lengths))
    cut = [drafted[request] < lengths[request] for request in range(requests)]
    # Neighbours that are treated alike go together, as their rows are one slice. A chain that a
    # placeholder ends goes alone: a row of the target is behind it, and no bonus token.
    kinds = [(greedy[request], cut[request] and request + 1) for request in range(requests)]
    for first, stop in _runs(kinds):
        begin, counts = starts[first], drafted[first:stop]
        tokens = slice(begin, begin + sum(counts))
        rows = slice(begin, tokens.stop + cut[first])
        verdict: ChainVerdict[Tensor]
        arguments: dict[str, Any] = {
            "draft_token_ids": draft_token_ids[tokens],
            "indptr": _running(counts),
            "bonus_token_ids": None if cut[first] else bonus_token_ids[first:stop, 0],
            "uniforms": None if greedy[first] else numbers[begin + first : tokens.stop + stop],
        }
        with counted_from(first):
            if greedy[first]:
                logits = target_logits[rows]
                verdict = verify_chain_logits(None, logits, method="greedy", **arguments)
            elif draft_probs is None:
                verdict = verify_chain_logits(None, target_logits[rows], **arguments)
            else:
                verdict = verify_chain(draft_probs[tokens], target_probs[rows], **arguments)
        output[first:stop, : verdict.token_ids.shape[1]] = verdict.token_ids
    return output


@in_words_of_the_engine(
    draft_token_ids="draft_sampled", lengths="draft_sampled", draft_temperature="temperature"
)
def rejection_sample_v2(  # noqa: PLR0913, PLR0917 - vLLM's arguments
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor | None,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor | None,
    expanded_local_pos: Tensor | None,
    temperature: Tensor,
    seed: Tensor | None,
    num_speculative_steps: int,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    *,
    uniforms: Tensor | None,
    watermark_key: int | None = None,
    fly_window_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Verify chains as ``rejection_sample`` of vLLM's Model Runner V2 does.

    Parameters
    ----------
    target_logits : Tensor, shape (num_logits, vocab_size)
        The target's logits, a row for each drafted token and one more for each request; divided by
        the temperature and filtered, as ``apply_sampling_params`` leaves them.
    draft_logits : Tensor, shape (max_num_reqs, num_speculative_steps, draft_vocab_size), or None
        The draft's logits by the slot of a request, not divided by the temperature. None for
        proposals that were the only possible ones. Where the vocabularies differ, both are cut to
        the smaller one, as in vLLM: what is beyond is padding.
    draft_sampled : Tensor, shape (num_logits,)
        For each request its last verified id, which is not used, and its drafted ids; -1 where none
        was drafted.
    cu_num_logits : Tensor, shape (num_reqs + 1,), int32
        0 and the running totals of the target's rows.
    pos : Tensor or None
        Not used; neither are ``expanded_idx_mapping``, ``expanded_local_pos``, ``seed`` and
        ``use_fp64``: what they are for follows from the others or from ``uniforms``.
    idx_mapping : Tensor, shape (num_reqs,), int32
        The slot of each request.
    expanded_idx_mapping, expanded_local_pos : Tensor or None
        Not used.
    temperature : Tensor, shape (max_num_reqs,), float32
        By slot; the draft's logits are divided by it. 0 for greedy requests.
    seed : Tensor or None
        Not used.
    num_speculative_steps : int
        The width of the output is one more.
    synthetic_conditional_rates : Tensor, optional
        A lossy way of vLLM, refused if it is asked for.
    use_fp64 : bool
        Not used: arithmetic is float64 always.
    use_block_verification : bool, default False
        Look at chains as a whole, with ``method="block"``: more is accepted, by the same law.
    uniforms : Tensor, shape (num_logits,), or None
        Float32 or float64 numbers in [0, 1), independent of each other and of the drafting: for
        each request one for each drafted token and one for the final draw. None if all requests
        are greedy.
    watermark_key, fly_window_size
        Ways of vLLM that change the law, refused if they are asked for.

    Returns
    -------
    sampled : Tensor, shape (num_reqs, num_speculative_steps + 1), int64
        The accepted ids, the replacement or the bonus token, then -1; vLLM leaves the rest as it
        finds it.
    num_sampled : Tensor, shape (num_reqs,), int32
        How many ids are emitted: one more than drafted tokens are accepted.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain_logits`; no Torch tensors; running totals and slots that do
        not fit; what changes the law.

    Notes
    -----
    Neighbouring requests with neighbouring slots and as many drafted tokens are verified in one
    call, others one by one: rows are never gathered.

    Examples
    --------
    >>> import torch
    >>> rejection_sample_v2(
    ...     torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]).log(),
    ...     torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]).log(),
    ...     torch.tensor([7, 1, 1]),
    ...     torch.tensor([0, 3]),
    ...     None,
    ...     torch.tensor([0]),
    ...     None,
    ...     None,
    ...     torch.tensor([1.0]),
    ...     None,
    ...     2,
    ...     uniforms=torch.tensor([0.9, 0.5, 0.1]),
    ... )
    (tensor([[ 1,  0, -1]]), tensor([2], dtype=torch.int32))
    """
    del pos, expanded_idx_mapping, expanded_local_pos, seed, use_fp64
    _refuse_lossy(
        synthetic_conditional_rates=synthetic_conditional_rates,
        watermark_key=watermark_key is not None,
        fly_window_size=fly_window_size,
    )
    expect_tensors(
        target_logits=target_logits,
        draft_sampled=draft_sampled,
        cu_num_logits=cu_num_logits,
        idx_mapping=idx_mapping,
        temperature=temperature,
    )
    import torch  # noqa: PLC0415 - the caller has imported it

    expect_ndim("target_logits", target_logits, "(T, V)", "pass a row for each token")
    expect_shape("draft_sampled", draft_sampled, target_logits.shape[:1], "pass one for each row")
    numbers = {"cu_num_logits": cu_num_logits, "idx_mapping": idx_mapping}
    for name, tensor in {**numbers, "draft_sampled": draft_sampled}.items():
        expect_ndim(name, tensor, "(N,)", _EACH)
        expect_integers(name, tensor)
    expect_ndim("temperature", temperature, "(N,)", "pass one for each slot")
    num_speculative_steps = as_index("num_speculative_steps", num_speculative_steps)
    starts, slots = cu_num_logits.tolist(), idx_mapping.tolist()
    requests = len(slots)
    counts = [stop - start - 1 for start, stop in pairwise(starts)]
    _expect_totals(starts, counts, requests, target_logits.shape[0], num_speculative_steps)
    if not all(0 <= slot < temperature.shape[0] for slot in slots):
        message = (
            f"idx_mapping: expected slots from 0 to {temperature.shape[0] - 1}, as temperature has "
            f"them, got {slots}; pass those of this batch"
        )
        raise ValueError(message)
    if draft_logits is not None:
        expect_tensors(draft_logits=draft_logits)
        expect_ndim("draft_logits", draft_logits, "(N, K, V)", "pass the rows of all slots")
        expected = (temperature.shape[0], num_speculative_steps, draft_logits.shape[-1])
        expect_shape("draft_logits", draft_logits, expected, "pass the rows of all slots")
        vocabulary = min(target_logits.shape[-1], draft_logits.shape[-1])
        target_logits, draft_logits = target_logits[:, :vocabulary], draft_logits[..., :vocabulary]
    temperatures = temperature[idx_mapping.long()].double()
    all_greedy = bool((temperatures == 0).all())
    uniforms = _uniforms(uniforms, target_logits.shape[0], needed=not all_greedy)

    shape = (requests, num_speculative_steps + 1)
    sampled = target_logits.new_full(shape, -1, dtype=torch.int64)
    num_sampled = target_logits.new_empty(requests, dtype=torch.int32)
    kinds = [(counts[request], slots[request] - request) for request in range(requests)]
    for first, stop in _runs(kinds):
        rows, count = slice(starts[first], starts[stop]), counts[first]
        batch = (stop - first, count + 1)
        drafted = draft_sampled[rows].view(batch)[:, 1:]
        greedy = temperatures[first:stop] == 0
        draft = None
        if draft_logits is not None:
            draft = draft_logits[slots[first] : slots[first] + batch[0], :count]
        with counted_from(first):
            verdict: ChainVerdict[Tensor] = verify_chain_logits(
                draft,
                target_logits[rows].view(*batch, target_logits.shape[-1]),
                drafted,
                None if uniforms is None else uniforms[rows].view(batch),
                temperature=(~greedy).double(),
                draft_temperature=temperatures[first:stop],
                lengths=_drafted(drafted),
                method="block" if use_block_verification else "standard",
            )
        sampled[first:stop, : count + 1] = verdict.token_ids
        num_sampled[first:stop] = verdict.num_accepted + 1
    return sampled, num_sampled


def _refuse_lossy(**arguments: object) -> None:
    """Refuse what makes vLLM emit another law than the target's."""
    for name, value in arguments.items():
        if not (value is None or (isinstance(value, int) and value == 0)):
            message = (
                f"{name}: expected none, got {value!r}: it changes the law of the output; leave it "
                f"out, or let vLLM verify"
            )
            raise ValueError(message)


def _counts(num_draft_tokens: Any) -> list[int]:
    """Take how many tokens each request has."""
    counts = as_integers("num_draft_tokens", num_draft_tokens)
    if counts.ndim != 1:
        message = f"num_draft_tokens: expected shape (B,), got {counts.shape}; {_EACH}"
        raise ValueError(message)
    lengths: list[int] = counts.tolist()
    return lengths


def _greedy(sampling_metadata: Any, requests: int) -> list[bool]:
    """Tell which requests are greedy."""
    for name in ("all_greedy", "temperature"):
        if not hasattr(sampling_metadata, name):
            message = (
                f"sampling_metadata: expected an object with all_greedy and temperature, got "
                f"{type_name(sampling_metadata)} without {name}; pass vLLM's SamplingMetadata"
            )
            raise TypeError(message)
    if sampling_metadata.all_greedy:
        return [True] * requests
    temperature = sampling_metadata.temperature
    if temperature is None:
        message = (
            "sampling_metadata: expected a temperature unless all_greedy, got None; pass one for "
            "each request, 0 for greedy ones"
        )
        raise TypeError(message)
    expect_tensors(**{"sampling_metadata.temperature": temperature})
    expect_shape("sampling_metadata.temperature", temperature, (requests,), _EACH)
    greedy: list[bool] = (temperature == 0).tolist()
    return greedy


def _uniforms(uniforms: Tensor | None, number: int, *, needed: bool) -> Tensor:
    """Take the uniforms, where there are any; None where no request needs them."""
    if uniforms is None and needed:
        message = (
            f"uniforms: expected a Torch tensor, as not all requests are greedy, got None; draw "
            f"{number} numbers in [0, 1), one for each drafted token and one more for each request"
        )
        raise TypeError(message)
    if uniforms is not None:
        expect_tensors(uniforms=uniforms)
        cure = "pass one for each drafted token and one more for each request"
        expect_shape("uniforms", uniforms, (number,), cure)
    return uniforms


def _drafted(chains: Sequence[Tensor]) -> list[int]:
    """Count the tokens of each chain in front of its first placeholder."""
    return [int((chain != -1).cumprod(0).sum()) for chain in chains]


def _runs(kinds: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Find the runs of equal neighbours."""
    start = 0
    for _, group in groupby(kinds):
        stop = start + sum(1 for _ in group)
        yield start, stop
        start = stop


def _running(counts: Sequence[int]) -> list[int]:
    """Add up, with a 0 in front."""
    totals = [0]
    for count in counts:
        totals.append(totals[-1] + count)
    return totals


def _starts(lengths: list[int], cu_num_draft_tokens: Tensor, max_spec_len: int) -> list[int]:
    """Tell where each request begins, and where the last one ends."""
    totals = cu_num_draft_tokens.tolist()
    starts = _running(lengths)
    if totals != starts[1:] or min(lengths, default=0) < 0:
        message = (
            f"cu_num_draft_tokens: expected the running totals of num_draft_tokens without a 0 in "
            f"front, {starts[1:]}, got {totals}; pass both of one batch"
        )
        raise ValueError(message)
    if max(lengths, default=0) > max_spec_len:
        message = (
            f"max_spec_len: expected at least {max(lengths)}, the longest of num_draft_tokens, "
            f"got {max_spec_len}; pass the longest"
        )
        raise ValueError(message)
    return starts


def _expect_totals(
    starts: list[int], counts: list[int], requests: int, rows: int, steps: int
) -> None:
    good = len(counts) == requests and starts[0] == 0 and starts[-1] == rows
    if not good or not all(0 <= count <= steps for count in counts):
        message = (
            f"cu_num_logits: expected 0 and the running totals of {requests} requests with 1 to "
            f"{steps + 1} of the {rows} rows each, got {starts}; pass all three of one batch"
        )
        raise ValueError(message)
