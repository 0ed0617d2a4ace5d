"""What holds in a process: threads, forks, start methods, imports, pickles.

Scenarios that fork run in a process of their own, with a time limit: this file is their program,
the name of the scenario its argument.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftverify import (
    AcceptResidual,
    accept_probs,
    accept_residual,
    get_num_threads,
    set_num_threads,
    speculative_decode_step,
)
from kinds import assert_same_bits, random_rows
from processes import TIME_LIMIT_S, run_python

# 100 000 entries in four rows: several times what rows are handed to the pool for.
PARALLEL = random_rows("float32", (4, 25_000))
TASKS = Path("/proc/self/task")


def assert_same_answers(got: Any, expected: Any) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert_same_bits(mine, theirs)


# Threads


def test_calls_from_many_threads_at_once_get_the_bits_of_one() -> None:
    threads = 8
    inputs: list[Any] = [random_rows("float32", (4, 25_000), seed) for seed in range(threads)]
    expected = [accept_residual(*rows) for rows in inputs]
    together = threading.Barrier(threads)

    def work(thread: int) -> None:
        draft, target, ids = inputs[thread]
        together.wait(TIME_LIMIT_S)
        for _ in range(10):
            assert_same_answers(accept_residual(draft, target, ids), expected[thread])
            assert_same_bits(accept_probs(draft, target, ids), expected[thread].accept_prob)
            step = speculative_decode_step(draft[1], target[1], int(ids[1]))
            assert step["accept_prob"] == expected[thread].accept_prob[1]
            assert_same_bits(step["residual"], expected[thread].residual[1])
            with pytest.raises(ValueError, match="drafted_token"):
                speculative_decode_step(draft[1], target[1], -1 - thread)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def test_threads_may_write_disjoint_parts_of_one_output() -> None:
    draft, target, ids = random_rows("float32", (16, 20_000))
    expected = accept_residual(draft, target, ids)
    out = np.full_like(draft, np.nan)

    def work(start: int) -> None:
        part = slice(start, start + 4)
        accept_residual(draft[part], target[part], ids[part], out=out[part])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 16, 4)))
    assert_same_bits(out, expected.residual)


# Forks


def in_child(body: Callable[[], None]) -> None:
    """Run `body` in a forked child, which must end well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:  # the child must end here, whatever it is
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def answer_as(expected: Any) -> None:
    """Call every function and compare."""
    draft, target, ids = PARALLEL
    assert_same_answers(accept_residual(draft, target, ids), expected)
    assert_same_bits(accept_probs(draft, target, ids), expected.accept_prob)
    step = speculative_decode_step(draft[0], target[0], int(ids[0]))
    assert step["accept_prob"] == expected.accept_prob[0]
    assert_same_bits(step["residual"], expected.residual[0])


def threads_here() -> int:
    """Count the threads of this process, as the system does."""
    return len(list(TASKS.iterdir()))


def parallel_call() -> Any:
    """Answer rows on the pool, and see that it has threads: otherwise a test shows nothing."""
    threads = threads_here()
    expected = accept_residual(*PARALLEL)
    assert threads_here() > threads, "the call did not use a pool"
    return expected


def fork_after_a_parallel_call() -> None:
    expected = parallel_call()
    for _ in range(3):
        in_child(lambda: answer_as(expected))
        in_child(lambda: assert_same_answers(parallel_call(), expected))  # on a pool of its own
    in_child(lambda: in_child(lambda: answer_as(expected)))  # a grandchild alone

    def with_other_threads(threads: int) -> None:
        set_num_threads(threads)
        answer_as(expected)

    for threads in (1, 2, 5):
        in_child(lambda threads=threads: with_other_threads(threads))  # type: ignore[misc]
    assert get_num_threads() == 3
    answer_as(expected)  # the parent's pool still works


def fork_before_any_parallel_call() -> None:
    rows = [accept_residual(*(part[row : row + 1] for part in PARALLEL)) for row in range(4)]
    expected = AcceptResidual(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))

    def child() -> None:
        assert_same_answers(parallel_call(), expected)  # with a pool of its own
        in_child(lambda: answer_as(expected))
        answer_as(expected)

    in_child(child)
    assert_same_answers(parallel_call(), expected)
    in_child(lambda: answer_as(expected))


def fork_during_parallel_calls() -> None:
    expected = parallel_call()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            accept_residual(*PARALLEL)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(30):
            in_child(lambda: answer_as(expected))
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def threads_come_and_go() -> None:
    """Change the number of threads while calls are being answered; none is left behind."""
    expected, at_first = parallel_call(), threads_here()
    with ThreadPoolExecutor(2) as callers:
        calls = [callers.submit(answer_as, expected) for _ in range(200)]
        for change in range(100):
            set_num_threads(change % 4 + 1)
            answer_as(expected)
        for call in calls:
            call.result()
    set_num_threads(3)
    answer_as(expected)
    end = time.monotonic() + TIME_LIMIT_S / 2
    while threads_here() > at_first:
        assert time.monotonic() < end, f"{threads_here()} threads where there were {at_first}"
        time.sleep(0.01)


def start_methods() -> None:
    expected = parallel_call()
    draft, target, ids = PARALLEL
    for method in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context(method).Pool(2) as pool:
            for answer in pool.starmap(accept_residual, [PARALLEL] * 4):
                assert_same_answers(answer, expected)
            one = pool.apply(speculative_decode_step, (draft[0], target[0], int(ids[0])))
            assert_same_bits(one["residual"], expected.residual[0])


SCENARIOS: dict[str, Callable[[], None]] = {
    "fork_after_a_parallel_call": fork_after_a_parallel_call,
    "fork_before_any_parallel_call": fork_before_any_parallel_call,
    "fork_during_parallel_calls": fork_during_parallel_calls,
    "start_methods": start_methods,
    "threads_come_and_go": threads_come_and_go,
}


linux = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@linux
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "fork" in name])
def test_forked_children_answer_as_their_parent(scenario: str) -> None:
    run_python(__file__, scenario)


@linux
def test_threads_come_and_go_with_the_number_that_is_asked_for() -> None:
    run_python(__file__, "threads_come_and_go")


@linux
def test_every_start_method_of_multiprocessing_works() -> None:
    run_python(__file__, "start_methods")


# Imports and pickles

PURITY = """
import sys, numpy as np
before = set(sys.modules)
def imported():
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    return new - set(sys.stdlib_module_names) - {"numpy"}

import draftverify
assert imported() == {"draftverify"}, imported()
rows = np.array([[0.75, 0.25]], np.float32), np.array([[0.5, 0.5]], np.float32)
draftverify.speculative_decode_step(rows[0][0], rows[1][0], 0)
draftverify.speculative_decode_step([0.75, 0.25], [0.5, 0.5], np.int64(0))
draftverify.accept_residual(*rows, [0])
draftverify.accept_probs(*rows, np.array([0]))
for wrong in (object(), "rows", 1.0, rows[0].astype(complex)[0], np.ma.masked_array(rows[0][0])):
    try:
        draftverify.speculative_decode_step(wrong, rows[1][0], 0)
    except TypeError:
        continue
    raise SystemExit(f"{wrong!r} was taken")
assert imported() == {"draftverify"}, imported()
"""


def test_nothing_but_numpy_is_imported() -> None:
    run_python("-c", PURITY)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_functions_and_answers_can_be_pickled(protocol: int) -> None:
    functions = (speculative_decode_step, accept_residual, accept_probs, set_num_threads)
    for function in functions:
        assert pickle.loads(pickle.dumps(function, protocol)) is function  # noqa: S301 - our own
    answer = accept_residual(*random_rows("float32", (3, 5)))
    back = pickle.loads(pickle.dumps(answer, protocol))  # noqa: S301 - our own
    assert type(back) is AcceptResidual
    assert_same_answers(back, answer)
    assert_same_answers(copy.deepcopy(answer), answer)


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
