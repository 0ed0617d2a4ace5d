"""The calls of `python -m draftverify bench`, under pytest-benchmark.

`pytest benches/test_package.py` from the root of the repository, with what the extra `bench` names;
what is not installed is skipped. `--benchmark-disable` makes each call once and measures nothing,
`-k "float16 and not Torch"` chooses, `--benchmark-json` keeps the figures. A group is one piece of
work on one number of threads. Every call's answer is compared with the library's own first.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftverify import get_num_threads
from draftverify._bench_contenders import CONTENDERS, Contender
from draftverify._bench_work import Problem, Work, difference, load, on_threads, pose

VOCABULARY_SIZES = (2, 1024, 32_000, 128_256, 262_144)
DTYPES = ("float32", "float64", "float16", "bfloat16")
STEPS = [Work(size, dtype) for dtype in DTYPES for size in VOCABULARY_SIZES]
ROWS = [Work(128_256, dtype, rows=32) for dtype in DTYPES]
# What is known to have another answer: its time says nothing about the same work.
OTHER_ANSWERS = {("NumPy", "bfloat16")}


@pytest.fixture(scope="module")
def problem(request: pytest.FixtureRequest) -> Problem:
    """Make the rows once for all who work on them."""
    work: Work = request.param
    if work.dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return pose(work)


def _identify(value: Any) -> str | None:
    if isinstance(value, Work):
        return f"{value.rows or 1}x{value.vocabulary_size}-{value.dtype}"
    return value.name if isinstance(value, Contender) else None


def _works(works: list[Work]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("work", "problem"),
        [pytest.param(work, work, id=_identify(work)) for work in works],
        indirect=["problem"],
        scope="module",
    )


_contenders = pytest.mark.parametrize("contender", CONTENDERS, ids=_identify)


@_works(STEPS)
@_contenders
def test_one_row(benchmark: Any, contender: Contender, work: Work, problem: Problem) -> None:
    """Time one row on one thread."""
    _time(benchmark, contender, work, problem, threads=1)


@_works(ROWS)
@_contenders
@pytest.mark.parametrize("threads", sorted({1, get_num_threads()}))
def test_many_rows(
    benchmark: Any, contender: Contender, work: Work, problem: Problem, threads: int
) -> None:
    """Time many rows into the same output, on one thread and on all."""
    _time(benchmark, contender, work, problem, threads)


def _time(benchmark: Any, contender: Contender, work: Work, problem: Problem, threads: int) -> None:
    try:
        load(contender.module)
    except ImportError as error:
        pytest.skip(str(error))
    call = contender.prepare(work, problem)
    if call is None:
        pytest.skip(f"{contender.name} knows no {work.dtype}")
    benchmark.group = f"{work}, threads={threads}"
    with on_threads(threads):
        expected = CONTENDERS[0].prepare(work, problem)
        if expected is None or not difference(call(), expected()).is_small(work.dtype):
            if (contender.name, work.dtype) not in OTHER_ANSWERS:
                pytest.fail(f"{contender.name} has another answer")
            benchmark.extra_info["agrees"] = False
        benchmark(call)
