"""`python -m draftverify bench`: how long a step takes on this machine, beside other ways.

What is measured is gathered here as plain data, which `--json` prints as it is; `_bench_text` makes
text of it. The TypedDicts are the document: their keys stay.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple, TypedDict

from draftverify import __version__, _bench_text, get_num_threads
from draftverify._bench_contenders import CONTENDERS, Call, Contender
from draftverify._bench_work import Difference, Work, difference, load, on_threads, pose
from draftverify._machine import Machine, machine

TURN_SECONDS = 2e-3
# Before a turn: until the threads of whoever had the turn before have gone to sleep.
REST_SECONDS = 3e-3
FEWEST_TURNS = 5


class Timing(TypedDict):
    """Times of one call, over turns of many calls each; `ratio` is to draftverify's median."""

    contender: str
    turns: int
    calls_a_turn: int
    median_seconds: float
    lower_quartile_seconds: float
    upper_quartile_seconds: float
    ratio: float
    agrees: bool
    accept_prob_difference: float
    residual_difference: float


class Result(TypedDict):
    """One piece of work; `rows` is None for the function of one row."""

    rows: int | None
    vocabulary_size: int
    dtype: str
    threads: int
    timings: list[Timing]
    unsupported: list[str]
    failed: dict[str, str]


class Loss(TypedDict):
    """Work that another way does in less time."""

    rows: int | None
    vocabulary_size: int
    dtype: str
    threads: int
    slower: str
    faster: str
    ratio: float
    spreads_overlap: bool


class Report(TypedDict):
    """All that the bench shows."""

    versions: dict[str, str]
    machine: Machine
    load_average: float | None
    quick: bool
    contenders: dict[str, str]
    absent: dict[str, str]
    results: list[Result]
    losses: list[Loss]


class Effort(NamedTuple):
    """How much to measure."""

    seconds: float
    vocabulary_sizes: tuple[int, ...]
    rows: int


FULL = Effort(seconds=3.0, vocabulary_sizes=(2, 1024, 32_000, 128_256, 262_144), rows=32)
QUICK = Effort(seconds=0.2, vocabulary_sizes=(2, 32_000, 262_144), rows=4)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="time a step on this machine, beside NumPy, Torch, JAX, numba",
        description="Time a step on this machine beside NumPy, Torch, JAX, numba and "
        "flashspec-asm-kernel, where they are installed. All take turns in one process, within a "
        "minute; figures are as good as the machine is quiet.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, numbers at full precision"
    )
    parser.add_argument(
        "--quick", action="store_true", help="some ten seconds: shorter looks, fewer sizes and rows"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print what came of it."""
    found = report(quick=arguments.quick)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(_bench_text.render(found, sys.stdout.encoding or "ascii"))


def report(*, quick: bool) -> Report:
    """Time all that can be imported at all that there is to do."""
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    effort = QUICK if quick else FULL
    absent = _absentees()
    present = [each for each in CONTENDERS if _distribution(each.module) not in absent]
    plan = [
        (work, threads)
        for work, threads in _plan(effort, get_num_threads())
        if work.dtype != "bfloat16" or "ml-dtypes" not in absent
    ]
    results = []
    for number, (work, threads) in enumerate(plan, start=1):
        _progress(f"[{number}/{len(plan)}] {work}, {threads} thread{'s' * (threads > 1)}")
        with on_threads(threads):
            results.append(_result(work, threads, present, effort.seconds))
    _progress("")
    modules = dict.fromkeys(each.module for each in present)
    return {
        "versions": {"draftverify": __version__, "python": platform.python_version()}
        | {_distribution(module): _version(module) for module in modules},
        "machine": machine(),
        "load_average": load_average,
        "quick": quick,
        "contenders": {each.name: each.about for each in present},
        "absent": absent,
        "results": results,
        "losses": [loss for result in results for loss in losses(result)],
    }


def _plan(effort: Effort, all_threads: int) -> list[tuple[Work, int]]:
    """List the works, each with a number of threads: one, and all where that may be faster."""
    plan = [(Work(size), 1) for size in effort.vocabulary_sizes]
    plan += [(Work(128_256, dtype), 1) for dtype in ("float64", "float16", "bfloat16")]
    rows = Work(128_256, rows=effort.rows)
    plan.append((rows, 1))
    if all_threads > 1:
        plan += [(Work(effort.vocabulary_sizes[-1]), all_threads), (rows, all_threads)]
    return plan


def _absentees() -> dict[str, str]:
    """Import what there is; name what there is not, and why."""
    absent = {}
    for module in dict.fromkeys([*(each.module for each in CONTENDERS), "ml_dtypes"]):
        _progress(f"importing {module}")
        try:
            load(module)
        except Exception as error:  # broken libraries say so in many ways
            absent[_distribution(module)] = f"{type(error).__name__}: {error}"
    return absent


def _distribution(module: str) -> str:
    return module.replace("_", "-")


def _version(module: str) -> str:
    try:
        return metadata.version(_distribution(module))
    except metadata.PackageNotFoundError:
        return "unknown"


def _result(work: Work, threads: int, present: Sequence[Contender], seconds: float) -> Result:
    problem = pose(work)
    calls: dict[str, Call] = {}
    answers: dict[str, Any] = {}
    unsupported, failed = [], {}
    for contender in present:
        try:
            call = contender.prepare(work, problem)
            if call is None:
                unsupported.append(contender.name)
            else:
                answers[contender.name] = call()  # compiles whatever there is to compile
                calls[contender.name] = call
        except Exception as error:
            if contender is present[0]:
                raise
            failed[contender.name] = f"{type(error).__name__}: {error}"
    expected = answers[present[0].name]
    differences = {name: difference(answer, expected) for name, answer in answers.items()}
    del answers, expected
    timings = _timings(calls, differences, work.dtype, seconds)
    return {
        "rows": work.rows,
        "vocabulary_size": work.vocabulary_size,
        "dtype": work.dtype,
        "threads": threads,
        "timings": timings,
        "unsupported": unsupported,
        "failed": failed,
    }


def _timings(
    calls: Mapping[str, Call], differences: Mapping[str, Difference], dtype: str, seconds: float
) -> list[Timing]:
    turns = measure(calls, seconds)
    base = statistics.median(turns["draftverify"].seconds)
    timings: list[Timing] = []
    for name, taken in turns.items():
        lower, median, upper = statistics.quantiles(taken.seconds, n=4, method="inclusive")
        timings.append(
            {
                "contender": name,
                "turns": len(taken.seconds),
                "calls_a_turn": taken.calls,
                "median_seconds": median,
                "lower_quartile_seconds": lower,
                "upper_quartile_seconds": upper,
                "ratio": median / base,
                "agrees": differences[name].is_small(dtype),
                "accept_prob_difference": differences[name].accept_prob,
                "residual_difference": differences[name].residual,
            }
        )
    return timings


class Turns(NamedTuple):
    """How many calls a turn has, and the time of a call in each of the turns."""

    calls: int
    seconds: list[float]


def measure(calls: Mapping[str, Call], seconds: float) -> dict[str, Turns]:
    """Time calls in turns of some milliseconds, so that all meet the same disturbances.

    Every other round goes the other way round, so that nobody always follows the same one.
    """
    turns: dict[str, Turns] = {}
    collected = gc.isenabled()
    gc.disable()
    try:
        for name, call in calls.items():
            call()
            turns[name] = Turns(max(1, round(TURN_SECONDS / max(_time(call, 3), 1e-7))), [])
        order = list(calls)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(turns[order[0]].seconds) < FEWEST_TURNS:
            for name in order:
                call, count = calls[name], turns[name].calls
                time.sleep(REST_SECONDS)
                _time(call, count // 2 + 1)  # wakes its own threads, and fills the caches
                turns[name].seconds.append(_time(call, count))
            order.reverse()
    finally:
        if collected:
            gc.enable()
    return turns


def _time(call: Call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def losses(result: Result) -> list[Loss]:
    """Find who is faster: than draftverify on NumPy arrays, and than it is on Torch's tensors."""
    timings = {timing["contender"]: timing for timing in result["timings"]}
    others = [name for name in timings if not name.startswith("draftverify")]
    pairs = [("draftverify", name) for name in others]
    pairs += [("draftverify on Torch", name) for name in others if name == "Torch"]
    found: list[Loss] = []
    for ours, theirs in pairs:
        slower, faster = timings[ours], timings[theirs]
        if faster["median_seconds"] < slower["median_seconds"]:
            found.append(
                {
                    "rows": result["rows"],
                    "vocabulary_size": result["vocabulary_size"],
                    "dtype": result["dtype"],
                    "threads": result["threads"],
                    "slower": ours,
                    "faster": theirs,
                    "ratio": faster["median_seconds"] / slower["median_seconds"],
                    "spreads_overlap": faster["upper_quartile_seconds"]
                    >= slower["lower_quartile_seconds"],
                }
            )
    return found


def _progress(text: str) -> None:
    """Show what is going on, on one line, to somebody who watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<{_bench_text.WIDTH - 1}}\r")
        sys.stderr.flush()
