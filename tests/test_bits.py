"""The bits of every result, against the order of the sum as it is written down, in plain NumPy.

Nothing here looks at how the library does it. The second half shows that the order depends on the
vocabulary alone: not on where a row lies, in which library, on which thread or instructions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftverify import (
    accept_probs,
    accept_residual,
    get_num_threads,
    set_num_threads,
    speculative_decode_step,
)
from kinds import DTYPES, SIZES, Kind, assert_same_bits, random_rows

Row = NDArray[Any]


def excess_of(draft: Row, target: Row) -> Row:
    """Subtract in float32, or in float64 if the rows are, and keep what is above zero."""
    between = np.float64 if draft.dtype == np.float64 else np.float32
    difference = target.astype(between) - draft.astype(between)
    return np.where(difference > 0, difference, between(0))


def sub_block_sum(entries: Row) -> float:
    """Add up to 256 entries: 16 lanes side by side, folded 8-4-2-1."""
    lanes = np.zeros(16)
    for start in range(0, len(entries), 16):
        turn = entries[start : start + 16]
        lanes[: len(turn)] += turn
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    return float(lanes[0])


def block_sums(entries: Row, width: int = 256) -> list[float]:
    starts = range(0, len(entries), width)
    return [sub_block_sum(entries[start : start + width]) for start in starts]


def tree_sum(leaves: list[float]) -> float:
    """Add pairwise: a full tree of as many leaves as possible, plus the tree of the rest."""
    if len(leaves) == 1:
        return leaves[0]
    full = 1
    while 2 * full < len(leaves):
        full *= 2
    return tree_sum(leaves[:full]) + tree_sum(leaves[full:])


def by_the_book(draft: Row, target: Row) -> tuple[Row, float]:
    """Compute residual and mass of a row."""
    excess = excess_of(draft, target)
    mass = tree_sum(block_sums(excess.astype(np.float64)))
    divisor = excess.dtype.type(mass) if mass > 0 else excess.dtype.type(1)
    return (excess / divisor).astype(draft.dtype), mass


@pytest.mark.parametrize("size", [*SIZES, 1281, 1793, 2048, 2305, 32_000, 128_256, 300_001])
def test_bits_by_the_book(dtype: str, size: int) -> None:
    draft, target, ids = random_rows(dtype, (8 if size < 5000 else 1, size), seed=size)
    found = accept_residual(draft, target, ids)
    for row, token in enumerate(ids.tolist()):
        pair: tuple[Row, Row] = (draft[row], target[row])
        residual, mass = by_the_book(*pair)
        assert_same_bits(found.mass[row : row + 1], np.array([mass]))
        assert_same_bits(found.residual[row], residual)
        step = speculative_decode_step(*pair, token)
        assert_same_bits(step["residual"], residual)
        ratio = float(target[row, token]) / float(draft[row, token])
        assert step["accept_prob"] == found.accept_prob[row] == min(1.0, ratio)


OTHER_ORDERS: dict[str, Callable[[Row], float]] = {
    "one after the other": lambda entries: sum(entries.tolist()),
    "NumPy's": lambda entries: float(entries.sum()),
    "no blocks": sub_block_sum,
    "blocks of 128": lambda entries: tree_sum(block_sums(entries, 128)),
    "blocks of 512": lambda entries: tree_sum(block_sums(entries, 512)),
    "blocks in turn": lambda entries: sum(block_sums(entries)),
    "tree from the end": lambda entries: tree_sum(block_sums(entries)[::-1]),
    "entries from the end": lambda entries: tree_sum(block_sums(entries[::-1])),
}


@pytest.mark.parametrize("order", OTHER_ORDERS)
def test_another_order_would_show(order: str) -> None:
    """The rows of these tests tell the orders apart, in float32 less often than in float64."""
    differ = {"float32": 0, "float64": 0}
    for dtype, size in product(differ, (513, 769, 1281, 4097)):
        for draft, target in zip(*random_rows(dtype, (8, size), seed=size)[:2], strict=True):
            other = OTHER_ORDERS[order](excess_of(draft, target).astype(np.float64))
            differ[dtype] += other != by_the_book(draft, target)[1]
    assert differ["float32"] >= 1
    assert differ["float64"] >= 4


@pytest.mark.parametrize("size", [1, 17, 300, 4097])
def test_every_row_of_a_batch_is_the_single_call(kind: Kind, size: int) -> None:
    rows = random_rows(kind.dtype, (9, size), seed=size)
    draft, target, ids = kind.make(rows[0]), kind.make(rows[1]), rows[2]
    accept_prob, residual, mass = accept_residual(draft, target, ids)
    probs = kind.library.plain(accept_probs(draft, target, ids))
    for row, token in enumerate(ids.tolist()):
        step = speculative_decode_step(draft[row], target[row], token)
        expected, expected_mass = by_the_book(rows[0][row], rows[1][row])
        assert_same_bits(kind.plain(step["residual"]), expected)
        assert_same_bits(kind.plain(residual)[row], expected)
        assert kind.library.plain(mass)[row] == expected_mass
        assert step["accept_prob"] == kind.library.plain(accept_prob)[row] == probs[row]


def test_position_and_company_change_nothing(dtype: str) -> None:
    """The same row at every place of batches that one thread or several work on."""
    draft, target, token = random_rows(dtype, (3000,), seed=5)
    expected, mass = by_the_book(draft, target)
    for rows in (1, 2, 7, 32):
        drafts, targets, ids = random_rows(dtype, (rows, 3000), seed=rows)
        for place in range(0, rows, 3):
            drafts[place], targets[place], ids[place] = draft, target, token
        found = accept_residual(drafts, targets, ids)
        for place in range(0, rows, 3):
            assert_same_bits(found.residual[place], expected)
            assert found.mass[place] == mass


def test_alignment_and_stride_change_nothing(dtype: str) -> None:
    for size in (255, 257, 1025):
        draft, target, token = random_rows(dtype, (size,), seed=size)
        expected, mass = by_the_book(draft, target)
        offsets = range(0, 65, 9)
        for draft_offset, target_offset, stride in product(offsets, offsets, (1, 2)):
            views = (
                at_offset(draft, draft_offset, stride),
                at_offset(target, target_offset, stride),
            )
            step = speculative_decode_step(*views, int(token))
            assert_same_bits(step["residual"], expected)
            assert accept_residual(views[0][None], views[1][None], [token]).mass[0] == mass


def at_offset(row: Row, offset: int, stride: int) -> Row:
    """Copy a row to an address that is `offset` bytes past a multiple of 64."""
    memory = np.full(row.nbytes * stride + 192, 0xFF, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    view: Row = memory[start : start + row.nbytes * stride].view(row.dtype)[::stride]
    view[:] = row
    return view


def digests() -> Iterator[str]:
    """One line for every set of rows, of sizes on both sides of what is worth a thread."""
    shapes = ((3, 1), (5, 513), (40, 1025), (7, 33_000), (1, 300_001))
    for dtype, (rows, size) in product(DTYPES, shapes):
        draft, target, ids = random_rows(dtype, (rows, size), seed=size)
        answers = [
            *accept_residual(draft, target, ids),
            *accept_residual(draft[::-1, ::-1], target[::-1, ::-1], size - 1 - ids[::-1]),
            accept_probs(draft, target, ids),
            speculative_decode_step(draft[-1], target[-1], int(ids[-1]))["residual"],
        ]
        digest = sha256(b"".join(np.asarray(answer).tobytes() for answer in answers))
        yield f"{dtype} {rows} x {size}: {digest.hexdigest()}"


def test_the_number_of_threads_changes_nothing(dtype: str) -> None:
    before = get_num_threads()
    for shape in ((1, 300_001), (7, 33_000)):
        rows = random_rows(dtype, shape)
        expected = by_the_book(rows[0][-1], rows[1][-1])
        try:
            for threads in (1, 2, 3, 8):
                set_num_threads(threads)
                found = accept_residual(*rows)
                assert_same_bits(found.residual[-1], expected[0])
                assert found.mass[-1] == expected[1]
        finally:
            set_num_threads(before)


@cache
def digests_here() -> list[str]:
    return list(digests())


@pytest.mark.parametrize(
    "setting",
    [
        {"RAYON_NUM_THREADS": "1"},
        {"RAYON_NUM_THREADS": "2"},
        {"RAYON_NUM_THREADS": "4"},
        {"DRAFTVERIFY_PATH": "portable"},
        {"DRAFTVERIFY_PATH": "portable", "RAYON_NUM_THREADS": "4"},
    ],
    ids=lambda setting: " ".join(f"{name}={value}" for name, value in setting.items()),
)
def test_threads_and_instructions_change_nothing(setting: dict[str, str]) -> None:
    """Other processes compute what this one does. Instructions are chosen once in a process."""
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | setting,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == digests_here()


if __name__ == "__main__":
    for line in digests():
        print(line)  # noqa: T201 - the parent process reads it
