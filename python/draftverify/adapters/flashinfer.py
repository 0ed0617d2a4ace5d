"""FlashInfer's chain speculative sampling.

Written from FlashInfer 0.7.4, ``flashinfer/sampling.py`` (``chain_speculative_sampling``) and
``include/flashinfer/sampling.cuh`` (``ChainSpeculativeSampling``).
"""

from __future__ import annotations

from draftverify import accept_probs, verify_chain
from draftverify.adapters._torch import (
    Tensor,
    expect_ndim,
    expect_outputs,
    expect_shape,
    expect_tensors,
)


def chain_speculative_sampling(  # noqa: PLR0913 - FlashInfer's arguments
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    maybe_output_accepted_token_num: Tensor | None = None,
    maybe_output_emitted_draft_token_num: Tensor | None = None,
    *,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Verify chains as ``flashinfer.sampling.chain_speculative_sampling`` does.

    Parameters
    ----------
    draft_probs : Tensor, shape (batch_size, num_speculate_tokens, vocab_size)
        The draft's probabilities: float32 in FlashInfer; float16, bfloat16 and float64 here too.
        Any strides.
    draft_token_ids : Tensor, shape (batch_size, num_speculate_tokens)
        The drafted ids, int32 in FlashInfer, any integers here. A run of -1 at the end of a
        request is padding here; FlashInfer's kernel would read in front of the row.
    target_probs : Tensor, shape (batch_size, num_speculate_tokens + 1, vocab_size)
        The target's probabilities, with a row for the bonus token.
    maybe_output_accepted_token_num : Tensor, shape (batch_size,), int32, optional
        The first count is added to it in place, and it is returned.
    maybe_output_emitted_draft_token_num : Tensor, shape (batch_size,), int32, optional
        The second count, likewise.
    uniforms : Tensor, shape (batch_size, num_speculate_tokens + 1)
        Float32 or float64 numbers in [0, 1), independent of each other and of the drafting: one for
        each position, and behind a request's tokens one for the final draw. They stand for
        FlashInfer's ``generator``, ``seed`` and ``offset``. FlashInfer's own lie in (0, 1]:
        subtract them from one.

    Returns
    -------
    output_token_ids : Tensor, shape (batch_size, num_speculate_tokens + 1), int32
        The accepted ids, the replacement or the bonus token, then -1.
    output_accepted_token_num : Tensor, shape (batch_size,), int32
        How many drafted tokens pass the test of their position, also behind the first that does
        not.
    output_emitted_draft_token_num : Tensor, shape (batch_size,), int32
        How many are emitted: those in front of the first that does not pass.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain`; no Torch tensors. As all positions are tested, a drafted
        id with ``draft_probs == 0`` is refused behind a rejection too. Nothing is added then.

    Notes
    -----
    FlashInfer's ``deterministic`` has no counterpart: the bits are always the same. Up to 0.6.18
    its kernel tests the first rejected token a second time, with another number, and may count it
    as accepted; here, as in 0.7.4, it is not counted. The tests in front of the first rejection
    are ``u * draft < target``, those behind it ``u < target / draft``, rounded.

    Examples
    --------
    >>> import torch
    >>> draft_probs = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.1]]])
    >>> target_probs = torch.tensor(
    ...     [[[0.0, 0.1, 0.6, 0.3], [1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]]]
    ... )
    >>> uniforms = torch.tensor([[0.9, 0.5, 0.2]])
    >>> chain_speculative_sampling(
    ...     draft_probs, torch.tensor([[2, 1]]), target_probs, uniforms=uniforms
    ... )
    (tensor([[ 2,  0, -1]], dtype=torch.int32), tensor([1], dtype=torch.int32), tensor([1], \
dtype=torch.int32))
    """
    expect_tensors(
        draft_probs=draft_probs,
        draft_token_ids=draft_token_ids,
        target_probs=target_probs,
        uniforms=uniforms,
    )
    import torch  # noqa: PLC0415 - the caller has imported it

    expect_ndim("draft_token_ids", draft_token_ids, "(B, K)", "pass a row for each request")
    expect_ndim("target_probs", target_probs, "(B, K, V)", "pass rows for each request")
    counters = (maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num)
    names = ("maybe_output_accepted_token_num", "maybe_output_emitted_draft_token_num")
    given = {name: each for name, each in zip(names, counters, strict=True) if each is not None}
    expect_tensors(**given)
    for name, counter in given.items():
        expect_shape(name, counter, draft_token_ids.shape[:1], "pass one count for each request")
    expect_outputs(torch.int32, target_probs, **given)
    verdict = verify_chain(draft_probs, target_probs, draft_token_ids, uniforms)
    emitted = verdict.num_accepted
    accepted = emitted.clone()
    lengths = (draft_token_ids >= 0).sum(dim=1).tolist()
    for request, (kept, length) in enumerate(zip(emitted.tolist(), lengths, strict=True)):
        behind = slice(kept + 1, length)
        if kept + 1 >= length:
            continue
        try:
            probs = accept_probs(
                draft_probs[request, behind],
                target_probs[request, behind],
                draft_token_ids[request, behind],
            )
        except ValueError as error:
            error.add_note(f"row 0 is position {kept + 1} of request {request}")
            raise
        accepted[request] += (uniforms[request, behind] < probs).sum()
    counts = (accepted, emitted)
    accepted, emitted = (
        count if counter is None else counter.add_(count)
        for counter, count in zip(counters, counts, strict=True)
    )
    return verdict.token_ids, accepted, emitted
