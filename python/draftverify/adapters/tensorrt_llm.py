"""TensorRT-LLM's verification of chains: with one engine for both models, and with two.

Written from TensorRT-LLM's main branch, in ``tensorrt_llm/_torch`` at commit 00b6d5a
``speculative/interface.py`` (``rejection_sampling_one_model``), and at 00be09f
``pyexecutor/sampler/two_model_spec_dec.py`` (``get_rejected_indices`` and
``TwoModelSpecDecHandler._process_draft_tokens_rejection_sampling``).

Its ``d2t`` gives, for each id of a smaller draft vocabulary, how much larger the target's id is:
`draftverify.adapters.vocabulary.in_target_vocabulary` moves the probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftverify import accept_probs, verify_chain
from draftverify._tokens import as_index, as_integers
from draftverify.adapters._torch import (
    Tensor,
    expect_ndim,
    expect_shape,
    expect_tensors,
    expect_uniforms,
    in_words_of_the_engine,
)


def rejection_sampling_one_model(
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    *,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify chains as TensorRT-LLM does where one engine runs both models.

    Parameters
    ----------
    draft_probs : Tensor, shape (batch_size, draft_len, vocab_size)
        The draft's probabilities in the target's vocabulary: float32 in TensorRT-LLM; float16,
        bfloat16 and float64 here too. Any strides: ``full_draft_probs[:num_gens, :draft_len]`` is
        not copied.
    draft_token_ids : Tensor, shape (batch_size, draft_len)
        The drafted ids, in the target's vocabulary. A run of -1 at the end of a request is padding
        here. TensorRT-LLM pads with 0 and rows in which 0 is certain, and caps the count
        afterwards; that is taken too.
    target_probs : Tensor, shape (batch_size, draft_len + 1, vocab_size)
        The target's probabilities, with a row for the bonus token.
    uniforms : Tensor, shape (batch_size, draft_len + 1)
        Float32 or float64 numbers in [0, 1), independent of each other and of the drafting: one for
        each position, and behind a request's tokens one for the final draw. They stand for ``seed``
        and ``offset``.

    Returns
    -------
    accepted_tokens : Tensor, shape (batch_size, draft_len + 1), int32
        The accepted ids, the replacement or the bonus token, then -1.
    num_accepted_tokens : Tensor, shape (batch_size,), int32
        How many ids are emitted: one more than drafted tokens are accepted.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain`; no Torch tensors.

    Examples
    --------
    >>> import torch
    >>> draft_probs = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]])
    >>> target_probs = torch.tensor([[[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]])
    >>> uniforms = torch.tensor([[0.9, 0.5, 0.1]])
    >>> rejection_sampling_one_model(
    ...     draft_probs, torch.tensor([[1, 1]]), target_probs, uniforms=uniforms
    ... )
    (tensor([[ 1,  0, -1]], dtype=torch.int32), tensor([2], dtype=torch.int32))
    """
    expect_tensors(
        draft_probs=draft_probs,
        draft_token_ids=draft_token_ids,
        target_probs=target_probs,
        uniforms=uniforms,
    )
    expect_ndim("draft_token_ids", draft_token_ids, "(B, K)", "pass a row for each request")
    expect_ndim("target_probs", target_probs, "(B, K, V)", "pass rows for each request")
    verdict = verify_chain(draft_probs, target_probs, draft_token_ids, uniforms)
    return verdict.token_ids, verdict.num_accepted + 1


@in_words_of_the_engine(draft_token_ids="draft_tokens")
def get_rejected_indices(
    draft_probs: Tensor,
    target_probs: Tensor,
    uniforms: Tensor,
    draft_tokens: Sequence[int],
) -> Tensor:
    """Tell which drafted tokens of one request fail the test of their position, all of them tested.

    TensorRT-LLM takes the first, where two engines run the models: `verify_two_model` does the
    whole step.

    Parameters
    ----------
    draft_probs : Tensor, shape (num_draft_tokens, vocab_size)
        The draft's probabilities in the target's vocabulary.
    target_probs : Tensor, shape (rows, vocab_size) or (1, rows, vocab_size)
        The target's probabilities; rows behind the drafted tokens are not read.
    uniforms : Tensor, shape (num_draft_tokens,)
        Float32 or float64 numbers in [0, 1), independent of each other and of the drafting. They
        stand for ``generator``.
    draft_tokens : sequence of int
        The drafted ids, in the target's vocabulary; those behind the rows of the draft are not
        read.

    Returns
    -------
    Tensor, shape (num_rejected, 1), int64
        The positions, rising.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.accept_probs`; no Torch tensors. TensorRT-LLM keeps a token whose target
        probability is NaN; here it is refused.

    Examples
    --------
    >>> import torch
    >>> draft_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    >>> target_probs = torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.25, 0.75]])
    >>> get_rejected_indices(draft_probs, target_probs, torch.tensor([0.4, 0.5, 0.6]), [0, 1, 0])
    tensor([[1],
            [2]])
    """
    expect_tensors(draft_probs=draft_probs, target_probs=target_probs, uniforms=uniforms)
    expect_ndim("draft_probs", draft_probs, "(K, V)", "pass a row for each drafted token")
    tested = draft_probs.shape[0]
    target = _of_one_request(target_probs)
    ids = as_integers("draft_tokens", draft_tokens)
    expect_shape("uniforms", uniforms, (tested,), "pass one number for each drafted token")
    expect_uniforms(uniforms=uniforms)
    probs = accept_probs(draft_probs, target[:tested], ids[:tested] if ids.ndim else ids)
    return (uniforms >= probs).nonzero()


@in_words_of_the_engine(draft_token_ids="draft_tokens", bonus_token_ids="new_token")
def verify_two_model(
    draft_probs: Tensor,
    target_probs: Tensor,
    draft_tokens: Sequence[int],
    uniforms: Tensor,
    *,
    new_token: int,
) -> tuple[int, list[int]]:
    """Verify one request as TensorRT-LLM does where two engines run the models.

    It joins ``get_rejected_indices`` and ``sample_rejected``.

    Parameters
    ----------
    draft_probs : Tensor, shape (num_draft_tokens, vocab_size)
        The draft's probabilities in the target's vocabulary.
    target_probs : Tensor, shape (rows, vocab_size) or (1, rows, vocab_size)
        The target's probabilities, ``py_target_probs``. A row for the bonus token is not read:
        TensorRT-LLM has drawn it already.
    draft_tokens : sequence of int
        The drafted ids, ``py_draft_tokens``, as many as the draft has rows.
    uniforms : Tensor, shape (num_draft_tokens + 1,)
        Float32 or float64 numbers in [0, 1), independent of each other, of the drafting, and of
        what ``new_token`` was drawn with.
    new_token : int
        The bonus token, of ``new_tokens`` at the step behind the last drafted token.

    Returns
    -------
    num_accepted : int
        How many drafted tokens are kept.
    token_ids : list of int
        What is added to the request: the kept ids and one more. Stop criteria are the caller's.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain`; no Torch tensors.

    Examples
    --------
    >>> import torch
    >>> draft_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    >>> target_probs = torch.tensor([[[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]])
    >>> uniforms = torch.tensor([0.9, 0.5, 0.1])
    >>> verify_two_model(draft_probs, target_probs, [1, 1], uniforms, new_token=0)
    (1, [1, 0])
    """
    expect_tensors(draft_probs=draft_probs, target_probs=target_probs, uniforms=uniforms)
    expect_ndim("draft_probs", draft_probs, "(K, V)", "pass a row for each drafted token")
    drafted = draft_probs.shape[0]
    target = _of_one_request(target_probs)
    ids = as_integers("draft_tokens", draft_tokens)
    if ids.shape != (drafted,):
        message = (
            f"draft_tokens: expected shape ({drafted},), as draft_probs has rows, got {ids.shape}; "
            f"pass one for each drafted token"
        )
        raise ValueError(message)
    verdict = verify_chain(
        draft_probs,
        target[:drafted],
        ids,
        uniforms,
        indptr=[0, drafted],
        bonus_token_ids=[as_index("new_token", new_token)],
    )
    kept = int(verdict.num_accepted)
    return kept, verdict.token_ids[0, : kept + 1].tolist()


def _of_one_request(target_probs: Tensor) -> Tensor:
    """See the target's rows without the axis of requests."""
    rows = target_probs.squeeze(0) if target_probs.ndim == 3 else target_probs  # noqa: PLR2004
    if rows.ndim != 2:  # noqa: PLR2004
        message = (
            f"target_probs: expected shape (rows, V) or (1, rows, V), got "
            f"{tuple(target_probs.shape)}; pass the rows of one request"
        )
        raise ValueError(message)
    return rows
