"""Arrays on a GPU for the kernels: where entries lie, whose memory results get, which stream.

Torch owns Torch's memory; everything else is CuPy's. Arrays of JAX and of other libraries are seen
as CuPy arrays through DLPack, and what CuPy holds goes back the same way.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftverify import _tokens
from draftverify._device_kinds import CUPY, DLPACK, cupy, exported
from draftverify._kinds import JAX, TORCH, kind_of, on_gpu


class Owner(Protocol):
    """What differs between those who own memory on a GPU."""

    def taken(self, array: Any) -> Any:
        """See an array of the caller's as one of the owner's, for reading."""

    def on(self, array: Any) -> AbstractContextManager[Any]:
        """Make the array's device the current one."""

    def stream(self, array: Any) -> int:
        """Find the caller's current stream on the array's device, which is the current one."""

    def empty(self, array: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        """Make room on the array's device; of its dtype, if no other is named."""

    def address(self, array: Any) -> int:
        """Say where the first entry lies."""

    def strides(self, array: Any) -> tuple[int, ...]:
        """Say how many entries lie from one to the next."""

    def ids(self, ids: Any, array: Any) -> Any:
        """See ids of any library on a GPU as a packed int64 array on the array's device."""

    def uploaded(self, ids: NDArray[np.int64], array: Any) -> Any:
        """Copy ids to the array's device; nobody waits for it."""

    def on_host(self, array: Any) -> Any:
        """Wait for an array and copy it to the CPU."""

    def handed(self, array: Any) -> Any:
        """Hand a result over to the caller's library."""


class _Torch:
    def taken(self, array: Any) -> Any:
        return array.detach().resolve_neg()

    def on(self, array: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = sys.modules["torch"].cuda.device(array.device)
        return context

    def stream(self, array: Any) -> int:
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)

    def empty(self, array: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        named = array.dtype if dtype is None else getattr(sys.modules["torch"], dtype)
        return array.new_empty(shape, dtype=named)

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())

    def ids(self, ids: Any, array: Any) -> Any:
        torch = sys.modules["torch"]
        if not TORCH.owns(ids):
            ids = torch.from_dlpack(ids)
        return ids.detach().to(device=array.device, dtype=torch.int64).contiguous()

    def uploaded(self, ids: NDArray[np.int64], array: Any) -> Any:
        torch = sys.modules["torch"]
        return self.empty(array, ids.shape, "int64").copy_(torch.from_numpy(ids), non_blocking=True)

    def on_host(self, array: Any) -> Any:
        return array.cpu()

    def handed(self, array: Any) -> Any:
        return array


class _Cupy:
    def taken(self, array: Any) -> Any:
        size = array.dtype.itemsize
        if all(stride % size == 0 for stride in array.strides):
            return array
        return array.copy()  # a field of a record: no whole number of entries apart

    def on(self, array: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = array.device
        return context

    def stream(self, array: Any) -> int:  # noqa: ARG002 - as the protocol has it
        return int(cupy().cuda.get_current_stream().ptr)

    def empty(self, array: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        return cupy().empty(shape, dtype=array.dtype if dtype is None else dtype)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(stride // array.dtype.itemsize for stride in array.strides)

    def ids(self, ids: Any, array: Any) -> Any:  # noqa: ARG002
        if not CUPY.owns(ids):
            ids = exported(ids)
        return cupy().ascontiguousarray(ids, dtype="int64")

    def uploaded(self, ids: NDArray[np.int64], array: Any) -> Any:  # noqa: ARG002
        return cupy().asarray(ids)

    def on_host(self, array: Any) -> Any:
        return array.get()

    def handed(self, array: Any) -> Any:
        return array


class _Jax(_Cupy):
    """JAX arrays: read where they are, answered with copies of CuPy's results.

    A copy of JAX's is queued on a stream of JAX's, of which CuPy knows nothing: until the copy is
    there, CuPy's memory must not be used for anything else.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Any, Any]] = []
        self._lock = Lock()

    def taken(self, array: Any) -> Any:
        return exported(array)

    def handed(self, array: Any) -> Any:
        copy = sys.modules["jax"].dlpack.from_dlpack(array, copy=True)
        with self._lock:
            self._held = [pair for pair in self._held if not pair[0].is_ready()]
            self._held.append((copy, array))
        return copy


class _Dlpack(_Cupy):
    """Arrays of any other library: results are its own if it can import them, else CuPy's."""

    def __init__(self, library: Any) -> None:
        self._import = getattr(library, "from_dlpack", None)

    def taken(self, array: Any) -> Any:
        return exported(array)

    def handed(self, array: Any) -> Any:
        return array if self._import is None else self._import(array)


_TORCH = _Torch()
_CUPY = _Cupy()
_JAX = _Jax()


def owner_of(array: Any) -> Owner:
    """Find who owns the results for an array on a GPU."""
    if TORCH.owns(array):
        return _TORCH
    if JAX.owns(array):
        return _JAX
    if not DLPACK.owns(array) or CUPY.owns(array):
        return _CUPY
    if hasattr(array, "__array_namespace__"):
        return _Dlpack(array.__array_namespace__())
    return _Dlpack(sys.modules.get(type(array).__module__.partition(".")[0]))


class Spot(NamedTuple):
    """Where rows lie: address, and entries from one row, and from one entry, to the next."""

    address: int
    row: int
    entry: int


def spot(owner: Owner, array: Any) -> Spot:
    """Say where the entries of a vector, or of rows, lie."""
    strides = owner.strides(array)
    return Spot(owner.address(array), strides[0] if len(strides) > 1 else 0, strides[-1])


def ids_for(owner: Owner, ids: Any, rows: Any, *, check: bool) -> Any:
    """See one id for each of the rows as a packed int64 array on their device.

    Without `check`, nobody will look at what the kernels say of the ids: those that are on the CPU
    are looked at here.
    """
    count, vocabulary = rows.shape
    if not on_gpu(ids):
        look = _tokens.as_indices if check else _tokens.as_possible
        return owner.uploaded(look(ids, count, vocabulary), rows)
    kind = kind_of("draft_token_ids", ids)
    shape = tuple(ids.shape if kind is not DLPACK else exported(ids).shape)
    _tokens.expect_integers("draft_token_ids", kind.dtype(ids), shape, count)
    return owner.ids(ids, rows)
