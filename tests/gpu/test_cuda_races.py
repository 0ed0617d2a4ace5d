"""The text of the kernels under the sanitizers, and faults that must not go unseen.

Each CUDA thread is a thread of the system here. Blocks of 32 threads make rows of a few thousand
entries as long as rows of a million: several groups of chunks, and a counter that joins them.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import Any

import pytest

from draftverify import _cuda, accept_residual
from host_kernels import Answers, Rows, compiled, run_program
from kinds import DTYPES, assert_same_bits, lacking, random_rows

RACES = ("-DSHIM_THREADS", "-O1", "-fsanitize=thread")
MEMORY = ("-DSHIM_THREADS", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BARRIER = "__syncthreads();"
# 34 chunks of two sub-blocks, in two groups of chunks; the last sub-block is not full.
LONG = (2, 33 * 512 + 300)


def seen_by(flags: tuple[str, ...], rows: Rows, text: str) -> tuple[str, Answers | None]:
    """Run under a sanitizer; what it says, and what the kernels answer if it says nothing."""
    works(flags)
    done, answers = run_program(rows, text, *flags)
    return done.stderr.decode(), answers


@cache
def works(flags: tuple[str, ...]) -> None:
    """See that the compiler has the sanitizer, and the system lets it run."""
    text = _cuda.source("float32", 32)
    try:
        done, _ = run_program(random_rows("float32", (1, 3)), text, *flags)
    except subprocess.CalledProcessError:
        lacking(f"the compiler does not know {flags[-1]}")
    if b"FATAL" in done.stderr:  # as it says where it cannot map the memory that it needs
        lacking(done.stderr.decode().splitlines()[0])


def assert_clean(flags: tuple[str, ...], rows: Rows, block: int = 32) -> None:
    dtype = next(name for name, known in DTYPES.items() if known == rows[0].dtype)
    said, answers = seen_by(flags, rows, _cuda.source(dtype, block))
    assert answers is not None, said
    expected = accept_residual(*rows)
    for got, wanted in zip(answers[:3], (expected[1], expected[0], expected[2]), strict=True):
        assert_same_bits(got, wanted)


@pytest.mark.parametrize("flags", [RACES, MEMORY], ids=["races", "memory"])
def test_the_kernels_are_clean(dtype: str, flags: tuple[str, ...]) -> None:
    assert_clean(flags, random_rows(dtype, LONG))
    for size in (1, 255, 511, 513):
        assert_clean(flags, random_rows(dtype, (3, size)))


@pytest.mark.parametrize("flags", [RACES, MEMORY], ids=["races", "memory"])
def test_the_kernels_are_clean_with_as_many_threads_as_on_a_gpu(flags: tuple[str, ...]) -> None:
    assert_clean(flags, random_rows("float16", (2, 4500)), _cuda.BLOCK)


def barriers() -> list[Any]:
    """Every barrier of the text, by the line it is in."""
    text = _cuda.source("float32", 32)
    places = [match.start() for match in re.finditer(re.escape(BARRIER), text)]
    lines = [text[:place].count("\n") - 1 for place in places]  # two lines are in front
    return [
        pytest.param(place, id=f"line {line}") for place, line in zip(places, lines, strict=True)
    ]


@pytest.mark.parametrize("place", barriers())
def test_without_any_one_of_the_barriers_there_is_a_race(place: int) -> None:
    text = _cuda.source("float32", 32)
    text = text[:place] + text[place + len(BARRIER) :]
    said, answers = seen_by(RACES, random_rows("float32", LONG), text)
    assert answers is None
    assert "WARNING: ThreadSanitizer: data race" in said
    assert "kernel.cu" in said


FAULTS = {
    "all threads write": (
        RACES,
        "if (thread == 0) sums[blockIdx.x] = lanes[0];",
        "sums[blockIdx.x] = lanes[0] + thread;",
        "data race",
    ),
    "reads past the row": (
        MEMORY,
        "bits[turn] = turn < left ? *at : (Bits)0;",
        "bits[turn] = *at;",
        "heap-buffer-overflow",
    ),
    "writes past the row": (
        MEMORY,
        "if (turn < left) *slot = quotient;",
        "*slot = quotient;",
        "heap-buffer-overflow",
    ),
    "believes an id": (
        MEMORY,
        "if (token < 0 || token >= vocabulary) return false;",
        "",
        "AddressSanitizer",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_faults_are_seen(fault: str) -> None:
    flags, right, wrong, says = FAULTS[fault]
    text = _cuda.source("float32", 32)
    assert text.count(right) == 1
    draft, target, ids = random_rows("float32", (2, 700))
    ids[1] = 1 << 40 if fault == "believes an id" else ids[1]
    assert seen_by(flags, (draft, target, ids), text)[1] is not None
    said, answers = seen_by(flags, (draft, target, ids), text.replace(right, wrong))
    assert answers is None
    assert says in said


def test_a_barrier_that_some_threads_miss_is_seen() -> None:
    """It hangs a GPU, or worse; where blocks are fibers it ends the program."""
    before = "  lanes[thread] = good"
    text = _cuda.source("float32", 32)
    assert text.count(before) == 1
    text = text.replace(before, f"  if (thread < 8) {BARRIER}\n{before}")
    done, answers = run_program(random_rows("float32", (1, 300)), text, "-O1")
    assert answers is None
    assert b"a barrier that some threads never reach" in done.stderr


def test_a_text_that_does_not_compile_is_no_skip() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compiled(
            "#define BLOCK 32\n#define STORAGE Float8\n" + _cuda.source("float32"), "-DPROGRAM"
        )
