"""`draftverify.testing.law_of`: the exact law of floating-point code."""

from __future__ import annotations

import operator
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import plain_chain
from draftverify import testing
from draftverify.testing import Emitted, Feed, Instance

METHODS = {"standard": testing.standard, "block": testing.block}
PLACES: tuple[Literal["low", "middle", "high"], ...] = ("low", "middle", "high")
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
# Of these, thresholds are far apart: float16 and bfloat16 can tell them apart.
COARSE = [testing.t2(2), testing.t3(1), testing.dyadic(2)]
Verdict = tuple[NDArray[Any], NDArray[Any]]


def plain(method: str = "standard", **options: Any) -> Any:
    return partial(plain_chain.verify_chain, method=method, **options)


def exact(method: str, instance: Instance, *, one_hot: bool = False) -> Emitted:
    rule = testing.one_hot(METHODS[method]) if one_hot else METHODS[method]
    return testing.emitted_law(rule, instance.draft, instance.target, instance.draft_length)


@pytest.mark.parametrize("method", METHODS)
def test_an_even_grid_gives_the_table_of_a_block_exactly(method: str) -> None:
    # 12 is a multiple of the denominators of all thresholds and running sums of both rules.
    two = testing.t2(2)
    rows = []

    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        rows.append(len(ids))
        return testing.as_chain(METHODS[method])(draft, target, ids, uniforms)

    found = testing.law_of(verify, two, method=method, grid=12)
    assert found == exact(method, two)
    assert sum(rows) == 4 * 12**3
    assert (
        testing.law_of(plain(method), two, method=method, grid=6 if method == "standard" else 12)
        == found
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_cells_give_the_same_as_enumeration(method: str, one_hot: bool, place: Any) -> None:
    for instance in (testing.t4(1), testing.random_models(3, draft_length=2), testing.t3(0)):
        feed = Feed(one_hot=one_hot)
        found = testing.law_of(plain(method), instance, method=method, feed=feed, place=place)
        assert found == exact(method, instance, one_hot=one_hot)


@pytest.mark.parametrize("uniform_dtype", [np.float64, np.float32])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_dtype(method: str, dtype: Any, uniform_dtype: Any) -> None:
    seen = set()

    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        seen.add((draft.dtype, target.dtype, uniforms.dtype))
        return plain(method)(draft, target, ids, uniforms)

    feed = Feed(dtype=dtype, uniform_dtype=uniform_dtype)
    for instance in COARSE:
        for place in PLACES:
            found = testing.law_of(verify, instance, method=method, feed=feed, place=place)
            assert found == exact(method, instance)
    assert seen == {(np.dtype(dtype), np.dtype(dtype), np.dtype(uniform_dtype))}


def test_uniforms_are_next_to_the_thresholds_where_all_is_exact() -> None:
    seen: dict[str, set[float]] = {}
    for place in PLACES:

        def verify(*arrays: Any, place: str = place) -> Any:
            seen.setdefault(place, set()).update(arrays[3][:, 0].tolist())
            return plain()(*arrays)

        testing.law_of(verify, testing.dyadic(1), place=place)
    # Token 0 passes below 3/4, the others always.
    assert seen["low"] == {0.0, 0.75}
    assert seen["middle"] == {0.375, 0.5, 0.875}
    assert seen["high"] == {np.nextafter(0.75, 0), np.nextafter(1, 0)}


def test_the_smallest_shift_of_a_threshold_is_seen_where_all_is_exact() -> None:
    for factor, right in ((1.0, True), (np.nextafter(1, 0), False), (np.nextafter(1, 2), False)):

        def shifted(draft: Any, target: Any, ids: Any, uniforms: Any, f: float = factor) -> Any:
            scaled = uniforms.copy()
            scaled[:, 0] *= f
            return plain()(draft, target, ids, scaled)

        laws = [testing.law_of(shifted, testing.dyadic(1), place=place) for place in PLACES]
        assert all(law == exact("standard", testing.dyadic(1)) for law in laws) is right


def test_a_shift_of_a_billionth_is_seen_everywhere() -> None:
    def shifted(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        return plain()(draft, target, ids, uniforms * (1 - 1e-9))

    for instance in (testing.t2(1), testing.t3(1), testing.t4(2), testing.random_models(1)):
        assert testing.law_of(shifted, instance) == exact("standard", instance)
        assert testing.law_of(shifted, instance, place="high") == exact("standard", instance)
        assert testing.law_of(shifted, instance, place="low") != exact("standard", instance)
        # Who allows for it does not see it.
        feed = Feed(tolerance=1e-8)
        assert testing.law_of(shifted, instance, feed=feed, place="low") == exact(
            "standard", instance
        )


@pytest.mark.parametrize("method", METHODS)
def test_padding_is_not_read(method: str) -> None:
    instance, shapes = testing.random_models(5), []

    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        shapes.append([array.shape[1:] for array in (draft, target, ids, uniforms)])
        assert np.isnan(draft[:, 2:]).all()
        assert np.isnan(target[:, 3:]).all()
        assert np.isnan(uniforms[:, 3:]).all()
        assert (ids[:, 2:] == -1).all()
        return plain(method)(draft, target, ids, uniforms)

    found = testing.law_of(verify, instance, method=method, feed=Feed(padding=2))
    assert found == exact(method, instance)
    assert shapes == [[(4, 3), (5, 3), (4,), (5,)]]


def test_log_probs_and_converted_arrays() -> None:
    class Wrapped:
        def __init__(self, array: NDArray[Any]) -> None:
            self.array = array

    def verify(draft: Wrapped | None, target: Wrapped, ids: Wrapped, uniforms: Wrapped) -> Any:
        rows = None if draft is None else np.exp(draft.array)
        return plain()(rows, np.exp(target.array), ids.array, uniforms.array)

    for one_hot in (False, True):
        feed = Feed(log_probs=True, convert=Wrapped, one_hot=one_hot)
        for instance in (testing.t4(2), testing.random_models(2), testing.dyadic(2)):
            for place in PLACES:
                found = testing.law_of(verify, instance, feed=feed, place=place)
                assert found == exact("standard", instance, one_hot=one_hot)


def test_calls_are_few_and_bounded() -> None:
    rows: list[int] = []

    def verify(*arrays: Any) -> Any:
        rows.append(len(arrays[2]))
        return testing.as_chain(testing.standard)(*arrays)

    testing.law_of(verify, testing.t4(2))
    assert len(rows) == 1
    rows.clear()
    found = testing.law_of(verify, testing.t2(1), grid=120)
    assert found == exact("standard", testing.t2(1))
    assert sum(rows) == 2 * 120**2
    assert len(rows) < 5
    assert max(rows) < 2 * 8192


def test_greedy_needs_no_draft_and_no_uniforms() -> None:
    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        assert draft is None
        return plain("greedy")(None, target, ids, np.full_like(uniforms, np.nan))

    instance = testing.random_models(4)
    found = testing.law_of(verify, instance, method="greedy", feed=Feed(one_hot=True))
    right = testing.emitted_law(
        testing.greedy, instance.draft, instance.target, instance.draft_length
    )
    assert found.outcomes == right.outcomes
    assert len(found.law) == 1


@pytest.mark.parametrize(
    ("wrong", "interval", "place"),
    [
        ({"accepts": operator.le}, "[0,1)", "low"),
        ({"exceeds": operator.ge}, "[0,1)", "low"),
        ({}, "(0,1]", "high"),
    ],
)
def test_comparisons_that_are_wrong_at_the_ends(
    wrong: dict[str, Any], interval: Any, place: str
) -> None:
    instance, verify = testing.dyadic(2), testing.as_chain(testing.standard, **wrong)
    feed = Feed(interval=interval)
    for each in PLACES:
        found = testing.law_of(verify, instance, feed=feed, place=each)
        assert (found == exact("standard", instance)) is (each != place)


def test_uniforms_that_reach_one_need_the_other_comparison() -> None:
    verify = testing.as_chain(testing.standard, accepts=operator.le, exceeds=operator.ge)
    for place in PLACES:
        feed = Feed(interval="(0,1]")
        found = testing.law_of(verify, testing.dyadic(2), feed=feed, place=place)
        assert found == exact("standard", testing.dyadic(2))


def test_code_made_of_a_rule_never_draws_what_has_no_weight() -> None:
    target = np.array([[[0.5, 0.5, 0.0]]])
    for uniform, final in ((0.0, 0), (0.5, 1), (1.0, 1)):
        ids, uniforms = np.empty((1, 0), np.int64), np.array([[uniform]])
        kept, emitted = testing.as_chain(testing.standard)(target[:, :0], target, ids, uniforms)
        assert (kept.tolist(), emitted.tolist()) == ([0], [[final]])


def spoilt(how: Any) -> Any:
    def verify(*arrays: Any) -> Verdict:
        kept, ids = plain()(*arrays)
        answer: Verdict = how(kept, ids)
        return answer

    return verify


def put(array: NDArray[Any], index: Any, value: int) -> NDArray[Any]:
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            lambda kept, ids: (kept[1:], ids),
            r"expected num_accepted of shape \(12,\).* got \(11,\)",
        ),
        (lambda kept, ids: (kept, ids[:, :1]), r"token_ids of shape \(12, 2\), got .* \(12, 1\)"),
        (lambda kept, ids: (put(kept, 0, 2), ids), "expected num_accepted from 0 to 1 .* got .* 2"),
        (
            lambda kept, ids: (put(kept, 0, -1), ids),
            "expected num_accepted from 0 to 1 .* got .* -1",
        ),
        (
            lambda kept, ids: (kept, put(ids, (kept == 1, 0), 2)),
            r"kept ids to be the drafted ones for the drafted \[0\].* token_ids \[2, ",
        ),
        (
            lambda kept, ids: (kept, put(ids, (0, kept[0]), 3)),
            "expected a final id from 0 to 2 .* got num_accepted 1",
        ),
        (lambda kept, ids: (kept, put(ids, (kept == 0, 1), 0)), "expected -1 behind the final id"),
    ],
)
def test_answers_that_no_verification_gives(how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        testing.law_of(spoilt(how), testing.t3(1))


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="method: expected one of standard, block, greedy, got"):
        testing.law_of(plain(), testing.t2(), method="typical")
    with pytest.raises(ValueError, match="grid: expected at least one cell, got 0"):
        testing.law_of(plain(), testing.t2(), grid=0)
    with pytest.raises(ValueError, match="apart, bfloat16 may not tell them apart"):
        testing.law_of(plain(), testing.t4(1), feed=Feed(dtype=ml_dtypes.bfloat16))


def test_the_law_of_wrong_code_is_exact_on_a_grid_that_fits_it() -> None:
    rule = testing.WRONG_RULES["block_uncapped_last_ratio"]
    found = testing.law_of(testing.as_chain(rule), testing.t2(2), method="block", grid=12)
    assert found.expected_accepted == Fraction(4, 3)
    law = testing.target_law(testing.t2().target, 3)
    assert testing.total_variation(found.law, law) == Fraction(1, 9)
    mixed = testing.as_chain(testing.WRONG_RULES["mixed_proposals"])
    found = testing.law_of(mixed, testing.t3(1), grid=40)
    law = testing.target_law(testing.t3().target, 2)
    assert testing.total_variation(found.law, law) == Fraction(9, 80)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (ValueError, {"interval": "(0,1)"}),
        (TypeError, {"dtype": np.int32}),
        (TypeError, {"uniform_dtype": bool}),
        (ValueError, {"padding": -1}),
        (ValueError, {"padding": True}),
        (TypeError, {"convert": 3}),
    ],
)
def test_feeds_that_are_none(error: type[Exception], wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(error, match=f"^{name}: expected "):
        testing.Feed(**wrong)


def test_an_interval_may_be_written_with_a_space() -> None:
    spaced: Any = "[0, 1)"
    assert testing.Feed(interval=spaced) == testing.Feed()
