"""What `gpu-check` compares with the CPU, for every array library alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftverify._api import accept_probs, accept_residual
from draftverify._core import speculative_decode_step

if TYPE_CHECKING:
    from draftverify._gpu_libraries import GpuLibrary

DTYPES = ("float32", "float16", "bfloat16", "float64")
SIZES = (1, 2, 255, 257, 4095, 4097, 32_000, 50_257, 128_256, 1_100_001)
_ZEROS = 0.1  # how many entries are 0
Bits = NDArray[Any]
Rows = tuple[Bits, Bits, NDArray[np.int64]]


def rows_of(dtype: str, count: int, size: int, seed: int = 0) -> Rows:
    """Make rows of many powers of two, so that sums in another order round differently.

    bfloat16 is made as its upper 16 bits of float32, which NumPy alone can hold.
    """
    rng = np.random.default_rng([seed, count, size])
    draft, target = (np.exp2(rng.uniform(-40, 0, (count, size))) for _ in range(2))
    draft[rng.random(draft.shape) < _ZEROS] = 0
    target[rng.random(target.shape) < _ZEROS] = 0
    ids = rng.integers(0, size, count)
    draft[np.arange(count), ids] = draft.max(-1) + 1
    draft /= draft.sum(-1, keepdims=True)
    target /= target.sum(-1, keepdims=True) + 1e-3
    target[0, ids[0]] = draft[0, ids[0]]  # a token that is kept for certain
    return narrowed(draft, dtype), narrowed(target, dtype), ids


def narrowed(numbers: Bits, dtype: str) -> Bits:
    """Round to a dtype; bfloat16 by cutting bits off, as 16-bit integers."""
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bits(array: Bits) -> Bits:
    """See the entries as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def expect_same(found: Bits, expected: Bits, what: str) -> None:
    """Compare every bit."""
    different = np.flatnonzero(bits(found).ravel() != bits(expected).ravel())
    if found.shape != expected.shape or different.size:
        message = f"{what}: {different.size} of {expected.size} entries differ"
        raise AssertionError(message)


def all_bits(library: GpuLibrary) -> str:
    """Compare steps and rows of every dtype, of sizes around every border."""
    compared = 0
    for dtype in DTYPES:
        for size in SIZES:
            compare(library, rows_of(dtype, 3, size), dtype)
            compared += 3
    return f"{compared} rows and as many steps, {', '.join(DTYPES)}, up to {max(SIZES)} entries"


def compare(library: GpuLibrary, rows: Rows, dtype: str) -> None:
    """Compare what GPU and CPU answer for rows, and for the last of them alone."""
    ids = rows[2]
    on_cpu, on_gpu = library.both_on_cpu(rows, dtype), library.both_on_gpu(rows, dtype)
    expected = accept_residual(*on_cpu, ids)
    found = accept_residual(*on_gpu, ids)
    what = f"{dtype}, {rows[0].shape}"
    for name, got, wanted in zip(expected._fields, found, expected, strict=True):
        expect_same(library.bits(got), library.bits(wanted), f"{name} of {what}")
    alone = accept_probs(*on_gpu, ids)
    expect_same(library.bits(alone), library.bits(expected[0]), f"accept_probs of {what}")
    token = int(ids[-1])
    step = speculative_decode_step(on_gpu[0][-1], on_gpu[1][-1], token)
    alike = speculative_decode_step(on_cpu[0][-1], on_cpu[1][-1], token)
    if step["accept_prob"] != alike["accept_prob"]:
        message = f"accept_prob of a step of {what}: {step['accept_prob']}"
        raise AssertionError(message)
    residual = library.bits(step["residual"])
    expect_same(residual, library.bits(alike["residual"]), f"residual of a step of {what}")


def subnormals(library: GpuLibrary) -> str:
    """Compare rows in which nothing but subnormal numbers is left: CuPy asks to flush them."""
    for dtype in DTYPES:
        tiny = np.arange(1, 9, dtype=np.uint64 if dtype == "float64" else np.uint32)
        if dtype in ("float16", "bfloat16"):
            tiny = tiny.astype(np.uint16)
        target = tiny[None] if dtype == "bfloat16" else tiny.view(dtype)[None]
        draft = target[:, ::-1].copy()
        compare(library, (draft, target, np.zeros(1, np.int64)), dtype)
    return "kept"


def _bad_rows() -> Iterator[tuple[str, Rows]]:
    for what in ("nan", "inf", "negative", "overflow", "no draft", "range"):
        draft, target, ids = rows_of("float32", 4, 5000)
        if what == "nan":
            target[2, 4321] = np.nan
        elif what == "inf":
            draft[2, 3] = np.inf
        elif what == "negative":
            target[2, 7] = -0.25
        elif what == "overflow":
            target[2] = np.finfo(np.float32).max
        elif what == "no draft":
            draft[2, ids[2]] = 0
        else:
            ids[2] = 5000
        yield what, (draft, target, ids)


def bad_values(library: GpuLibrary) -> str:
    """Compare the errors, and that without `check` such a row answers NaN and others as before."""
    for what, rows in _bad_rows():
        on_gpu, ids = library.both_on_gpu(rows), library.ids(rows[2])
        wanted, found = _error(*rows), _error(*on_gpu, ids)
        if wanted is None or wanted != found:
            message = f"{what}: {found!r} instead of {wanted!r}"
            raise AssertionError(message)
        answer = accept_residual(*on_gpu, ids, check=False)
        nan = np.isnan(library.bits(answer.mass).view(np.float64))
        if nan.tolist() != [False, False, True, False]:
            message = f"{what}: NaN in rows {np.flatnonzero(nan).tolist()} without check"
            raise AssertionError(message)
    return "the errors of the CPU; NaN without check"


def _error(*arguments: Any) -> str | None:
    try:
        accept_residual(*arguments)
    except ValueError as error:
        return str(error)
    return None


OF_EVERY_LIBRARY: dict[str, Callable[[GpuLibrary], str]] = {
    "the bits of the CPU": all_bits,
    "subnormal numbers": subnormals,
    "bad values": bad_values,
}
