"""What several threads gain, and what rows cost in memory: `python benches/threads.py`.

The figures of DESIGN.md about threads come from here. Three tables: one row by one and by all
threads, with the workers awake, with workers asleep and caches cold, and with every core taken by
another process; calls from several Python threads; the peak memory of many rows.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import draftverify

SIZES = (65_536, 128_256, 262_144, 524_288, 1_000_000)
LOOKS = 60
ROWS, VOCABULARY = 32, 262_144

Rows = NDArray[np.float32]


def rows(*shape: int) -> tuple[Rows, Rows]:
    """Two laws as a model and its draft have them."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, shape)
    both = []
    for noise in (0.7, 0.0):
        law = np.exp(logits + noise * rng.normal(0, 1, shape))
        both.append((law / law.sum(-1, keepdims=True)).astype(np.float32))
    return both[0], both[1]


def microseconds(call: Callable[[], object], before: Callable[[], object]) -> float:
    """Time one call after some preparation, which is not timed."""
    before()
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def in_turns(vocabulary: int, before: Callable[[], object]) -> list[float]:
    """Time a step by one thread and by all, in turns: medians."""
    draft, target = rows(vocabulary)
    token, times = int(draft.argmax()), dict[int, list[float]]()
    for _ in range(LOOKS):
        for threads in (1, os.cpu_count() or 1):
            draftverify.set_num_threads(threads)
            look = microseconds(
                lambda: draftverify.speculative_decode_step(draft, target, token), before
            )
            times.setdefault(threads, []).append(look)
    return [statistics.median(found) for found in times.values()]


def one_row() -> None:
    """Print what several threads gain on one row."""
    other = np.zeros(16_000_000)

    def cold() -> None:
        other.sum()  # evicts the rows
        time.sleep(0.005)  # the workers fall asleep

    def warm() -> None:
        draft, target = rows(4)
        draftverify.speculative_decode_step(draft, target, 0)

    print("one float32 row, medians in microseconds: one thread, all threads, ratio")
    for name, before, busy in (("awake", warm, 0), ("asleep, cold", cold, 0), ("busy", warm, 1)):
        spin = [sys.executable, "-c", "while True: pass"]
        others = [subprocess.Popen(spin) for _ in range(busy * (os.cpu_count() or 1))]
        for vocabulary in SIZES:
            one, all_ = in_turns(vocabulary, before)
            print(f"  {name:>12} {vocabulary:>9,} {one:9.1f} {all_:9.1f} {all_ / one:6.2f}")
        for process in others:
            process.kill()


def calls_a_second(number: int, draft: Rows, target: Rows) -> float:
    """Count the calls of so many Python threads."""
    token, counts, end = int(draft.argmax()), [0] * number, time.perf_counter() + 1.5

    def work(at: int) -> None:
        while time.perf_counter() < end:
            draftverify.speculative_decode_step(draft, target, token)
            counts[at] += 1

    workers = [threading.Thread(target=work, args=(at,)) for at in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / 1.5


def callers() -> None:
    """Print how calls from several Python threads scale, each call on its own thread alone."""
    draftverify.set_num_threads(1)
    print("calls a second from one Python thread, from one for each core, ratio")
    for vocabulary in (2, 1024, 32_000, 128_256):
        both = rows(vocabulary)
        one, all_ = (calls_a_second(number, *both) for number in (1, os.cpu_count() or 1))
        print(f"  {vocabulary:>9,} {one:11,.0f} {all_:11,.0f} {all_ / one:6.2f}")


def memory(kind: str) -> None:
    """Print by how much the peak of this process grows through one call."""
    # Made without temporaries, whose peak would hide what comes behind.
    draft, target = (np.full(VOCABULARY, 1 / VOCABULARY, np.float32) for _ in range(2))
    target[::2] *= np.float32(1.5)
    target[1::2] *= np.float32(0.5)
    draft, target = (np.broadcast_to(each, (ROWS, VOCABULARY)) for each in (draft, target))
    ids = np.zeros(ROWS, np.int64)
    out = None if kind == "fresh" else np.ones((ROWS, VOCABULARY), np.float32)
    draftverify.accept_residual(draft[:1], target[:1], ids[:1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    draftverify.accept_residual(draft, target, ids, out=out)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    output = ROWS * VOCABULARY * 4 // 1024
    print(f"  {kind} output of {output:,} kB: {more:,} kB more at the peak")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        memory(sys.argv[1])
    else:
        one_row()
        callers()
        print(f"{ROWS} rows of {VOCABULARY:,} float32")
        for kind in ("fresh", "reused"):
            sys.stdout.flush()
            subprocess.run([sys.executable, __file__, kind], check=True)
