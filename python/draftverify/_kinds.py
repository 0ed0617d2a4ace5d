"""Kinds of arrays: known by type, seen as NumPy arrays without a copy, and wrapped back.

A library is asked for only where the caller has imported it: an object of a library that is not
in `sys.modules` cannot have been passed. Each kind states what differs between libraries; the
checks that are common to all are in `_arrays`.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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

    def unwritable(self, array: Any) -> str | None:
        """Why the array may not be written to, and the cure."""


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a NumPy dtype; NumPy takes as long to put the name together as a small step takes."""
    return str(dtype.name)


class _NumPy:
    name = "NumPy"

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def refusal(self, array: Any) -> str | None:
        if isinstance(array, np.ma.MaskedArray):
            return "a masked array; fill it with .filled(0)"
        return None

    def dtype(self, array: Any) -> str:
        return _dtype_name(array.dtype)

    def device(self, array: Any) -> str:  # noqa: ARG002 - as the protocol has it
        return "cpu"

    def view(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def wrap(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:  # noqa: ARG002
        return array

    def unwritable(self, array: Any) -> str | None:
        return None if array.flags.writeable else "a read-only array; pass a copy"


class _List(_NumPy):
    """Lists and tuples of numbers: float64 arrays, as a convenience."""

    name = "list"

    def owns(self, array: object) -> bool:
        return isinstance(array, list | tuple)

    def refusal(self, array: Any) -> str | None:
        nested = array and all(isinstance(entry, list | tuple) for entry in array)
        for entry in chain.from_iterable(array) if nested else array:
            if isinstance(entry, bool) or not isinstance(
                entry, int | float | np.integer | np.floating
            ):
                return f"one that holds {type_name(entry)}; pass floats or ints, or stack arrays"
        return None

    def dtype(self, array: Any) -> str:  # noqa: ARG002
        return "float64"

    def view(self, array: Any) -> NDArray[Any]:
        try:
            return np.array(array, dtype=np.float64)
        except (ValueError, OverflowError) as error:
            wrong = "a number beyond float64" if isinstance(error, OverflowError) else "others"
            message = f"expected lists of numbers, all of one length, got {wrong}; pass an array"
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
        try:
            in_memory = array.data_ptr() != 0 or array.numel() == 0
        except RuntimeError:
            in_memory = False
        if not in_memory:
            return "a tensor without memory, as inside torch.func transforms; pass the real tensor"
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

    def unwritable(self, array: Any) -> str | None:
        if array.requires_grad:
            return "a tensor that records gradients; pass its .detach()"
        return "a negated view; pass its .resolve_neg()" if array.is_neg() else None


NUMPY = _NumPy()
TORCH = _Torch()
_KINDS: tuple[Kind, ...] = (NUMPY, _List(), TORCH)


def kind_of(name: str, array: object, known: str = KNOWN) -> Kind:
    for kind in _KINDS:
        if kind.owns(array):
            reason = kind.refusal(array)
            if reason is not None:
                message = f"{name}: expected {known}, got {reason}"
                raise TypeError(message)
            return kind
    message = f"{name}: expected {known}, got {type_name(array)}; convert it with numpy.asarray"
    raise TypeError(message)


def type_name(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
