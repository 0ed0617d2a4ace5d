"""Kinds of arrays that live on a GPU alone: CuPy's, and those of any library that speaks DLPack.

They have no memory that NumPy could see; what can be seen are addresses, strides and shapes.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What DLPack calls memory that CUDA kernels can read: a GPU's own, and managed memory.
_CUDA_MEMORY = (2, 13)


class Cupy:
    """CuPy arrays."""

    name = "CuPy"
    immutable = False
    to_host = ".get()"

    def owns(self, array: object) -> bool:
        cupy = sys.modules.get("cupy")
        return cupy is not None and isinstance(array, cupy.ndarray)

    def refusal(self, array: Any) -> str | None:  # noqa: ARG002 - as the protocol has it
        return None

    def dtype(self, array: Any) -> str:
        return str(array.dtype.name)

    def device(self, array: Any) -> str:
        return f"cuda:{array.device.id}"

    def unwritable(self, array: Any) -> str | None:  # noqa: ARG002
        return None

    def written(self, array: Any) -> None:
        pass


class Dlpack:
    """Arrays in CUDA memory of a library not known here. CuPy reads what they export."""

    name = "DLPack"
    immutable = True
    to_host = "the methods of their library"

    def owns(self, array: object) -> bool:
        ask = getattr(type(array), "__dlpack_device__", None)
        if ask is None or not hasattr(type(array), "__dlpack__"):
            return False
        try:
            memory, _ = ask(array)
        except Exception:  # whatever it is, it is no such array
            return False
        return memory in _CUDA_MEMORY

    def refusal(self, array: Any) -> str | None:
        try:
            cupy()
        except ImportError:
            return (
                f"a {type(array).__name__} in CUDA memory, which CuPy would read; install "
                f"draftverify[cuda12x] or draftverify[cuda13x]"
            )
        return None

    def dtype(self, array: Any) -> str:
        return CUPY.dtype(exported(array))

    def device(self, array: Any) -> str:
        return f"cuda:{array.__dlpack_device__()[1]}"

    def unwritable(self, array: Any) -> str | None:  # noqa: ARG002
        return "one of another library, which may not expect writes; leave it out"

    def written(self, array: Any) -> None:
        pass


CUPY = Cupy()
DLPACK = Dlpack()


def cupy() -> Any:
    """Import CuPy. This is called where there is an array on a GPU, and nowhere else."""
    return import_module("cupy")


def exported(array: Any) -> Any:
    """See an array in CUDA memory as a CuPy array that is ready for CuPy's current stream."""
    try:
        return cupy().from_dlpack(array)
    except (BufferError, TypeError, RuntimeError) as error:
        message = f"expected an array that CuPy can read through DLPack, got one it cannot: {error}"
        raise TypeError(message) from error


class _Addresses(np.ndarray):
    """Where entries lie. They must not be looked at: they are not in this process's memory."""

    def __repr__(self) -> str:
        return f"addresses of shape {self.shape}"

    __str__ = __repr__


class _Memory:
    """What NumPy asks for to make an array of entries at an address."""

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
        }


def addresses(array: Any) -> NDArray[Any]:
    """See where the entries of a Torch or CuPy array on a GPU lie, to compare with another."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        size = array.element_size()
        strides = tuple(size * stride for stride in array.stride())
        address = array.data_ptr()
    else:
        address, strides, size = array.data.ptr, tuple(array.strides), array.dtype.itemsize
    shape = tuple(array.shape)
    if 0 in shape:
        return np.empty(shape, f"V{size}")
    return np.asarray(_Memory(address, shape, strides, size)).view(_Addresses)
