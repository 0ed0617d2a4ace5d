"""Kinds of arrays: known by type, seen as NumPy arrays without a copy, and wrapped back.

A library is asked for only where the caller has imported it: an object of a library that is not
in `sys.modules` cannot have been passed. Each kind states what differs, and every check that is
common to all is written once, in `pair` and `output`.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

DTYPES = ("float16", "bfloat16", "float32", "float64")
KNOWN = "a NumPy array, a Torch CPU tensor or a list of numbers"


class Kind(Protocol):
    """What differs from one array library to the next."""

    name: str

    def owns(self, array: object) -> bool:
        """Whether the array is of this library."""

    def refusal(self, array: Any) -> str | None:
        """Why an array of this library has no ordinary memory to read, and the cure."""

    def dtype(self, array: Any) -> str:
        """Name the dtype as NumPy does."""

    def device(self, array: Any) -> str:
        """Name the device."""

    def view(self, array: Any) -> NDArray[Any]:
        """See the memory as a NumPy array proper; bfloat16 may be seen as 16-bit integers."""

    def wrap(self, array: NDArray[Any], dtype: str) -> Any:
        """Hand a fresh NumPy array over to this library, as an array of `dtype`."""

    def writable(self, array: Any) -> bool:
        """Whether the array may be written to."""


class _NumPy:
    name = "NumPy"

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def refusal(self, array: NDArray[Any]) -> str | None:
        if isinstance(array, np.ma.MaskedArray):
            return "a masked array; fill it with .filled(0)"
        return None

    def dtype(self, array: NDArray[Any]) -> str:
        return array.dtype.name

    def device(self, array: NDArray[Any]) -> str:  # noqa: ARG002 - as the protocol has it
        return "cpu"

    def view(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.view(np.ndarray)

    def wrap(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:  # noqa: ARG002
        return array

    def writable(self, array: NDArray[Any]) -> bool:
        return array.flags.writeable


class _List(_NumPy):
    """Lists and tuples of numbers: float64 arrays, as a convenience."""

    name = "list"

    def owns(self, array: object) -> bool:
        return isinstance(array, list | tuple)

    def refusal(self, array: list[Any] | tuple[Any, ...]) -> str | None:
        nested = array and all(isinstance(entry, list | tuple) for entry in array)
        for entry in chain.from_iterable(array) if nested else array:
            if isinstance(entry, bool) or not isinstance(entry, int | float | np.integer | np.floating):
                return f"one that holds {_type_name(entry)}; pass floats or ints"
        return None

    def dtype(self, array: object) -> str:  # noqa: ARG002
        return "float64"

    def view(self, array: list[Any] | tuple[Any, ...]) -> NDArray[np.float64]:
        try:
            return np.array(array, dtype=np.float64)
        except (ValueError, OverflowError) as error:
            message = f"list: expected rows of one length, of numbers within float64, got {error}"
            raise ValueError(message) from None


class _Torch:
    name = "Torch"

    def owns(self, array: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(array, torch.Tensor)

    def refusal(self, array: Any) -> str | None:
        import torch  # noqa: PLC0415 - the caller has imported it

        if type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"a {type(array).__name__}, which has no memory of its own; pass the real tensor"
        if array.layout is not torch.strided:
            return f"a tensor of layout {array.layout}; convert it with .to_dense()"
        if array.is_quantized:
            return "a quantised tensor; convert it with .dequantize()"
        if array.device.type == "meta":
            return "a meta tensor, which holds no values; pass the real tensor"
        return None

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> str:
        return str(array.device)

    def view(self, array: Any) -> NDArray[Any]:
        import torch  # noqa: PLC0415 - the caller has imported it

        plain = array.detach().resolve_neg()
        if plain.dtype is torch.bfloat16:
            plain = plain.view(torch.int16)
        numpy_view: NDArray[Any] = plain.numpy()
        return numpy_view

    def wrap(self, array: NDArray[Any], dtype: str) -> Any:
        import torch  # noqa: PLC0415 - the caller has imported it

        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

    def writable(self, array: Any) -> bool:
        return not (array.requires_grad or array.is_neg())


TORCH = _Torch()
_KINDS: tuple[Kind, ...] = (_NumPy(), _List(), TORCH)


def plain_torch(draft_probs: object, target_probs: object) -> tuple[NDArray[Any], ...] | None:
    """See two ordinary Torch CPU tensors as NumPy arrays, in a third of the time that `pair` takes.

    None for anything else: Torch itself refuses to show a tensor that is on another device, sparse,
    negated or recording gradients as a NumPy array. `pair` says why or finds a way.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (type(draft_probs) is type(target_probs) is torch.Tensor):
        return None
    try:
        return draft_probs.numpy(), target_probs.numpy()
    except (RuntimeError, TypeError):
        return None


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
    kind = _kind("draft_probs", draft_probs)
    other = _kind("target_probs", target_probs)
    if kind is not other:
        message = (
            f"draft_probs and target_probs: expected arrays of one library, got "
            f"{_type_name(draft_probs)} and {_type_name(target_probs)}; convert one of them"
        )
        raise TypeError(message)
    dtype, other_dtype = kind.dtype(draft_probs), kind.dtype(target_probs)
    if dtype != other_dtype or dtype not in DTYPES:
        message = (
            f"draft_probs and target_probs: expected one dtype out of {', '.join(DTYPES)}, got "
            f"{dtype} and {other_dtype}; convert both to the same one"
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
    return Pair(kind, dtype, device, kind.view(draft_probs), kind.view(target_probs))


def output(out: object, rows: Pair) -> NDArray[Any]:
    """See `out` as a NumPy array that can take the residuals of `rows`."""
    library = "NumPy" if rows.kind.name == "list" else rows.kind.name
    kind = _kind("out", out)
    if kind.name != library:
        message = f"out: expected an array of {library} as the rows are, got {_type_name(out)}"
        raise TypeError(message)
    if kind.dtype(out) != rows.dtype:
        message = f"out: expected dtype {rows.dtype} as the rows have, got {kind.dtype(out)}"
        raise TypeError(message)
    if kind.device(out) != rows.device:
        message = f"out: expected device {rows.device} as the rows are on, got {kind.device(out)}"
        raise ValueError(message)
    if not kind.writable(out):
        message = (
            "out: expected an array that may be written to, got a read-only one or a tensor that "
            "records gradients; pass a fresh one"
        )
        raise ValueError(message)
    view = kind.view(out)
    if view.shape != rows.draft.shape:
        message = f"out: expected shape {rows.draft.shape} as the rows have, got {view.shape}"
        raise ValueError(message)
    if _overlaps_itself(view):
        message = "out: expected entries that share no memory, got an expanded array; pass a copy"
        raise ValueError(message)
    for name, view_in in (("draft_probs", rows.draft), ("target_probs", rows.target)):
        if _overlap(view, view_in):
            message = f"out: expected memory of its own, got an array that overlaps {name}"
            raise ValueError(message)
    return view


def _kind(name: str, array: object) -> Kind:
    for kind in _KINDS:
        if kind.owns(array):
            reason = kind.refusal(array)
            if reason is not None:
                message = f"{name}: expected {KNOWN}, got {reason}"
                raise TypeError(message)
            return kind
    message = f"{name}: expected {KNOWN}, got {_type_name(array)}; convert it with numpy.asarray"
    raise TypeError(message)


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays share a byte; also where finding out would take too long."""
    try:
        return np.shares_memory(one, other, max_work=100_000)
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether two entries of an array may share a byte.

    Going from the shortest stride to the longest, each has to step over all that lies within.
    """
    within = array.itemsize
    strides = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, length in sorted(pair for pair in strides if pair[1] > 1):
        if stride < within:
            return True
        within += stride * (length - 1)
    return False
