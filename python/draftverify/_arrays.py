"""Rows that belong together: of one library, dtype and device, seen as NumPy arrays."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify._kinds import NUMPY, TORCH, Kind, in_memory, kind_of, memory_of, type_name

DTYPES = ("float16", "bfloat16", "float32", "float64")


class Pair(NamedTuple):
    """Two rows, or two stacks of rows, that belong together."""

    kind: Kind
    dtype: str
    device: str
    draft: NDArray[Any]
    target: NDArray[Any]

    @property
    def bfloat16(self) -> bool:
        """Whether 16-bit integers in the views hold the bits of bfloat16."""
        return self.dtype == "bfloat16"


def pair(draft_probs: object, target_probs: object) -> Pair:
    """See both arguments as NumPy arrays of one dtype.

    Kinds are checked before dtypes and these before devices.
    """
    kind = kind_of("draft_probs", draft_probs)
    other = kind_of("target_probs", target_probs)
    if kind is not other:
        cure = (
            "convert the list to an array of the same dtype"
            if "list"
            in {
                kind.name,
                other.name,
            }
            else "convert one of them"
        )
        message = (
            f"draft_probs and target_probs: expected arrays of one library, got "
            f"{type_name(draft_probs)} and {type_name(target_probs)}; {cure}"
        )
        raise TypeError(message)
    dtype, other_dtype = kind.dtype(draft_probs), kind.dtype(target_probs)
    if dtype != other_dtype or dtype not in DTYPES:
        message = (
            f"draft_probs and target_probs: expected one dtype for both, out of "
            f"{', '.join(DTYPES)}, got {dtype} and {other_dtype}; convert both to one of these"
        )
        raise TypeError(message)
    device, other_device = kind.device(draft_probs), kind.device(target_probs)
    if device != other_device:
        message = (
            f"draft_probs and target_probs: expected one device, got {device} and {other_device}; "
            f"move one of them"
        )
        raise ValueError(message)
    if device != "cpu":
        message = (
            f"draft_probs and target_probs: expected arrays on the CPU, got {device}, for which "
            f"there is no kernel yet; move them with .cpu()"
        )
        raise NotImplementedError(message)
    views = []
    for name, array in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        try:
            views.append(kind.view(array))
        except (TypeError, ValueError) as error:
            message = f"{name}: {error}"
            raise type(error)(message) from None
    return Pair(kind, dtype, device, *views)


def output(out: object, rows: Pair, inputs: dict[str, object]) -> NDArray[Any]:
    """See `out` as a NumPy array that can take the residuals of `rows`.

    It may share no memory with the inputs, named as they are.
    """
    library = "NumPy" if rows.kind.name == "list" else rows.kind.name
    kind = kind_of("out", out, f"an array of {library} as the rows are")
    if kind.name != library:
        message = (
            f"out: expected an array of {library} as the rows are, got {type_name(out)}; pass such "
            f"an array"
        )
        raise TypeError(message)
    if kind.dtype(out) != rows.dtype:
        message = (
            f"out: expected dtype {rows.dtype} as the rows have, got {kind.dtype(out)}; pass an "
            f"array of it"
        )
        raise TypeError(message)
    if kind.device(out) != rows.device:
        message = (
            f"out: expected device {rows.device} as the rows are on, got {kind.device(out)}; "
            f"pass one there"
        )
        raise ValueError(message)
    reason = kind.unwritable(out)
    if reason is not None:
        message = f"out: expected an array that may be written to, got {reason}"
        raise ValueError(message)
    view = kind.view(out)
    if view.shape != rows.draft.shape:
        message = (
            f"out: expected shape {rows.draft.shape} as the rows have, got {view.shape}; pass an "
            f"array of it"
        )
        raise ValueError(message)
    if _overlaps_itself(view):
        message = "out: expected entries that share no memory, got an expanded array; pass a copy"
        raise ValueError(message)
    for name, array in inputs.items():
        if _overlap(view, memory_of(array)):
            message = (
                f"out: expected memory of its own, got an array that overlaps {name}; pass another"
            )
            raise ValueError(message)
    return view


def plain_torch(draft_probs: Any, target_probs: Any) -> Pair | None:
    """See two ordinary Torch CPU vectors as NumPy arrays, in a third of the time that `pair` takes.

    None for anything else: Torch itself refuses to show a tensor that is on another device, sparse,
    negated or recording gradients as a NumPy array. `pair` says why or finds a way.
    """
    torch = sys.modules.get("torch")
    if torch is None or {type(draft_probs), type(target_probs)} != {torch.Tensor}:
        return None
    if not (in_memory(draft_probs) and in_memory(target_probs)):
        return None
    dtype = draft_probs.dtype
    try:
        if dtype is torch.bfloat16 is target_probs.dtype:
            if draft_probs.is_neg() or target_probs.is_neg():
                return None
            draft_probs, target_probs = (
                draft_probs.view(torch.int16),
                target_probs.view(torch.int16),
            )
        draft, target = draft_probs.numpy(), target_probs.numpy()
    except (AssertionError, RuntimeError, TypeError):
        return None
    name = "bfloat16" if dtype is torch.bfloat16 else NUMPY.dtype(draft)
    if draft.dtype != target.dtype or draft.shape != target.shape or name not in DTYPES:
        return None
    return Pair(TORCH, name, "cpu", draft, target) if draft.ndim == 1 and draft.size else None


def _overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays share a byte; also where finding out would take too long."""
    try:
        # NumPy's stub knows two special values of `max_work`, its documentation any number.
        return np.shares_memory(one, other, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether two entries of an array may share a byte.

    Going from the shortest stride to the longest, each has to step over all that lies within.
    """
    if array.size == 0:
        return False
    within = array.itemsize
    strides = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, length in sorted(pair for pair in strides if pair[1] > 1):
        if stride < within:
            return True
        within += stride * (length - 1)
    return False
