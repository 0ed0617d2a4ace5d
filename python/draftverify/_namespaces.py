"""Array libraries without a kernel of ours: the few operations in which they differ.

Libraries of the array API standard (https://data-apis.org/array-api), from its version 2021.12 on,
and Torch, whose operators have other names. Nothing is imported: a library is reached through the
array that the caller passes.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftverify._arrays import DTYPES
from draftverify._kinds import TORCH, kind_of

_KNOWN = "an array of one library of the array API standard, or a Torch tensor"
# Libraries that have another way in; Torch's tensors and JAX's arrays can be passed all the same.
_ELSEWHERE = frozenset({"numpy", "torch", "jax", "jaxlib", "cupy"})


def is_namespace_array(array: object) -> bool:
    """Whether an array is of a library that is known by `__array_namespace__` alone."""
    if isinstance(array, np.ndarray) or _package(array) in _ELSEWHERE:
        return False
    return callable(getattr(type(array), "__array_namespace__", None))


class Operations(Protocol):
    """What the arithmetic needs of a library, beside operators and slices, on one device."""

    device: str
    # The type that masses and accept probabilities have, and the type of indices.
    float64: str
    index: str

    def plain(self, array: Any) -> Any:
        """Take an array as one that operators can be applied to, recording no gradient."""

    def dtype(self, array: Any) -> str:
        """Name the dtype as NumPy does."""

    def cast(self, array: Any, dtype: str) -> Any:
        """Convert the entries, to nearest."""

    def fill(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        """Make an array of one number."""

    def indices(self, ids: NDArray[np.int64]) -> Any:
        """Copy ids to the device."""

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        """Choose entry by entry."""

    def concat(self, arrays: list[Any], axis: int) -> Any:
        """Put arrays side by side."""

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Read the entries in order as an array of another shape."""

    def extremes(self, rows: Any) -> tuple[Any, Any]:
        """Find the least and the largest entry of each row; NaN where it has one."""

    def divide(self, rows: Any, divisors: Any) -> Any:
        """Divide each row by a number of its own."""

    def gather(self, rows: Any, ids: Any) -> Any:
        """Take one entry of each row."""

    def any(self, flags: Any) -> bool:
        """Whether any flag is set. The device is waited for."""

    def first(self, flags: Any) -> int:
        """Find the first flag that is set."""

    def numbers(self, *scalars: Any) -> list[float]:
        """Copy numbers of one type to the host."""

    def host(self, vector: Any) -> NDArray[Any]:
        """Copy a vector to the host, bfloat16 as 16-bit integers."""

    def move(self, array: Any) -> Any:
        """Move an array of the library to the device."""

    def write(self, out: Any, array: Any) -> None:
        """Overwrite an array."""


class _Standard:
    """A library of the array API standard; where it lacks float64, float32 stands in."""

    def __init__(self, array: Any) -> None:
        self._xp = array.__array_namespace__()
        self._device = array.device
        self.device = str(self._device)
        self.float64 = "float64" if self._has("float64") else "float32"
        self.index = "int64" if self._has("int64") else "int32"

    def _has(self, dtype: str) -> bool:
        try:
            info = self._xp.__array_namespace_info__()
            return dtype in info.dtypes(device=self._device)
        except (AttributeError, RuntimeError, TypeError):
            pass  # a version before 2023.12
        try:
            return self.dtype(self.fill((), 0, dtype)) == dtype
        except (AttributeError, TypeError, ValueError):
            return False

    def plain(self, array: Any) -> Any:
        return array

    def dtype(self, array: Any) -> str:
        for name in DTYPES:
            # Not with a default of None, which NumPy takes for float64.
            if hasattr(self._xp, name) and getattr(self._xp, name) == array.dtype:
                return name
        return str(array.dtype).rpartition(".")[2]

    def cast(self, array: Any, dtype: str) -> Any:
        return self._xp.astype(array, getattr(self._xp, dtype), copy=False)

    def fill(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        return self._xp.full(shape, value, dtype=getattr(self._xp, dtype), device=self._device)

    def indices(self, ids: NDArray[np.int64]) -> Any:
        dtype = getattr(self._xp, self.index)
        return self._xp.asarray(ids.tolist(), dtype=dtype, device=self._device)

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        return self._xp.where(condition, one, other)

    def concat(self, arrays: list[Any], axis: int) -> Any:
        return self._xp.concat(arrays, axis=axis)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self._xp.reshape(array, shape)

    def extremes(self, rows: Any) -> tuple[Any, Any]:
        return self._xp.min(rows, axis=1), self._xp.max(rows, axis=1)

    def divide(self, rows: Any, divisors: Any) -> Any:
        # Spread out, since XLA replaces a division by one number by a product with its reciprocal.
        return rows / self._xp.broadcast_to(divisors[:, None], rows.shape)

    def gather(self, rows: Any, ids: Any) -> Any:
        xp = self._xp
        if getattr(xp, "__array_api_version__", "") >= "2024.12" and hasattr(xp, "take_along_axis"):
            return xp.take_along_axis(rows, ids[:, None], axis=1)[:, 0]
        # Earlier versions take the same column of all rows. The maximum has no rounding, and
        # passes on a NaN.
        here = self._places(rows.shape[1]) == ids[:, None]
        least = self.fill((), -np.inf, self.dtype(rows))
        return xp.max(self.where(here, rows, least), axis=1)

    def _places(self, count: int) -> Any:
        dtype = getattr(self._xp, self.index)
        return self._xp.arange(count, dtype=dtype, device=self._device)

    def any(self, flags: Any) -> bool:
        try:
            return bool(self._xp.any(flags))
        except Exception as error:  # of any library
            message = (
                f"draft_probs and target_probs: expected arrays whose values are known, got "
                f"{error}; compute them first, or use accept_residual with check=False"
            )
            raise TypeError(message) from error

    def first(self, flags: Any) -> int:
        # Not `argmax`, whose answer has a type that some devices lack.
        count = flags.shape[0]
        none = self.fill((), count, self.index)
        return int(self._xp.min(self.where(flags, self._places(count), none)))

    def numbers(self, *scalars: Any) -> list[float]:
        return [float(scalar) for scalar in scalars]

    def host(self, vector: Any) -> NDArray[Any]:
        dtype = self.dtype(vector)
        if dtype == "bfloat16":
            wide = np.array(self.host(self.cast(vector, "float32")))
            return (wide.view(np.uint32) >> 16).astype(np.int16)
        try:
            host = np.from_dlpack(vector, device="cpu")
        except Exception:  # not all libraries can; number by number is slow, but always there
            number = float if dtype in DTYPES else int
            host = np.array([number(vector[at]) for at in range(vector.shape[0])], dtype)
        return host

    def move(self, array: Any) -> Any:
        return array.to_device(self._device)

    def write(self, out: Any, array: Any) -> None:
        try:
            out[...] = array
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            cls = TypeError if isinstance(error, TypeError | NotImplementedError) else ValueError
            message = (
                f"out: expected an array that may be written to, got one that may not: {error}; "
                f"leave it out"
            )
            raise cls(message) from error


class _Torch:
    """Torch on any device; where it lacks float64, float32 stands in."""

    index = "int64"

    def __init__(self, tensor: Any) -> None:
        self._torch = sys.modules["torch"]
        self._device = tensor.device
        self.device = str(tensor.device)
        self.float64 = torch_float64(tensor.device)

    def plain(self, array: Any) -> Any:
        return array.detach().as_subclass(self._torch.Tensor)

    def dtype(self, array: Any) -> str:
        return TORCH.dtype(array)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self._torch, dtype))

    def fill(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        dtype = getattr(self._torch, dtype)
        return self._torch.full(shape, value, dtype=dtype, device=self._device)

    def indices(self, ids: NDArray[np.int64]) -> Any:
        # CUDA copies pageable memory aside before it returns, and need not be waited for.
        return self._torch.from_numpy(ids).to(
            self._device, non_blocking=self._device.type == "cuda", copy=True
        )

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        return self._torch.where(condition, one, other)

    def concat(self, arrays: list[Any], axis: int) -> Any:
        return self._torch.cat(arrays, dim=axis)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.reshape(shape)

    def extremes(self, rows: Any) -> tuple[Any, Any]:
        return rows.amin(1), rows.amax(1)

    def divide(self, rows: Any, divisors: Any) -> Any:
        return rows / divisors[:, None]

    def gather(self, rows: Any, ids: Any) -> Any:
        return rows.gather(1, ids[:, None])[:, 0]

    def any(self, flags: Any) -> bool:
        return bool(flags.any())

    def first(self, flags: Any) -> int:
        return int(flags.to(self._torch.int32).argmax())

    def numbers(self, *scalars: Any) -> list[float]:
        numbers: list[float] = self._torch.stack(scalars).tolist()
        return numbers

    def host(self, vector: Any) -> NDArray[Any]:
        return TORCH.view(vector.cpu())

    def move(self, array: Any) -> Any:
        return self.plain(array).to(self._device)

    def write(self, out: Any, array: Any) -> None:
        # Tensors made under inference mode are written to under it alone.
        with self._torch.inference_mode(out.is_inference()):
            out.copy_(array)


def torch_float64(device: Any) -> str:
    """Name the widest type of a Torch device: Apple's have no float64, nor have some of Intel's."""
    if device.type == "xpu":
        properties = sys.modules["torch"].xpu.get_device_properties(device)
        return "float64" if getattr(properties, "has_fp64", True) else "float32"
    return "float32" if device.type == "mps" else "float64"


def library(name: str, array: Any) -> str:
    """Name an array's library, or refuse the array."""
    if not is_namespace_array(array):
        kind = kind_of(name, array, _KNOWN)
        return kind.name
    if hasattr(array, "mask"):
        message = f"{name}: expected {_KNOWN}, got a masked array; fill it and pass its data"
        raise TypeError(message)
    if hasattr(array, "todense") or hasattr(array, "nnz"):
        message = f"{name}: expected {_KNOWN}, got a sparse array; convert it to a dense one"
        raise TypeError(message)
    return _package(array)


def operations(array: Any) -> Operations:
    """Find the operations of an array's library on the array's device."""
    return _Torch(array) if TORCH.owns(array) else _Standard(array)


def _package(array: object) -> str:
    return type(array).__module__.partition(".")[0]
