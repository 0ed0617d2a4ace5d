"""Repeated calls leave memory and reference counts as they are, also calls that fail.

Memory is measured in a process of its own: this file is its program, the library its argument.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from draftverify import AcceptResidual, accept_probs, accept_residual, speculative_decode_step
from kinds import need, random_rows
from processes import run_python

Call = Callable[[], object]
LIBRARIES = {"numpy": 3000, "torch": 1000}  # and how often a small call is repeated


class Inputs:
    """Rows of one library, small and large, and the calls that are made with them."""

    def __init__(self, library: str) -> None:
        draft, target, ids = random_rows("float32", (3, 64))
        large = random_rows("float32", (4, 25_000))
        self.ids, self.large_ids = ids, large[2]
        self.draft: Any = draft
        self.target: Any = target
        self.large_draft: Any = large[0]
        self.large_target: Any = large[1]
        self.narrow_draft: Any = draft.astype(ml_dtypes.bfloat16)
        self.narrow_target: Any = target.astype(ml_dtypes.bfloat16)
        self.out: Any = np.empty_like(draft)
        if library == "torch":
            torch = need("torch")
            for name in ("draft", "target", "large_draft", "large_target", "out"):
                setattr(self, name, torch.from_numpy(getattr(self, name)))
            self.narrow_draft, self.narrow_target = (
                torch.from_numpy(array).to(torch.bfloat16) for array in (draft, target)
            )

    def answered(self) -> list[Call]:
        """Small calls that succeed, on every way through the package."""
        draft, target, ids, token = self.draft, self.target, self.ids, int(self.ids[0])
        narrow_draft, narrow_target = self.narrow_draft, self.narrow_target
        row, other = draft[0], target[0]
        return [
            lambda: speculative_decode_step(row, other, token),
            lambda: speculative_decode_step(narrow_draft[0], narrow_target[0], token),
            lambda: speculative_decode_step(row, other, np.int64(token)),
            lambda: speculative_decode_step([0.75, 0.25], [0.5, 0.5], 0),
            lambda: accept_residual(draft, target, ids),
            lambda: accept_residual(narrow_draft, narrow_target, ids.tolist()),
            lambda: accept_residual(draft, target, ids, out=self.out),
            lambda: accept_residual(draft, target, ids, check=False),
            lambda: accept_probs(draft, target, ids),
        ]

    def refused(self) -> list[Call]:
        """Small calls that fail: in the compiled part, and in each check before it."""
        draft, target, ids, token = self.draft, self.target, self.ids, int(self.ids[0])
        row, other, narrow = draft[0], target[0], self.narrow_target[0]
        no_token: Any = "0"
        nan = np.full((1, 64), np.nan, np.float32)
        calls: list[Call] = [
            lambda: speculative_decode_step(row, other, -1),
            lambda: speculative_decode_step(nan[0], nan[0], 0),
            lambda: speculative_decode_step(row, narrow, token),
            lambda: speculative_decode_step(draft, target, token),
            lambda: speculative_decode_step(row, other, no_token),
            lambda: accept_residual(nan, nan, [0]),
            lambda: accept_residual(draft, target, ids, out=draft),
            lambda: accept_probs(draft, target, ids[:2]),
        ]
        return [must_fail(call) for call in calls]

    def large(self) -> list[Call]:
        """Large calls: on the pool, and without the interpreter's lock."""
        draft, target, ids = self.large_draft, self.large_target, self.large_ids
        return [
            lambda: accept_residual(draft, target, ids),
            lambda: speculative_decode_step(draft[0], target[0], int(ids[0])),
        ]


def must_fail(call: Call) -> Call:
    def refused() -> None:
        with suppress(TypeError, ValueError):
            call()
            message = "a call that should have failed has not"
            raise AssertionError(message)

    return refused


def measure(library: str) -> None:
    """Repeat each call; compare the objects that Python has and the pages of the process."""
    inputs, often = Inputs(library), LIBRARIES[library]
    gc.freeze()  # what the libraries have made so far need not be looked through each time
    small = [(call, often) for call in (*inputs.answered(), *inputs.refused())]
    for number, (call, times) in enumerate([*small, *((call, 200) for call in inputs.large())]):
        for _ in range(times):  # what is made once is made by now
            call()
        gc.collect()
        blocks, resident = sys.getallocatedblocks(), resident_bytes()
        for _ in range(times):
            call()
        gc.collect()
        blocks, resident = sys.getallocatedblocks() - blocks, resident_bytes() - resident
        assert blocks < times // 10, f"call {number}: {blocks} objects more after {times} calls"
        # A leaked row of the small calls comes to 256 kB at least, one of the large calls to 6 MB.
        assert resident < 200_000, f"call {number}: {resident} bytes more after {times} calls"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("library", LIBRARIES)
def test_repeated_calls_leave_memory_as_it_is(library: str) -> None:
    need(library)
    run_python(__file__, library)


@pytest.mark.parametrize("library", LIBRARIES)
def test_repeated_calls_leave_reference_counts_as_they_are(library: str) -> None:
    need(library)
    inputs = Inputs(library)
    calls = [*inputs.answered(), *inputs.refused(), *inputs.large()]
    shared = [
        *vars(inputs).values(),
        *(np.dtype(name) for name in ("float16", "float32", "float64", "int64", "int16")),
        np.dtype(ml_dtypes.bfloat16),
        *(None, True, False, 0, (), "accept_prob", "residual"),
        *(np.ndarray, dict, AcceptResidual),
    ]
    for call in calls:
        call()
    before = [sys.getrefcount(thing) for thing in shared]
    for call in calls:
        for _ in range(100):
            call()
    after = [sys.getrefcount(thing) for thing in shared]
    for thing, was, now in zip(shared, before, after, strict=True):
        # Others in the process use None and the like too, but not a hundred times.
        assert abs(now - was) < 50, f"{thing!r}: {was} references became {now}"


if __name__ == "__main__":
    measure(sys.argv[1])
