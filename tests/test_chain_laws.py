"""The law of what is emitted, measured exactly; and rows of a real model beside plain NumPy."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import draftverify
from draftverify import testing, verify_chain, verify_chain_logits
from draftverify.testing import Feed
from kinds import DTYPES, need

METHODS: tuple[Any, ...] = ("standard", "block", "greedy")
Floats = NDArray[np.float64]


def feeds() -> list[Feed]:
    found = [Feed(dtype=dtype, padding=1) for dtype in DTYPES.values()]
    found += [Feed(one_hot=True, dtype=dtype) for dtype in DTYPES.values()]
    found.append(Feed(dtype=np.float32, uniform_dtype=np.float32))
    return found


@pytest.mark.parametrize("feed", feeds(), ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_the_law_is_the_targets(method: Any, feed: Feed) -> None:
    # Thresholds that float16 and bfloat16 can tell apart.
    coarse = [testing.t2(1), testing.t2(2), testing.t3(1), testing.dyadic(1), testing.dyadic(2)]
    narrow = np.dtype(feed.dtype).itemsize == 2
    verify = partial(verify_chain, method=method)
    testing.assert_lossless(verify, method=method, feed=feed, instances=coarse if narrow else None)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
@pytest.mark.parametrize("method", METHODS)
def test_the_law_in_other_libraries(method: Any, library: str) -> None:
    feed = Feed(dtype=np.float32, uniform_dtype=np.float32, convert=need(library).asarray)
    instances = [testing.t3(2), testing.dyadic(2)]
    verify = partial(verify_chain, method=method)
    testing.assert_lossless(verify, method=method, feed=feed, instances=instances)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_law_from_logits(method: Any, one_hot: bool) -> None:
    """Logarithms are rounded, and the exponential is not exact: by less than 1e-9 here."""
    feed = Feed(one_hot=one_hot, log_probs=True, tolerance=1e-9, padding=1)
    verify = partial(verify_chain_logits, method=method)
    testing.assert_lossless(verify, method=method, feed=feed)


def test_a_table_of_the_paper_on_an_even_grid() -> None:
    """Sun et al., section 2: 10/9 tokens by token verification, 11/9 by block verification."""
    two = testing.t2(2)
    cases: list[tuple[Any, int, str]] = [("standard", 6, "10/9"), ("block", 12, "11/9")]
    for method, grid, expected in cases:
        verify = partial(verify_chain, method=method)
        found = testing.law_of(verify, two, method=method, grid=grid)
        assert str(found.expected_accepted) == expected
        assert testing.total_variation(found.law, testing.target_law(two.target, 3)) == 0


def test_block_keeps_at_least_as_many() -> None:
    for seed in range(8):
        models = testing.random_models(seed, draft_length=1 + seed % 2)
        kept = {
            method: testing.law_of(
                partial(verify_chain, method=method), models, method=method
            ).expected_accepted
            for method in ("standard", "block")
        }
        if models.draft_length == 1:
            assert kept["block"] == kept["standard"]
        assert kept["block"] >= kept["standard"]


# Rows of a real model.


def recorded() -> tuple[list[NDArray[Any]], NDArray[np.int32], NDArray[np.int32]]:
    data = Path(draftverify.__file__).with_name("data") / "smollm2_chains.npz"
    with np.load(data) as rows:
        logits = []
        for planes in (rows["draft_logits"], rows["target_logits"]):
            high, low = planes.astype(np.uint16)
            logits.append(((high << 8) | low).view(np.float16))
        return logits, rows["draft_token_ids"], rows["indptr"]


def softmax(logits: NDArray[Any], temperature: float = 1.0) -> Floats:
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    total: Floats = powers.sum(axis=-1, keepdims=True)
    return np.asarray(powers / total)


def plain_standard(
    draft: NDArray[Any], target: NDArray[Any], tokens: NDArray[np.int32], uniforms: Floats
) -> list[list[int]]:
    """Accept and draw in plain NumPy, for many rows of uniforms; -2 stands for the bonus token."""
    excess = np.maximum(target - draft, 0).astype(np.float64)
    running = np.cumsum(excess, axis=-1)
    emitted = []
    for row in uniforms:
        ids: list[int] = []
        for position, token in enumerate(tokens.tolist()):
            if not row[position] * float(draft[position, token]) < float(target[position, token]):
                place = running[position]
                ids.append(int(np.searchsorted(place, row[-1] * place[-1], side="right")))
                break
            ids.append(token)
        else:
            ids.append(-2)
        emitted.append(ids)
    return emitted


def emitted_by(verdict: Any) -> list[list[int]]:
    ids = [row[: kept + 1] for kept, row in zip(verdict[0], verdict[1].tolist(), strict=True)]
    return [[-2 if token == 2**31 - 1 else token for token in row] for row in ids]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_recorded_rows_beside_plain_numpy(dtype: str) -> None:
    logits, tokens, indptr = recorded()
    draft, target = (softmax(rows).astype(DTYPES[dtype]) for rows in logits)
    rng = np.random.default_rng(11)
    for first, last in itertools.pairwise(indptr):
        rows, count = slice(first, last), 1000
        length = int(last - first)
        uniforms = rng.random((count, length + 1))
        many = [np.broadcast_to(part[rows], (count, *part[rows].shape)) for part in (draft, target)]
        ids = np.broadcast_to(tokens[rows], (count, length))
        bonus = np.full(count, 2**31 - 1)
        verdict = verify_chain(many[0], many[1], ids, uniforms, bonus_token_ids=bonus)
        expected = plain_standard(draft[rows], target[rows], tokens[rows], uniforms)
        assert emitted_by(verdict) == expected
        assert len({tuple(row) for row in expected}) > 3


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_recorded_logits_beside_plain_numpy(dtype: str, temperature: float) -> None:
    logits, tokens, indptr = recorded()
    draft, target = (softmax(rows, temperature) for rows in logits)
    rng = np.random.default_rng(12)
    for first, last in itertools.pairwise(indptr):
        rows, count = slice(first, last), 200
        length = int(last - first)
        uniforms = rng.random((count, length + 1))
        many = [
            np.broadcast_to(part[rows].astype(dtype), (count, *part[rows].shape)) for part in logits
        ]
        ids = np.broadcast_to(tokens[rows], (count, length))
        bonus = np.full(count, 2**31 - 1)
        verdict = verify_chain_logits(
            many[0], many[1], ids, uniforms, bonus_token_ids=bonus, temperature=temperature
        )
        assert emitted_by(verdict) == plain_standard(
            draft[rows], target[rows], tokens[rows], uniforms
        )
