"""The times that `gpu-check` reports. They are read, not judged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from draftverify._api import accept_residual
from draftverify._core import speculative_decode_step
from draftverify._gpu_checks import rows_of

_ROWS, _VOCABULARY = 512, 128_256
_TURNS, _CALLS = 20, 1000


def device_seconds(call: Callable[[], object]) -> float:
    """Measure on the GPU how long the work of a call takes: the median of some turns."""
    cuda = import_module("cupy").cuda
    call()
    found: list[float] = []
    for _ in range(_TURNS):
        start, end = cuda.Event(), cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(cuda.get_elapsed_time(start, end) / 1e3)
    return statistics.median(found)


def _rows(cupy: Any, dtype: str, count: int) -> tuple[Any, Any, Any]:
    draft, target, ids = rows_of(dtype, 4, _VOCABULARY)
    times = -(-count // 4)
    tiled = (cupy.tile(cupy.asarray(side), (times, 1))[:count] for side in (draft, target))
    return *tiled, cupy.tile(cupy.asarray(ids), times)[:count]


def bandwidth() -> str:
    """Compare many rows with a copy of as many bytes as have to be read and written."""
    cupy, said = import_module("cupy"), []
    for dtype in ("float32", "float16"):
        draft, target, ids = _rows(cupy, dtype, _ROWS)
        out, other = cupy.empty_like(draft), cupy.empty_like(draft)
        seconds = device_seconds(partial(accept_residual, draft, target, ids, out=out, check=False))
        copy = device_seconds(partial(cupy.copyto, other, draft))
        bytes_moved = 3 * draft.nbytes  # two rows read, one written, once each
        rate, copied = bytes_moved / seconds, 2 * draft.nbytes / copy
        said.append(
            f"{dtype} {seconds * 1e6:.0f} us, {rate / 1e12:.2f} TB/s, "
            f"{rate / copied:.0%} of a device copy's {copied / 1e12:.2f} TB/s"
        )
    return f"{_ROWS} rows of {_VOCABULARY}: " + "; ".join(said)


def latency() -> str:
    """Measure a step from call to answer, and the same of rows without a wait."""
    cupy = import_module("cupy")
    draft, target, ids = _rows(cupy, "float32", 1)
    token = int(ids.get()[0])

    def per_call(call: Callable[[], object]) -> float:
        for _ in range(_CALLS // 10):
            call()
        cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        elapsed = time.perf_counter() - start
        cupy.cuda.get_current_stream().synchronize()
        return elapsed / _CALLS * 1e6

    step = per_call(lambda: speculative_decode_step(draft[0], target[0], token))
    queued = per_call(lambda: accept_residual(draft, target, ids, check=False))
    return f"a step of {_VOCABULARY} {step:.1f} us, queueing a row {queued:.1f} us"


TIMES: dict[str, Callable[[], str]] = {"bandwidth": bandwidth, "time of a call": latency}
