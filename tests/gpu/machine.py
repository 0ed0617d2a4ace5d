"""The array libraries of a machine that has two GPUs, as far as doubles can stand for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftverify import _cuda, _cuda_arrays
from fakes import (
    CURRENT,
    STREAM,
    WAITS,
    CupyArray,
    Device,
    Foreign,
    Importing,
    cuda_tensor,
    cupy_module,
    jax_class,
    tensor_class,
)
from host_kernels import LAUNCHES
from kinds import need


class Library:
    """What differs from one array library to the next; arrays are made on device 1."""

    module = "numpy"
    immutable = False

    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        """See memory as an array of this library; Torch's are copies."""
        raise NotImplementedError

    def is_mine(self, array: Any) -> bool:
        """Whether an array is of this library, on device 1."""
        raise NotImplementedError


class TorchCuda(Library):
    module = "torch"

    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        return cuda_tensor(plain, device)

    def is_mine(self, array: Any) -> bool:
        return type(array) is tensor_class(1) and not array.requires_grad


class Cupy(Library):
    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        return CupyArray(plain, device)

    def is_mine(self, array: Any) -> bool:
        return type(array) is CupyArray and array.device.id == 1


class Jax(Library):
    module = "jax"
    immutable = True

    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        return jax_class()(plain, device)

    def is_mine(self, array: Any) -> bool:
        return type(array) is jax_class() and array.number == 1


class ForeignLibrary(Library):
    """Its arrays come back as CuPy's: it has nothing to import DLPack with."""

    immutable = True

    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        return Foreign(plain, device)

    def is_mine(self, array: Any) -> bool:
        return type(array) is CupyArray and array.device.id == 1


class ImportingLibrary(Library):
    immutable = True

    def array(self, plain: NDArray[Any], device: int = 1) -> Any:
        return Importing(plain, device, kind=13)

    def is_mine(self, array: Any) -> bool:
        return type(array) is Importing and array.__dlpack_device__() == (2, 1)


LIBRARIES: dict[str, Library] = {
    "torch": TorchCuda(),
    "cupy": Cupy(),
    "jax": Jax(),
    "foreign": ForeignLibrary(),
    "importing": ImportingLibrary(),
}


@contextmanager
def machine(library: Library, **broken: Any) -> Iterator[None]:
    """Stand in for CuPy, and for what Torch and JAX would ask a GPU for.

    `broken` are names of CuPy's module that are something else; ``cupy=None`` takes all of it away.
    """
    need(library.module)
    with pytest.MonkeyPatch.context() as patch:
        cupy: Any = broken.pop("cupy", cupy_module())
        for name, instead in broken.items():
            setattr(cupy, name, instead)
        patch.setitem(sys.modules, "cupy", cupy)
        if library.module == "torch":
            torch = need("torch")
            patch.setattr(torch.cuda, "device", lambda device: Device(device.index))
            streams = [SimpleNamespace(cuda_stream=STREAM + number) for number in range(2)]
            patch.setattr(torch.cuda, "current_stream", lambda device: streams[device.index])
        if library.module == "jax":
            patch.setattr(need("jax").dlpack, "from_dlpack", _imported)
        _forget()
        try:
            yield
            assert CURRENT == [0], "the caller's device is current again"
        finally:
            _forget()


def _forget() -> None:
    _cuda.missing.cache_clear()
    _cuda._kernels.cache_clear()
    _cuda_arrays._JAX._held.clear()
    LAUNCHES.clear()
    WAITS.clear()
    CURRENT[:] = [0]


def _imported(array: CupyArray, *, copy: bool) -> Any:
    assert copy
    assert CURRENT[-1] == array.device.id, "CuPy's current stream is that of the array's device"
    return jax_class()(np.array(array.memory), array.device.id)


def memory(array: Any) -> NDArray[Any]:
    """Look at what an array on a GPU holds, without a wait."""
    found: NDArray[Any] = array.memory
    return found
