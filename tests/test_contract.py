"""What a step answers, against exact rational arithmetic and against what has to follow from it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from itertools import product
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from draftverify import accept_probs, accept_residual, speculative_decode_step
from kinds import (
    DTYPES,
    SIZES,
    Kind,
    assert_same_bits,
    bits,
    limits,
    nearest,
    need,
    random_rows,
    refused,
)

Row = NDArray[Any]
Pair = tuple[Row, Row, int]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def wide(dtype: str) -> np.dtype[Any]:
    """Name the type of differences and quotients."""
    return DTYPES["float64" if dtype == "float64" else "float32"]


def unit(dtype: np.dtype[Any]) -> Fraction:
    """Bound the relative error of rounding a normal number once."""
    return Fraction(float(limits(dtype).eps)) / 2


def tiny(dtype: np.dtype[Any]) -> Fraction:
    return Fraction(float(limits(dtype).smallest_subnormal))


def exact(row: Row) -> list[Fraction]:
    return [Fraction(entry) for entry in row.astype(np.float64).tolist()]


def one_row(draft: Row, target: Row, token: int) -> tuple[float, Row, float]:
    """Accept probability, residual and mass of a row; the mass is not in the dictionary."""
    step = speculative_decode_step(draft, target, token)
    accept_prob, residual, mass = accept_residual(draft[None], target[None], [token])
    assert accept_prob.tolist() == [step["accept_prob"]]
    assert_same_bits(residual[0], step["residual"])
    return step["accept_prob"], step["residual"], float(mass[0])


def check_against_fractions(draft: Row, target: Row, token: int) -> None:
    """Every operation of the contract, done exactly and rounded once."""
    storage, between = draft.dtype, wide(draft.dtype.name)
    accept_prob, residual, mass = one_row(draft, target, token)
    drafts, targets = exact(draft), exact(target)

    assert accept_prob == float(min(Fraction(1), targets[token] / drafts[token]))
    pairs = zip(drafts, targets, strict=True)
    excess = [nearest(max(t - d, Fraction(0)), between) for d, t in pairs]
    total = sum(excess)
    assert abs(Fraction(mass) - total) <= total * 16 / 2**53
    divisor = nearest(Fraction(mass), between) or Fraction(1)
    expected = [nearest(nearest(entry / divisor, between), storage) for entry in excess]
    assert exact(residual) == expected
    assert not bits(residual)[target <= draft].any(), "+0.0 wherever target <= draft"


def check_identities(draft: Row, target: Row, token: int) -> None:
    """Add up the two ways to emit a token: together they are as likely as the target says."""
    storage, between = draft.dtype, wide(draft.dtype.name)
    _, residual, mass = one_row(draft, target, token)
    possible = np.flatnonzero(draft > 0)
    shape = (len(possible), len(draft))
    accepted = np.zeros(len(draft))
    accepted[possible] = accept_probs(
        np.broadcast_to(draft, shape), np.broadcast_to(target, shape), possible
    )
    rounding = (3 * unit(between) + unit(storage)) * Fraction(1025, 1024)
    for d, t, a, r in zip(*map(exact, (draft, target, accepted, residual)), strict=True):
        allowed: Fraction = (
            max(t - d, Fraction(0)) * rounding + Fraction(mass) * tiny(storage) + t / 2**53
        )
        assert abs(d * a + Fraction(mass) * r - t) <= allowed
    positive = int((target > draft).sum())
    total = sum(exact(residual), Fraction(0))
    assert abs(total - min(positive, 1)) <= rounding + positive * tiny(storage)


@st.composite
def pairs_of_rows(draw: st.DrawFn, dtype: str) -> Pair:
    """Entries of any size from the smallest subnormal to 1, or a few small ratios with many ties.

    They do not sum to one: nothing may depend on that.
    """
    size = draw(st.integers(1, 40) | st.sampled_from((255, 256, 257)))
    if draw(st.booleans()):
        one = np.ones(1, DTYPES[dtype])
        patterns = arrays(bits(one).dtype, size, elements=st.integers(0, int(bits(one)[0])))
        draft, target = (draw(patterns).view(DTYPES[dtype]) for _ in range(2))
    else:
        weights = arrays(np.int64, size, elements=st.integers(0, 5))
        draft, target = ((draw(weights) / 16).astype(DTYPES[dtype]) for _ in range(2))
    token = draw(st.integers(0, size - 1))
    if draft[token] == 0:
        draft[token] = limits(DTYPES[dtype]).smallest_subnormal
    return draft, target, token


@every_dtype
@given(st.data())
def test_any_rows_against_fractions(dtype: str, data: st.DataObject) -> None:
    check_against_fractions(*data.draw(pairs_of_rows(dtype)))


@every_dtype
@given(st.data())
def test_identities(dtype: str, data: st.DataObject) -> None:
    check_identities(*data.draw(pairs_of_rows(dtype)))


@pytest.mark.parametrize("size", [size for size in SIZES if size not in {4095, 4096}])
def test_sizes(dtype: str, size: int) -> None:
    draft, target, token = random_rows(dtype, (size,), seed=size)
    check_against_fractions(draft, target, int(token))
    if size <= 1000:
        check_identities(draft, target, int(token))


def test_a_large_vocabulary(dtype: str) -> None:
    """Fractions would take seconds here; `math.fsum` rounds the exact sum once, to float64."""
    draft, target, token = random_rows(dtype, (262_144,))
    _, residual, mass = one_row(draft, target, int(token))
    between, storage = wide(dtype), DTYPES[dtype]
    excess = np.maximum(target.astype(between) - draft.astype(between), 0).astype(np.float64)
    assert abs(mass - fsum(excess.tolist())) <= 15 / 2**53 * mass
    positive = int((excess > 0).sum())
    rounding = 3 * unit(between) + unit(storage) + positive * tiny(storage) / 2
    assert abs(fsum(residual.astype(np.float64).tolist()) - 1) <= rounding
    assert not bits(residual)[target <= draft].any()


def test_equal_rows_leave_nothing(dtype: str) -> None:
    for size in SIZES:
        draft, _, token = random_rows(dtype, (size,), seed=size)
        accept_prob, residual, mass = one_row(draft, draft.copy(), int(token))
        assert (accept_prob, mass) == (1.0, 0.0)
        assert not bits(residual).any()


def test_entries_above_one_and_sums_that_are_not(dtype: str) -> None:
    rows: list[tuple[list[float], list[float], int, list[float], float, float]] = [
        ([0.5, 3.0, 0.25], [1.5, 0.5, 4.25], 1, [0.2, 0.0, 0.8], 1 / 6, 5.0),
        ([0.25, 0.0], [0.25, 0.0], 0, [0.0, 0.0], 1.0, 0.0),
        ([8.0, 0.125], [2.0, 0.0625], 1, [0.0, 0.0], 0.5, 0.0),
        ([0.125, 0.125], [0.125, 2.0], 1, [0.0, 1.0], 1.0, 1.875),
    ]
    for draft, target, token, residual, accept_prob, mass in rows:
        pair = (np.array(draft, DTYPES[dtype]), np.array(target, DTYPES[dtype]))
        found = one_row(*pair, token)
        assert_same_bits(found[1], np.array(residual, wide(dtype)).astype(DTYPES[dtype]))
        assert (found[0], found[2]) == (accept_prob, mass)
        check_against_fractions(*pair, token)


def test_the_largest_entries(dtype: str) -> None:
    largest = float(limits(DTYPES[dtype]).max)
    draft = np.array([0.0, 1.0], DTYPES[dtype])
    target = np.array([largest, 0.0], DTYPES[dtype])
    accept_prob, residual, mass = one_row(draft, target, 1)
    assert (accept_prob, residual.tolist(), mass) == (0.0, [1.0, 0.0], largest)


def test_negative_zero_is_zero(dtype: str) -> None:
    for size in SIZES[1:]:
        draft, target, token = random_rows(dtype, (size,), seed=size)
        for row in (draft, target):
            row[:-1][np.arange(size - 1) % 3 == 0] = 0.0
        draft[token] = 0.5
        expected = one_row(draft, target, int(token))
        signed = [np.where(row == 0, np.array(-0.0, row.dtype), row) for row in (draft, target)]
        found = one_row(signed[0], signed[1], int(token))
        assert (found[0], found[2]) == (expected[0], expected[2])
        assert_same_bits(found[1], expected[1])
    rows = np.array([-0.0, 1.0], DTYPES[dtype])
    says = ("drafted_token", "got 0", "draft_probs[0] == 0")
    refused(ValueError, speculative_decode_step, rows, np.abs(rows), 0, says=says)


@pytest.mark.parametrize(
    ("dtype", "largest", "next_power"),
    [("float32", 2.0**128 - 2.0**104, 2.0**103), ("float64", np.finfo(float).max, 2.0**970)],
)
def test_a_mass_up_to_the_largest_number(dtype: str, largest: float, next_power: float) -> None:
    """A mass that rounds to the largest number is answered, one that rounds to infinity is not."""
    draft = np.array([0.0, 0.0, 1.0], DTYPES[dtype])
    target = np.array([largest, next_power / 2, 0.0], DTYPES[dtype])
    check_against_fractions(draft, target, 2)
    target[1] = next_power
    says = "target_probs", "at most", "sum to 1"
    refused(ValueError, speculative_decode_step, draft, target, 2, says=says)
    refused(ValueError, accept_residual, draft[None], target[None], [2], says=(*says, "in row 0"))


def test_a_mass_that_overflows_bfloat16_rows() -> None:
    target = np.array([3e38, 3e38, 0.0], DTYPES["bfloat16"])
    draft = np.array([0.0, 0.0, 1.0], DTYPES["bfloat16"])
    says = ("target_probs", "3.4028234663852886e38")
    refused(ValueError, speculative_decode_step, draft, target, 2, says=says)


def test_the_result(kind: Kind) -> None:
    draft = kind.make([0.5, 0.25, 0.25, 0.0])
    target = kind.make([0.25, 0.25, 0.0, 0.5])
    before = [kind.library.contents(row) for row in (draft, target)]
    step = speculative_decode_step(draft, target, 0)
    again = speculative_decode_step(draft_probs=draft, target_probs=target, drafted_token=2)

    assert type(step).__name__ == "dict"
    assert list(step) == ["accept_prob", "residual"]
    assert (step["accept_prob"], again["accept_prob"]) == (0.5, 0.0)
    assert type(step["accept_prob"]) is type(again["accept_prob"]) is float
    residual = kind.plain(step["residual"])
    assert residual.flags.c_contiguous
    assert residual.flags.writeable
    assert residual.flags.aligned
    assert residual.tolist() == [0.0, 0.0, 0.0, 1.0]
    # Fresh each time, and of the same bits for every token.
    assert_same_bits(kind.plain(again["residual"]), residual)
    residual[:] = 7.0
    assert kind.plain(again["residual"]).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert [kind.library.contents(row) for row in (draft, target)] == before


def answers_about_subnormals() -> Iterator[str]:
    """Digests of bits that differ if any step treats a subnormal number as zero."""
    for dtype, shape in product(DTYPES.values(), ((40, 1500), (1, 300_000))):
        rng = np.random.default_rng(7)
        normal = int(bits(np.array([limits(dtype).smallest_normal]).astype(dtype))[0])
        patterns = rng.integers(1, 3 * normal, (2, *shape))
        draft, target = patterns.astype(f"u{dtype.itemsize}").view(dtype)
        ids = rng.integers(0, shape[1], shape[0])
        step = speculative_decode_step(draft[-1], target[-1], int(ids[-1]))
        answers: list[Any] = [
            *accept_residual(draft, target, ids),
            *accept_residual(draft[:, ::-1], target, ids),
            accept_probs(draft, target, ids),
            step["residual"],
            np.array([step["accept_prob"]]),
        ]
        for answer in answers:
            yield sha256(answer.tobytes()).hexdigest()


FLUSHING = """
import sys, numpy, torch
from test_contract import answers_about_subnormals
if not torch.set_flush_denormal(True):
    sys.exit(3)
print(*answers_about_subnormals())
assert numpy.float32(1e-40) * numpy.float32(1) == 0, "the caller's setting stays"
"""


def test_flushing_subnormals_is_the_callers_own_affair() -> None:
    """In a process of its own, so that the worker threads are born with the setting, too."""
    need("torch")
    command = [sys.executable, "-c", FLUSHING]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(answers_about_subnormals())
