"""Acceptance rates, bit by bit, and the tokens that chains give, against exact enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from typing import Any, assert_type

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftverify import (
    accept_probs,
    accept_residual,
    acceptance_rate,
    expected_tokens_block,
    expected_tokens_by_position,
    get_num_threads,
    set_num_threads,
)
from kinds import SIZES, Kind, Library, Torch, assert_same_bits, need, random_rows, refused
from test_bits import block_sums, tree_sum

Law = tuple[Fraction, ...]
Model = Callable[[tuple[int, ...]], Law]


def rate_by_the_book(draft: NDArray[Any], target: NDArray[Any]) -> float:
    smaller = np.minimum(draft.astype(np.float64), target.astype(np.float64))
    return tree_sum(block_sums(smaller))


@pytest.mark.parametrize("size", [*SIZES, 1281, 2305, 32_000, 300_001])
def test_rates_have_the_bits_of_the_book(kind: Kind, size: int) -> None:
    if kind.library.name == "list" and size > 5000:
        size = 5001
    draft, target, _ = random_rows(kind.dtype, (4 if size < 5000 else 1, size), seed=size)
    rows = kind.make(draft), kind.make(target)
    expected = [rate_by_the_book(*pair) for pair in zip(draft, target, strict=True)]
    assert_same_bits(kind.library.plain(acceptance_rate(*rows)), np.array(expected))
    for row, rate in enumerate(expected):
        single = acceptance_rate(rows[0][row], rows[1][row])
        assert type(single) is float
        assert single == rate
    before = get_num_threads()
    set_num_threads(1)
    assert acceptance_rate(*rows).tolist() == expected
    set_num_threads(before)


def test_rates_of_rows_wherever_they_lie(dtype: str) -> None:
    draft, target, _ = random_rows(dtype, (6, 515), seed=3)
    expected = acceptance_rate(draft, target)
    swapped = draft.dtype.newbyteorder() if dtype != "bfloat16" else draft.dtype
    assert_same_bits(acceptance_rate(draft.astype(swapped), target), expected)
    assert_same_bits(acceptance_rate(np.asfortranarray(draft), target), expected)
    wide = np.zeros((12, 1030), draft.dtype)
    wide[::-2, ::-2] = draft
    assert_same_bits(acceptance_rate(wide[::-2, ::-2], target), expected)
    shared = np.broadcast_to(target[0], draft.shape)
    assert acceptance_rate(draft, shared)[3] == acceptance_rate(draft[3], target[0])


def test_rate_and_mass_make_one(dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (50, 700), seed=4)
    rates = acceptance_rate(draft, target)
    assert_same_bits(acceptance_rate(target, draft), rates)
    mass = accept_residual(draft, target, ids).mass
    # Rows as given sum to one only nearly: the two add up to what the target sums to.
    total = target.astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(rates + mass, total, rtol=1e-6 if dtype != "float64" else 1e-14)


def test_small_rates_are_exact() -> None:
    assert acceptance_rate([1], (1,)) == 1.0
    assert acceptance_rate([0.75, 0.25], [0.5, 0.5]) == 0.75
    assert acceptance_rate([[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]).tolist() == [0, 1]
    assert acceptance_rate(np.empty((0, 3)), np.empty((0, 3))).shape == (0,)
    assert acceptance_rate([1e308] * 4, [1e308] * 4) == np.inf


def test_types_of_rates() -> None:
    assert_type(acceptance_rate([0.5, 0.5], [1, 0]), float)
    assert_type(acceptance_rate([[0.5, 0.5]], [[1, 0]]), NDArray[np.float64])
    assert_type(expected_tokens_by_position([0.5]), float)
    assert_type(expected_tokens_block([0.5]), float)


def test_bad_rows_are_refused() -> None:
    good = np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
    bad = good.copy()
    bad[1, 0] = np.nan
    says = ("target_probs", "finite probabilities >= 0", "nan at index 0 in row 1")
    refused(ValueError, acceptance_rate, good, bad, says=says)
    bad[0, 1] = -0.5
    says = ("draft_probs", "-0.5 at index 1 in row 0", "softmax")
    refused(ValueError, acceptance_rate, bad, good, says=says)
    refused(ValueError, acceptance_rate, bad[0], good[0], says=("draft_probs", "at index 1;"))
    bad[0, 1] = np.inf
    refused(ValueError, acceptance_rate, good[0], bad[0], says=("target_probs", "inf at index 1"))


def test_rows_that_do_not_belong_together_are_refused() -> None:
    both, one = "draft_probs and target_probs", np.ones((2, 3))
    shapes = [((2, 3), (3,)), ((2, 3), (1, 3)), ((2, 0), (2, 0)), ((1, 2, 3), (1, 2, 3)), ((), ())]
    for draft, target in shapes:
        says = (both, "(V,) or (N, V) with V >= 1", f"{draft} and {target}")
        refused(ValueError, acceptance_rate, np.ones(draft), np.ones(target), says=says)
    refused(TypeError, acceptance_rate, one, one.astype(np.float32), says=(both, "float32"))
    refused(TypeError, acceptance_rate, one, one.tolist(), says=(both, "numpy.ndarray and list"))
    masked = np.ma.masked_array(one, one > 0)
    refused(TypeError, acceptance_rate, masked, one, says=("draft_probs", "masked"))


# What verification rules emit for small vocabularies, exactly.


def ratios_of(draft: Model, target: Model, drafted: tuple[int, ...]) -> list[Fraction]:
    prefixes = [drafted[:position] for position in range(len(drafted))]
    return [target(each)[t] / draft(each)[t] for each, t in zip(prefixes, drafted, strict=True)]


def drafts(
    draft: Model, vocabulary: int, length: int
) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    for drafted in product(range(vocabulary), repeat=length):
        prefixes = [drafted[:position] for position in range(length)]
        law = prod(
            (draft(each)[t] for each, t in zip(prefixes, drafted, strict=True)), start=Fraction(1)
        )
        if law > 0:
            yield law, drafted


def kept_by_block(draft: Model, target: Model, vocabulary: int, length: int) -> Fraction:
    """Sum up what Sun et al., algorithm 2, keeps: the last position whose test passes."""
    mean = Fraction(0)
    for law, drafted in drafts(draft, vocabulary, length):
        joint, passes = Fraction(1), []
        for position, ratio in enumerate(ratios_of(draft, target, drafted), 1):
            joint = min(Fraction(1), joint * ratio)
            if position == length:
                passes.append(joint)
                break
            behind = drafted[:position]
            pairs = zip(target(behind), draft(behind), strict=True)
            mass = sum((max(joint * t - d, Fraction(0)) for t, d in pairs), Fraction(0))
            whole = mass + 1 - joint
            passes.append(mass / whole if whole else Fraction(1))
        failed = Fraction(1)
        for position in reversed(range(length)):
            mean += law * failed * passes[position] * (position + 1)
            failed *= 1 - passes[position]
    return mean


def kept_by_tokens(draft: Model, target: Model, vocabulary: int, length: int) -> Fraction:
    mean = Fraction(0)
    for law, drafted in drafts(draft, vocabulary, length):
        reached = law
        for ratio in ratios_of(draft, target, drafted):
            reached *= min(Fraction(1), ratio)
            mean += reached
    return mean


def always(*parts: int) -> Model:
    law = tuple(Fraction(part, sum(parts)) for part in parts)
    return lambda _prefix: law


def contextual(seed: int, vocabulary: int) -> Model:
    """Make a law for every prefix, with zeros in some."""

    @cache
    def model(prefix: tuple[int, ...]) -> Law:
        rng = np.random.default_rng([seed, *prefix])
        parts = [int(part) for part in rng.integers(0, 4, vocabulary)]
        parts[int(rng.integers(vocabulary))] += 1
        return tuple(Fraction(part, sum(parts)) for part in parts)

    return model


# Draft, target, length, tokens kept on average token by token and by block verification.
GOLDEN = [
    ((2, 1), (1, 2), 2, "10/9", "11/9"),
    ((2, 1), (1, 2), 3, "38/27", "5/3"),
    ((2, 1), (1, 2), 4, "130/81", "166/81"),
    ((2, 1), (1, 2), 5, "422/243", "64/27"),
    ((2, 3, 5), (5, 3, 2), 2, "119/100", "5/4"),
    ((2, 3, 5), (5, 3, 2), 3, "1533/1000", "339/200"),
    ((1, 2, 3, 4), (4, 3, 2, 1), 2, "24/25", "103/100"),
    ((1, 2, 3, 4), (4, 3, 2, 1), 3, "147/125", "673/500"),
]


def mean_estimate(
    estimate: Callable[[Any], Any], draft: Model, target: Model, vocabulary: int, length: int
) -> float:
    laws, chains = zip(*drafts(draft, vocabulary, length), strict=True)
    ratios = np.array([ratios_of(draft, target, each) for each in chains], np.float64)
    return float(np.dot(np.array(laws, np.float64), estimate(ratios)))


def token_by_token(ratios: NDArray[np.float64]) -> Any:
    return expected_tokens_by_position(np.minimum(ratios, 1))


@pytest.mark.parametrize(("draft", "target", "length", "tokens", "block"), GOLDEN)
def test_estimates_have_the_golden_means(
    draft: tuple[int, ...], target: tuple[int, ...], length: int, tokens: str, block: str
) -> None:
    models = always(*draft), always(*target)
    assert kept_by_tokens(*models, len(draft), length) == Fraction(tokens)
    assert kept_by_block(*models, len(draft), length) == Fraction(block)
    mean = mean_estimate(expected_tokens_block, *models, len(draft), length)
    assert mean == pytest.approx(1 + float(Fraction(block)), rel=1e-15)
    mean = mean_estimate(token_by_token, *models, len(draft), length)
    assert mean == pytest.approx(1 + float(Fraction(tokens)), rel=1e-15)


@pytest.mark.parametrize("seed", range(24))
def test_estimates_have_the_exact_mean_for_models_that_look_at_the_context(seed: int) -> None:
    vocabulary, length = 2 + seed % 2, 1 + seed % 4
    models = contextual(seed, vocabulary), contextual(seed + 1000, vocabulary)
    for estimate, kept in (
        (expected_tokens_block, kept_by_block),
        (token_by_token, kept_by_tokens),
    ):
        exact = float(1 + kept(*models, vocabulary, length))
        assert mean_estimate(estimate, *models, vocabulary, length) == pytest.approx(
            exact, rel=1e-14
        )


@pytest.mark.parametrize(("draft", "target", "length"), [each[:3] for each in GOLDEN])
def test_block_follows_from_the_overlaps_of_the_joint_laws(
    draft: tuple[int, ...], target: tuple[int, ...], length: int
) -> None:
    """Spitzer's identity, for rows that do not depend on the context.

    With a[k] the sum of the smaller of both joint probabilities over all blocks of k tokens, the
    probability b[n] that block verification keeps n tokens obeys n b[n] = sum of a[k] b[n-k].
    """
    overlaps = [Fraction(0)]
    for k in range(1, length + 1):
        joint = product(zip(draft, target, strict=True), repeat=k)
        pairs = [(prod(d for d, _ in each), prod(t for _, t in each)) for each in joint]
        overlaps.append(Fraction(sum(map(min, pairs)), sum(draft) ** k))
    kept = [Fraction(1)]
    for n in range(1, length + 1):
        kept.append(sum((overlaps[k] * kept[n - k] for k in range(1, n + 1)), Fraction(0)) / n)
    assert sum(kept[1:]) == kept_by_block(always(*draft), always(*target), len(draft), length)


@given(st.lists(st.floats(0, 1e300), max_size=12))
def test_block_never_expects_less(ratios: list[float]) -> None:
    tokens = expected_tokens_by_position(np.minimum(ratios, 1))
    block = expected_tokens_block(ratios)
    # The sums are rounded in another order.
    assert tokens * (1 - 1e-14) <= block <= len(ratios) + 1


def test_chains_by_hand() -> None:
    assert expected_tokens_by_position([]) == expected_tokens_block([]) == 1.0
    assert expected_tokens_by_position([1, 1, 1]) == expected_tokens_block([1, 1, 1]) == 4.0
    assert expected_tokens_by_position([0.5, 0.0, 1.0]) == 1.5
    assert expected_tokens_by_position([0.9, 5 / 9, 0.4]) == pytest.approx(2.6, rel=1e-15)
    # A second token that is four times as probable makes up for a first one that is half as.
    assert expected_tokens_block([0.5, 4.0]) == 2.5
    # Never for more than it lacks: the cap is at every position.
    assert expected_tokens_block([4.0, 0.5]) == 2.5
    assert expected_tokens_block([0.5, 0.0, 9.0]) == 1.5
    assert expected_tokens_block([1e-300, 1e300, 1.0]) == pytest.approx(3.0)


def test_accept_probs_are_rates() -> None:
    draft, target, ids = random_rows("float32", (5, 300), seed=8)
    accepted = accept_probs(draft, target, ids)
    assert type(expected_tokens_by_position(accepted)) is float
    expected = 1 + sum(np.cumprod(accepted).tolist())
    assert expected_tokens_by_position(accepted) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("function", [expected_tokens_by_position, expected_tokens_block])
@pytest.mark.parametrize("library", [Library(), Torch()], ids=lambda each: each.name)
def test_every_chain_is_as_if_alone(function: Callable[[Any], Any], library: Library) -> None:
    need(library.module)
    chains = np.random.default_rng(5).random((7, 20))
    answers = library.plain(function(library.array(chains)))
    alone = [function(library.array(chain)) for chain in chains]
    assert all(type(each) is float for each in alone)
    assert answers.dtype == np.float64
    assert answers.tolist() == alone
    assert library.plain(function(library.array(chains[:, :0]))).tolist() == [1.0] * 7
    assert library.plain(function(library.array(chains[:0]))).shape == (0,)


def test_bad_chains_are_refused() -> None:
    by_position = expected_tokens_by_position
    refused(ValueError, by_position, 0.5, says=("rates", "(K,) or (N, K)", "()"))
    refused(ValueError, by_position, np.ones((1, 1, 1)), says=("rates", "(1, 1, 1)"))
    refused(ValueError, by_position, [0.5, 1.5], says=("rates", "from 0 to 1", "1.5 at index 1"))
    refused(ValueError, by_position, [[0.5], [np.nan]], says=("rates", "nan at index (1, 0)"))
    refused(TypeError, by_position, [True], says=("rates", "bool"))
    refused(ValueError, expected_tokens_block, 0.5, says=("ratios", "(K,) or (N, K)", "()"))
    for bad in (np.nan, np.inf, -0.5):
        says = ("ratios", "finite numbers >= 0", f"{bad} at index 1", "draft_probs[t] > 0")
        refused(ValueError, expected_tokens_block, [0.5, bad], says=says)
