"""Doubles of what a machine without a GPU lacks: CuPy, and arrays that say they are on a GPU.

Their memory is the CPU's, and `cupy.RawModule` compiles the text that it is given for the CPU. What
would wait for a GPU is counted; what a GPU's memory does not allow is refused.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_kernels import HostModule
from kinds import DTYPES, need

WAITS: Counter[str] = Counter()
# The devices that were made the current one and are not yet left, the innermost last.
CURRENT = [0]
STREAM = 0x5000  # of device 0; one more for each further device


class Device:
    """A device that can be made the current one, as those of CuPy and `torch.cuda.device`."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        CURRENT.append(self.id)
        return self

    def __exit__(self, *error: object) -> None:
        assert CURRENT.pop() == self.id


def taken(memory: NDArray[Any]) -> NDArray[Any]:
    """Fill fresh memory with what nobody may rely on."""
    if memory.size:
        memory.view(np.uint8)[...] = 0xA5
    return memory


class CupyArray:
    """Memory with those attributes of CuPy's arrays that are used."""

    def __init__(self, memory: NDArray[Any], device: int) -> None:
        self.memory = memory
        self.device = Device(device)
        self.data = SimpleNamespace(ptr=memory.ctypes.data)
        self.shape, self.strides, self.dtype = memory.shape, memory.strides, memory.dtype

    def __getitem__(self, key: Any) -> CupyArray:
        return CupyArray(self.memory[key, ...], self.device.id)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def __dlpack__(self, **_: Any) -> object:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device.id)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        message = "Implicit conversion to a NumPy array is not allowed."  # as CuPy says
        raise TypeError(message)

    def copy(self) -> CupyArray:
        return CupyArray(self.memory.copy(), self.device.id)

    def get(self) -> NDArray[Any]:
        WAITS["get"] += 1
        return self.memory.copy()

    def item(self) -> Any:
        return self.get().item()


class _Event:
    at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


def cupy_module() -> ModuleType:
    """Make a module with what is used of CuPy."""
    cupy = ModuleType("cupy")

    def from_dlpack(array: Any) -> CupyArray:
        if array.__dlpack_device__()[0] not in (2, 13):
            message = "CPU arrays cannot be directly imported to CuPy"
            raise TypeError(message)
        if array.memory.dtype.name.startswith("float8"):
            message = "Unsupported dtype."
            raise TypeError(message)
        return CupyArray(array.memory, array.__dlpack_device__()[1])

    def ascontiguousarray(array: CupyArray, dtype: str) -> CupyArray:
        return CupyArray(np.ascontiguousarray(array.memory, dtype), CURRENT[-1])

    cupy.__dict__.update(
        ndarray=CupyArray,
        empty=lambda shape, dtype: CupyArray(taken(np.empty(shape, dtype)), CURRENT[-1]),
        from_dlpack=from_dlpack,
        ascontiguousarray=ascontiguousarray,
        asarray=lambda array: CupyArray(np.array(array), CURRENT[-1]),
        RawModule=HostModule,
        copyto=lambda to, of: np.copyto(to.memory, of.memory),
        empty_like=lambda array: CupyArray(np.empty_like(array.memory), CURRENT[-1]),
        tile=lambda array, times: CupyArray(np.tile(array.memory, times), CURRENT[-1]),
        cuda=SimpleNamespace(
            get_current_stream=lambda: SimpleNamespace(
                ptr=STREAM + CURRENT[-1], synchronize=lambda: None
            ),
            Event=_Event,
            get_elapsed_time=lambda start, end: (end.at - start.at) * 1e3,
            runtime=SimpleNamespace(
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda _: {"name": b"A double", "major": 9, "minor": 0},
                driverGetVersion=lambda: 13020,
                runtimeGetVersion=lambda: 13020,
            ),
        ),
    )
    return cupy


# What a tensor on a GPU is asked for without a wait.
_QUEUED = {"__get__", "contiguous", "copy_", "data_ptr", "detach", "element_size", "expand"}
_QUEUED |= {
    "__getitem__",
    "increment_version",
    "is_contiguous",
    "is_inference",
    "is_neg",
    "is_lazy",
}
_QUEUED |= {"new_empty", "numel", "requires_grad_", "resolve_neg", "storage_offset", "stride"}
_QUEUED |= {"untyped_storage", "_neg_view"}


@cache
def tensor_class(number: int) -> Any:
    """Make a class of Torch tensors that say they are on a GPU."""
    torch = need("torch")

    class CudaTensor(torch.Tensor):  # type: ignore[misc, name-defined]
        @property
        def device(self) -> Any:
            return torch.device("cuda", number)

        @property
        def memory(self) -> NDArray[Any]:
            plain = self.as_subclass(torch.Tensor).detach()
            bits = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
            numbers: NDArray[Any] = bits.numpy()
            return numbers if bits is plain else numbers.view(DTYPES["bfloat16"])

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, number)

        def new_empty(self, *shape: Any, **options: Any) -> Any:
            assert CURRENT[-1] == number, "memory is taken on the current device"
            made = super().new_empty(*shape, **options)
            taken(made.memory)
            return made

        def item(self) -> Any:
            WAITS["item"] += 1
            return self.memory.item()

        def cpu(self) -> Any:
            WAITS["cpu"] += 1
            return self.as_subclass(torch.Tensor).detach().clone()

        def to(self, *, device: Any, dtype: Any) -> Any:
            moved = self.as_subclass(torch.Tensor).to(dtype)
            return moved.as_subclass(tensor_class(torch.device(device).index))

        def numpy(self, *_: Any, **__: Any) -> Any:
            message = f"can't convert {self.device} device type tensor to numpy."  # as Torch says
            raise TypeError(message)

        def as_subclass(self, cls: Any) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return super().as_subclass(cls)

        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            assert name in _QUEUED, f"{name} may wait for a GPU"
            return super().__torch_function__(function, types, args, kwargs or {})

    return CudaTensor


def cuda_tensor(plain: NDArray[Any], number: int) -> Any:
    """Copy rows to a tensor that says it is on a GPU."""
    torch = need("torch")
    if plain.dtype == DTYPES["bfloat16"]:
        tensor = torch.from_numpy(plain.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(plain.copy())
    return tensor.as_subclass(tensor_class(number))


@cache
def jax_class() -> Any:
    """Make a class of JAX arrays that say they are on a GPU."""

    class JaxArray(need("jax").Array):  # type: ignore[misc]
        ready = True

        def __init__(self, memory: NDArray[Any], device: int) -> None:
            self.memory, self.number = memory, device

        @property
        def shape(self) -> tuple[int, ...]:
            return self.memory.shape

        @property
        def dtype(self) -> np.dtype[Any]:
            return self.memory.dtype

        def devices(self) -> set[Any]:
            return {_JaxDevice(self.number)}

        def is_deleted(self) -> bool:
            return False

        def is_ready(self) -> bool:
            return bool(self.ready)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, self.number)

    return JaxArray


class _JaxDevice:
    platform = "gpu"

    def __init__(self, number: int) -> None:
        self.id = number


class Foreign:
    """An array of a library that nobody here knows. It has nothing but DLPack's two methods."""

    def __init__(self, memory: NDArray[Any], device: int, kind: int = 2) -> None:
        self.memory, self._device = memory, (kind, device)

    def __dlpack__(self, **_: Any) -> object:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Importing(Foreign):
    """One of a library that imports DLPack, by the array API standard."""

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(from_dlpack=lambda array: Importing(array.memory, array.device.id))
