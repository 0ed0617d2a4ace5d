"""Draft models with another vocabulary than the target's.

A drafted id means the same on both sides only if the draft's probabilities are moved to the ids of
the target. There are three cases:

- The draft knows a part of the vocabulary, and a map says which. It holds differences (EAGLE-3's
  ``d2t``; ``draft_id_to_target_id`` in vLLM 0.33.0, ``vllm/model_executor/models/llama_eagle3.py``;
  ``d2t`` in TensorRT-LLM) or ids (``hot_token_id`` in SGLang 0.5.23,
  ``sglang/srt/models/llama_eagle3.py``).
- The draft knows the first ids, as the target's vocabulary is padded.
- The draft's own vocabulary is padded. Then nothing is to be moved:
  ``draft_probs[..., :vocab_size]`` is a view.
"""

from __future__ import annotations

from typing import Any

from draftverify._tokens import as_index
from draftverify.adapters._torch import (
    Tensor,
    expect_integers,
    expect_outputs,
    expect_shape,
    expect_tensors,
)


def in_target_vocabulary(
    draft_probs: Tensor,
    vocab_size: int,
    *,
    d2t: Tensor | None = None,
    target_ids: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Move the draft's probabilities to the ids of the target, 0 for all others.

    Several drafted ids may mean one of the target: their probabilities are added. Engines that
    assign them keep one, and a residual with too little subtracted.

    Parameters
    ----------
    draft_probs : Tensor, shape (..., draft_vocab_size)
        Probabilities over the draft's vocabulary.
    vocab_size : int
        The number of ids of the target.
    d2t : Tensor, shape (draft_vocab_size,), integers, optional
        What to add to each id of the draft: ``target id = draft id + d2t[draft id]``.
    target_ids : Tensor, shape (draft_vocab_size,), integers, optional
        The target's ids instead. With neither, both models have the same first ids.
    out : Tensor, shape (..., vocab_size), optional
        Where to, of the same dtype and device; a server passes the same one each time.

    Returns
    -------
    Tensor, shape (..., vocab_size)
        Probabilities over the target's vocabulary, in the dtype of the draft's: ``out`` if given.
        The drafted ids that go with it are the target's too.

    Raises
    ------
    TypeError
        No Torch tensors; maps that are not integers; an ``out`` of another dtype.
    ValueError
        Shapes that do not fit; both maps; an id outside the target's vocabulary: none wraps.

    Notes
    -----
    Where ids meet, the sum is rounded to the dtype. The draft is then verified with the rounded
    law: in float32 a token is kept with a probability that is off by up to 2^-24 of itself.

    Examples
    --------
    >>> import torch
    >>> draft_probs = torch.tensor([[0.5, 0.25, 0.25]])
    >>> in_target_vocabulary(draft_probs, 5, d2t=torch.tensor([1, 0, 2]))
    tensor([[0.0000, 0.7500, 0.0000, 0.0000, 0.2500]])
    """
    expect_tensors(draft_probs=draft_probs)
    vocab_size = as_index("vocab_size", vocab_size)
    import torch  # noqa: PLC0415 - the caller has imported it

    if draft_probs.ndim == 0:
        message = "draft_probs: expected shape (..., V), got (); pass rows over a vocabulary"
        raise ValueError(message)
    drafted = draft_probs.shape[-1]
    ids = _ids(d2t, target_ids, drafted, draft_probs.device)
    if drafted and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        outside = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        message = (
            f"{'target_ids' if d2t is None else 'd2t'}: expected ids from 0 to {vocab_size - 1}, "
            f"as vocab_size says, got {outside}; check that the map belongs to these models"
        )
        if d2t is None and target_ids is None:
            message = (
                f"draft_probs: expected at most {vocab_size} entries in a row, as vocab_size says, "
                f"got {drafted}; pass draft_probs[..., :{vocab_size}] if the others are padding"
            )
        raise ValueError(message)
    shape = (*draft_probs.shape[:-1], vocab_size)
    if out is None:
        out = torch.zeros(shape, dtype=draft_probs.dtype, device=draft_probs.device)
    else:
        expect_tensors(out=out)
        expect_shape("out", out, shape, "pass one with a row for each of the draft's")
        expect_outputs(draft_probs.dtype, draft_probs, out=out)
        out.zero_()
    return out.index_add_(-1, ids, draft_probs)


def _ids(d2t: Tensor | None, target_ids: Tensor | None, drafted: int, device: Any) -> Tensor:
    """Find the target's ids."""
    import torch  # noqa: PLC0415 - the caller has imported it

    if d2t is not None and target_ids is not None:
        message = "d2t and target_ids: expected one of them, got both; pass differences or ids"
        raise ValueError(message)
    same = torch.arange(drafted, device=device)
    for name, given in (("d2t", d2t), ("target_ids", target_ids)):
        if given is None:
            continue
        expect_tensors(**{name: given})
        expect_shape(name, given, (drafted,), "pass one for each id of the draft")
        expect_integers(name, given)
        return given.long() + (same if name == "d2t" else 0)
    return same
