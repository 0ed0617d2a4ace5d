"""What is used of CuPy, and of what stands for it in these tests, against CuPy itself.

It can be imported without a GPU, and its arrays made of any memory; nothing can be launched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftverify import _cuda_arrays, _device_kinds
from fakes import CupyArray, cupy_module
from kinds import DTYPES, need


def array_over(memory: NDArray[Any], device: int = 0) -> Any:
    """Make an array of CuPy's over memory of NumPy's."""
    cupy = need("cupy")
    whole = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, device)
    pointer = cupy.cuda.MemoryPointer(whole, 0)
    return cupy.ndarray(memory.shape, memory.dtype, pointer, memory.strides)


def test_the_double_has_nothing_that_cupy_lacks() -> None:
    cupy, double = need("cupy"), cupy_module()

    def expect_all(ours: Any, theirs: Any, where: str) -> None:
        for name in vars(ours):
            if name.startswith("__") and name not in (
                "__dlpack__",
                "__dlpack_device__",
                "__getitem__",
            ):
                continue
            assert hasattr(theirs, name), f"{where}.{name}"

    expect_all(double, cupy, "cupy")
    expect_all(double.cuda, cupy.cuda, "cupy.cuda")
    expect_all(double.cuda.runtime, cupy.cuda.runtime, "cupy.cuda.runtime")
    expect_all(CupyArray, cupy.ndarray, "cupy.ndarray")
    mine = set(vars(CupyArray(np.zeros(1), 0))) - {"memory"}
    assert mine == {"device", "data", "shape", "strides", "dtype"}
    for name in mine:
        assert hasattr(cupy.ndarray, name)
    for name in ("__enter__", "__exit__", "id"):
        assert hasattr(cupy.cuda.Device, name)


def test_where_its_entries_lie(dtype: str) -> None:
    rows = np.zeros((3, 8), DTYPES[dtype])
    array = array_over(rows)
    assert _device_kinds.CUPY.owns(array)
    assert _device_kinds.CUPY.dtype(array) == dtype
    assert _device_kinds.CUPY.device(array) == "cuda:0"
    owner = _cuda_arrays.owner_of(array)
    for view, like in ((array, rows), (array[1:, ::2], rows[1:, ::2]), (array[::-1], rows[::-1])):
        assert owner.taken(view) is view
        spot = _cuda_arrays.spot(owner, view)
        size = rows.itemsize
        assert spot == (like.ctypes.data, like.strides[0] // size, like.strides[1] // size)
        where = _device_kinds.addresses(view)
        assert (where.ctypes.data, where.strides) == (like.ctypes.data, like.strides)
    assert _cuda_arrays.spot(owner, array[2, 1:]) == (rows[2, 1:].ctypes.data, 0, 1)


def test_a_module_takes_what_it_is_given() -> None:
    """The double of `RawModule` has no other arguments; compiling would need a driver."""
    module = need("cupy").RawModule(code="", options=("-std=c++17",))
    assert callable(module.get_function)
    with pytest.raises(TypeError):
        need("cupy").RawModule(code="", option=())
