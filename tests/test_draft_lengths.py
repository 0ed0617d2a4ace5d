"""What drafting is worth: golden tables, exact arithmetic, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, assert_type

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftverify import best_draft_length, expected_tokens, speedup
from kinds import DTYPES, Kind, elsewhere, need, refused

COSTS = (0.01, 0.02, 0.05, 0.1, 0.2)
# Best length and speedup at each of these costs.
BEST = {
    0.5: ((5, 1.8750), (4, 1.7940), (3, 1.6304), (2, 1.4583), (1, 1.2500)),
    0.6: ((7, 2.2972), (6, 2.1697), (4, 1.9213), (3, 1.6738), (2, 1.4000)),
    0.7: ((9, 2.9717), (8, 2.7576), (6, 2.3529), (4, 1.9808), (3, 1.5831)),
    0.8: ((14, 4.2316), (11, 3.8167), (8, 3.0921), (6, 2.4696), (4, 1.8676)),
    0.9: ((24, 7.4856), (19, 6.3654), (13, 4.6741), (10, 3.4309), (7, 2.3731)),
    0.95: ((40, 12.5416), (31, 9.9542), (21, 6.5997), (15, 4.4790), (10, 2.8747)),
}
# Rate, length, cost, speedup: Leviathan, Kalman and Matias, tables 1 and 2.
SPEEDUPS = [
    (0.6, 2, 0.0, 1.96),
    (0.7, 3, 0.0, 2.53),
    (0.8, 2, 0.0, 2.44),
    (0.8, 5, 0.0, 3.69),
    (0.9, 2, 0.0, 2.71),
    (0.9, 10, 0.0, 6.86),
    (0.75, 7, 0.02, 3.157),
    (0.8, 7, 0.04, 3.251),
    (0.82, 7, 0.11, 2.497),
]
RATES = [
    *(0.0, 5e-324, 1e-300, 1e-17, 0.1, 0.3, 0.5, 0.5000000000000001, 0.7, 0.9, 0.99, 0.9999),
    *(1 - 1e-6, 1 - 1e-9, 1 - 1e-12, 1 - 1e-15, 1 - 1e-16, 1.0),
]


def exact_tokens(rate: float, length: int) -> Fraction:
    """Sum up to the last digit for short chains, to 80 digits for long ones."""
    if rate == 1:
        return Fraction(length + 1)
    exact = Fraction(rate)
    if length < 100:
        return sum((exact**kept for kept in range(length + 1)), Fraction(0))
    context = Context(prec=120, Emin=-(10**9), Emax=10**9)
    power = context.power(Decimal(rate), length + 1)
    return (1 - (Fraction(power) if power > 1e-80 else 0)) / (1 - exact)


@pytest.mark.parametrize("rate", RATES)
def test_expected_tokens_are_exact_to_some_units(rate: float) -> None:
    for length in (0, 1, 2, 3, 7, 16, 64, 199, 1000, 12_345, 10**6):
        found, exact = expected_tokens(rate, length), exact_tokens(rate, length)
        assert abs(Fraction(found) - exact) <= 4 * exact / 2**53, length


@given(st.floats(0, 1), st.integers(0, 150))
def test_expected_tokens_are_exact_for_any_rate(rate: float, length: int) -> None:
    for close in (rate, 1 - rate * 2.0**-30):
        exact = exact_tokens(close, length)
        assert abs(Fraction(expected_tokens(close, length)) - exact) <= 4 * exact / 2**53


def test_expected_tokens_by_hand() -> None:
    assert expected_tokens(0.3, 0) == expected_tokens(0.0, 9) == expected_tokens(1, 0) == 1.0
    assert expected_tokens(0.5, 3) == 1.875
    assert expected_tokens(1, 10**6) == 1_000_001.0
    assert expected_tokens(0.5, 2**53 - 1) == 2.0


@pytest.mark.parametrize(("rate", "length", "cost", "expected"), SPEEDUPS)
def test_speedups_are_those_of_the_paper(
    rate: float, length: int, cost: float, expected: float
) -> None:
    digits = 3 if cost else 2
    assert round(speedup(rate, length, cost), digits) == expected
    tokens = exact_tokens(rate, length) / (1 + length * Fraction(cost))
    assert abs(Fraction(speedup(rate, length, cost)) - tokens) <= 6 * tokens / 2**53


def test_speedup_by_hand() -> None:
    assert speedup(0.75, 1, 0.25) == 1.4
    assert speedup(0.3, 0, 7.0) == 1.0
    assert speedup(1.0, 4, 0) == 5.0
    assert speedup(0.0, 4, 0.25) == 0.5
    assert speedup(0.5, 10, 1e308) == 0.0


@pytest.mark.parametrize("rate", BEST)
def test_best_lengths_are_those_of_the_table(rate: float) -> None:
    for cost, (length, factor) in zip(COSTS, BEST[rate], strict=True):
        assert best_draft_length(rate, cost) == length
        assert round(speedup(rate, length, cost), 4) == factor
    lengths, factors = zip(*BEST[rate], strict=True)
    assert best_draft_length(rate, COSTS).tolist() == list(lengths)
    assert np.round(speedup(rate, lengths, COSTS), 4).tolist() == list(factors)


def exact_best(rate: float, cost: float, longest: int) -> int:
    """Try every length; the first of the best ones is it."""
    speeds, power, tokens = [], Fraction(1), Fraction(1)
    for length in range(longest + 1):
        speeds.append(tokens / (1 + length * Fraction(cost)))
        power *= Fraction(rate)
        tokens += power
    return speeds.index(max(speeds))


def check_best(rate: float, cost: float, longest: int = 40) -> None:
    found = best_draft_length(rate, cost, longest=longest)
    assert found == exact_best(rate, cost, longest), (rate, cost)


@given(st.floats(0, 1), st.floats(0, 1.5), st.floats(0, 1))
def test_best_lengths_are_the_smallest_best_ones(rate: float, cost: float, small: float) -> None:
    check_best(rate, cost)
    check_best(rate, cost * small**8)
    check_best(1 - rate * 2.0**-20, cost)


@pytest.mark.parametrize("rate", [0.25, 0.3, 0.5, 0.75, 0.9, 1 - 1e-9, 1 - 1e-16, 1.0])
def test_best_lengths_beside_a_tie(rate: float) -> None:
    """Costs at which two lengths are as good as can be told, and the next ones to both sides."""
    for length in (0, 1, 2, 5, 20):
        power = Fraction(rate) ** (length + 1)
        # Where rate ** (length + 1) * (1 + length * cost) == cost * emitted.
        tie = float(power / (exact_tokens(rate, length) - length * power))
        for cost in (np.nextafter(tie, 0), tie, np.nextafter(tie, 2)):
            check_best(rate, float(cost), longest=25)


def test_best_lengths_at_the_edges() -> None:
    # Free drafts: the more the better, also where the gain is too small for float64.
    assert best_draft_length(0.5, 0.0) == best_draft_length(1e-300, 0) == 64
    assert best_draft_length(0.5, 1e-30, longest=200) == exact_best(0.5, 1e-30, 200) == 98
    assert best_draft_length(0.5, 5e-324, longest=1500) == 1073
    # Nothing is kept, or a draft costs what it saves: do not draft.
    assert best_draft_length(0.0, 0.0) == best_draft_length(0.3, 0.3) == 0
    assert best_draft_length(1.0, 1.0) == best_draft_length(1.0, 1e308) == 0
    assert best_draft_length(1.0, 1 - 2.0**-53, longest=2**16) == 2**16
    assert best_draft_length(0.9, 0.1, longest=0) == 0
    assert best_draft_length(0.9, 0.1, longest=np.int8(3)) == 3


def test_arguments_broadcast(kind: Kind) -> None:
    rates, costs = kind.make([[0.5], [0.75]]), kind.make([0.0, 0.125, 0.25])
    lengths = [0, 3, 7]
    tokens = kind.library.plain(expected_tokens(rates, lengths))
    factors = kind.library.plain(speedup(rates, lengths, costs))
    best = kind.library.plain(best_draft_length(rates, costs))
    assert tokens.dtype == factors.dtype == np.float64
    assert best.dtype == np.int64
    for row, rate in enumerate((0.5, 0.75)):
        for column, (length, cost) in enumerate(zip(lengths, (0.0, 0.125, 0.25), strict=True)):
            assert tokens[row, column] == expected_tokens(rate, length)
            assert factors[row, column] == speedup(rate, length, cost)
            assert best[row, column] == best_draft_length(rate, cost)


def test_numbers_in_give_python_numbers() -> None:
    assert_type(expected_tokens(0.5, 3), float)
    assert_type(speedup(0.5, 3, 0.1), float)
    assert_type(best_draft_length(0.5, 0.1), int)
    numbers = [0.5, np.float64(0.5), np.float32(0.5), np.array(0.5), ml_dtypes.bfloat16(0.5)]
    for rate in numbers:
        for length in (3, np.int8(3), np.uint64(3), np.array(3)):
            found = expected_tokens(rate, length)
            assert type(found) is float
            assert found == 1.875
            assert type(speedup(rate, length, rate)) is float
        assert type(best_draft_length(rate, 0.25)) is int


def test_lengths_of_any_integer_dtype() -> None:
    torch = need("torch")
    for dtype in ("int8", "uint8", "int16", "int32", "uint64"):
        assert expected_tokens(0.5, np.array([0, 3], dtype)).tolist() == [1.0, 1.875]
    for dtype in (torch.int32, torch.int64, torch.uint8):
        found = expected_tokens(0.5, torch.tensor([0, 3], dtype=dtype))
        assert type(found) is torch.Tensor
        assert found.tolist() == [1.0, 1.875]
    assert expected_tokens([], []).shape == expected_tokens(np.empty(0), []).shape == (0,)
    assert expected_tokens(torch.tensor(0.5, requires_grad=True), 3) == 1.875


def test_nothing_is_written_or_warned_about() -> None:
    rates = np.array([0.0, 1e-320, 0.5, 1.0])
    rates.flags.writeable = False
    with np.errstate(all="raise"):
        assert expected_tokens(rates, 1000).tolist() == [1.0, 1.0, 2.0, 1001.0]
        assert speedup(rates, 10, 1e308).tolist() == [0.0] * 4
        assert speedup(0.0, 1, 1.7e308) == 1 / 1.7e308
        assert best_draft_length(rates, [0.0, 1e-320, 1e308, 0.0]).tolist() == [0, 0, 0, 64]


EVERY: tuple[Callable[[Any], Any], ...] = (
    lambda rate: expected_tokens(rate, 3),
    lambda rate: speedup(rate, 3, 0.1),
    lambda rate: best_draft_length(rate, 0.1),
)


@pytest.mark.parametrize("function", EVERY)
def test_bad_rates_are_refused(function: Callable[[Any], Any]) -> None:
    name = "acceptance_rate"
    for bad in (-0.5, np.nan, np.inf, -np.inf, 2, 80.0, 10**400, -1e-300):
        refused(ValueError, function, bad, says=(name, "rates from 0 to 1"))
    refused(ValueError, function, [0.5, 1.5], says=(name, "got 1.5 at index 1"))
    refused(ValueError, function, np.array([[0.5], [-0.5]]), says=(name, "at index (1, 0)"))
    refused(ValueError, function, 1 + 1e-9, says=(name, "numpy.minimum(rate, 1)"))
    refused(ValueError, function, -(10**400), says=(name, "got -inf; "))
    refused(ValueError, function, 80, says=(name, "got 80.0; pass a probability"))
    wrong: Any
    for wrong in (
        True,
        np.True_,
        "0.5",
        None,
        0.5j,
        np.longdouble(0.5),
        Fraction(1, 2),
        [True],
        {},
    ):
        refused(TypeError, function, wrong, says=(name,))
    for dtype in (bool, complex, object, "M8[s]", np.longdouble):
        refused(TypeError, function, np.zeros(1, dtype), says=(name, "got "))
    refused(TypeError, function, np.ma.masked_array([0.5], [True]), says=(name, "masked"))
    refused(ValueError, function, [[0.5], [0.5, 0.5]], says=(name, "of one length"))


def test_bad_lengths_and_costs_are_refused() -> None:
    name = "draft_length"
    for bad in (-1, 2**53 + 1, 10**400, -(10**400)):
        refused(ValueError, expected_tokens, 0.5, bad, says=(name, "integers >= 0 and < 2**53"))
    refused(ValueError, speedup, 0.5, [3, -1], 0.1, says=(name, "-1 at index 1"))
    largest = np.array([2**64 - 1], np.uint64)
    refused(ValueError, expected_tokens, 0.5, largest, says=(name, "at index 0"))
    wrong: Any
    for wrong in (3.0, True, [True], "3", None, np.array([3.0]), [3.0], np.float32(3)):
        refused(TypeError, expected_tokens, 0.5, wrong, says=(name,))
        refused(TypeError, speedup, 0.5, wrong, 0.1, says=(name,))
    for bad_cost in (-0.1, np.nan, np.inf, 10**400):
        says = ("cost_ratio", "finite numbers >= 0", "time of a draft step")
        refused(ValueError, speedup, 0.5, 3, bad_cost, says=says)
        refused(ValueError, best_draft_length, 0.5, bad_cost, says=says)
    refused(TypeError, speedup, 0.5, 3, False, says=("cost_ratio", "bool"))
    for longest in (-1, 2**16 + 1):
        call = lambda longest=longest: best_draft_length(0.5, 0.1, longest=longest)  # noqa: E731
        refused(ValueError, call, says=("longest", "from 0 to 65536"))
    for wrong in (2.0, True, None):
        call = lambda longest=wrong: best_draft_length(0.5, 0.1, longest=longest)  # noqa: E731
        refused(TypeError, call, says=("longest", "an integer"))


def test_arguments_that_do_not_belong_together_are_refused() -> None:
    torch = need("torch")
    pair = torch.tensor([0.5, 0.5])
    says = ("acceptance_rate and draft_length", "broadcast together", "(2,) and (3,)")
    refused(ValueError, expected_tokens, [0.5, 0.5], [1, 2, 3], says=says)
    says = ("acceptance_rate and draft_length", "one library", "torch.Tensor and numpy.ndarray")
    refused(TypeError, expected_tokens, pair, np.array([1, 2]), says=says)
    assert type(expected_tokens(pair, [1, 2])) is torch.Tensor
    refused(TypeError, expected_tokens, pair.to_sparse(), 3, says=("acceptance_rate", "sparse"))
    says = ("acceptance_rate", "on the CPU", "cuda:1")
    refused(NotImplementedError, expected_tokens, elsewhere(pair), 3, says=says)


def test_every_dtype_is_widened(dtype: str) -> None:
    rates = np.array([0.3, 0.9], DTYPES[dtype])
    assert expected_tokens(rates, 5).tolist() == [expected_tokens(float(r), 5) for r in rates]
