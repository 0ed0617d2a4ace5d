"""The text of the kernels, run on the CPU: the bits of the compiled crate, whatever the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftverify import accept_residual
from host_kernels import Rows, run
from kinds import DTYPES, SIZES, assert_same_bits, bits, limits, random_rows


def assert_as_on_the_cpu(rows: Rows, block: int = 256) -> None:
    answers = run(rows, block=block)
    expected = accept_residual(*rows, check=False)
    assert_same_bits(answers.residual, expected.residual)
    assert_same_bits(answers.accept_prob, expected.accept_prob)
    assert_same_bits(answers.mass, expected.mass)


@pytest.mark.parametrize("size", [*SIZES, 8191, 8192, 8193, 12_289])
def test_the_bits_are_those_of_the_cpu(dtype: str, size: int) -> None:
    assert_as_on_the_cpu(random_rows(dtype, (5, size), seed=size))


def test_the_bits_of_a_long_row(dtype: str) -> None:
    assert_as_on_the_cpu(random_rows(dtype, (1, 128_256)))


def test_the_number_of_threads_changes_nothing(dtype: str) -> None:
    """Also where a row has more chunks than a block has threads, and a counter joins groups."""
    for size in (513, 32 * 512, 32 * 512 + 1, 3 * 32 * 512 + 700):
        assert_as_on_the_cpu(random_rows(dtype, (2, size), seed=size), block=32)


def patterns(dtype: str) -> NDArray[Any]:
    """Numbers at the edges of a dtype, all of them probabilities as far as the kernels know."""
    limit = limits(DTYPES[dtype])
    tiny, small = limit.smallest_subnormal, limit.smallest_normal
    edges = [0, -0.0, tiny, 3 * tiny, small, small - tiny, small + tiny, 1, 1 - limit.epsneg, 2]
    return np.array(edges, np.float64).astype(DTYPES[dtype])


def test_subnormals_survive(dtype: str) -> None:
    """All pairs of edges, also with nothing else in the row: then the mass is subnormal too."""
    edges = patterns(dtype)
    draft, target = (side.ravel() for side in np.meshgrid(edges, edges))
    ids = np.zeros(1, np.int64)
    one = np.ones(1, draft.dtype)
    assert_as_on_the_cpu((np.append(one, draft)[None], np.append(one, target)[None], ids))
    for row in zip(draft, target, strict=True):
        pair = (np.array([[1, row[0]]], draft.dtype), np.array([[1, row[1]]], draft.dtype), ids)
        assert_as_on_the_cpu(pair)


def test_identical_rows_have_no_residual(dtype: str) -> None:
    draft, _, ids = random_rows(dtype, (2, 5000))
    rows = (draft, draft.copy(), ids)
    assert_as_on_the_cpu(rows)
    answers = run(rows)
    assert not bits(answers.residual).any()
    assert answers.accept_prob.tolist() == [1.0, 1.0]
    assert answers.mass.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("place", [0, 4095, 4096, 8999])
@pytest.mark.parametrize("side", [0, 1])
def test_a_bad_entry_spoils_its_row_and_no_other(dtype: str, side: int, place: int) -> None:
    limit = limits(DTYPES[dtype])
    for bad in (np.nan, -np.nan, np.inf, -np.inf, -1.0, -float(limit.smallest_subnormal)):
        rows = random_rows(dtype, (3, 9000))
        rows[side][1, place] = bad
        assert_as_on_the_cpu(rows)
        answers = run(rows)
        assert np.isnan(answers.mass).tolist() == [False, True, False]


def test_a_mass_beyond_the_wide_type_spoils_its_row(dtype: str) -> None:
    largest = float(limits(DTYPES[dtype]).max)
    draft = np.zeros((2, 300)).astype(DTYPES[dtype])
    draft[:, 0] = 1
    target = draft.copy()
    target[1, 1:] = largest
    assert_as_on_the_cpu((draft, target, np.zeros(2, np.int64)))
    target[:] = largest  # of exactly one entry: the largest mass that there is
    target[1, 2:] = 0
    draft[1, 0] = largest
    assert_as_on_the_cpu((draft, target, np.zeros(2, np.int64)))


def test_tokens_that_cannot_be_spoil_their_row(dtype: str) -> None:
    draft, target, _ = random_rows(dtype, (8, 100))
    draft[:, 5], draft[:, 6] = 0, -0.0
    ids = np.array([0, -1, 100, 5, 6, 2**63 - 1, -(2**63), 99], np.int64)
    answers = run((draft, target, ids))
    bad = [False, True, True, True, True, True, True, False]
    zero = np.array(draft[[0, -1], ids[[0, -1]]], float) == 0
    assert not zero.any()
    for answer in (answers.accept_prob, answers.mass, answers.alone):
        assert np.isnan(answer).tolist() == bad
    assert np.isnan(answers.residual.astype(float)).all(axis=1).tolist() == bad
    expected = accept_residual(draft[[0, 7]], target[[0, 7]], ids[[0, 7]])
    assert_same_bits(answers.residual[[0, 7]], expected.residual)


def test_with_a_wrong_id_nothing_is_written(dtype: str) -> None:
    """Where errors are raised: of any row, also one that no thread looks at first."""
    draft, target, ids = random_rows(dtype, (300, 3))
    ids[290] = -1
    answers = run((draft, target, ids), check=True)
    assert not bits(answers.residual).any()
    assert np.isnan(answers.accept_prob).all()
    assert np.isnan(answers.mass).all()
    ids[290] = draft[290].argmax()
    answers = run((draft, target, ids), check=True)
    assert_same_bits(answers.residual, accept_residual(draft, target, ids).residual)


def test_accept_probabilities_alone_look_at_two_entries(dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (3, 50))
    expected = accept_residual(draft, target, ids).accept_prob
    others = np.arange(50) != ids[:, None]
    draft[others], target[others] = np.nan, -1
    answers = run((draft, target, ids))
    assert_same_bits(answers.alone, expected)


@given(data=st.data())
def test_any_bits_are_answered_as_on_the_cpu(data: Any) -> None:
    """Rows of arbitrary bits: whatever they stand for, both answer the same."""
    dtype = data.draw(st.sampled_from(list(DTYPES)))
    size = data.draw(st.integers(1, 40))
    width = DTYPES[dtype].itemsize
    raw = [data.draw(st.binary(min_size=2 * size * width, max_size=2 * size * width)) for _ in "dt"]
    draft, target = (np.frombuffer(one, DTYPES[dtype]).reshape(2, size) for one in raw)
    ids = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2)))
    assert_as_on_the_cpu((draft, target, ids))
