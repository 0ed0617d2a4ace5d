"""What drafting so many tokens is worth: the closed forms of Leviathan, Kalman and Matias."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from draftverify import _tokens
from draftverify._compiling import eager
from draftverify._numbers import Floats, Numbers

_COST_CURE = "pass the time of a draft step divided by that of a target step"
# `best_draft_length` may compute powers of this order exactly.
_LONGEST = 2**16


@overload
def expected_tokens(acceptance_rate: float, draft_length: int) -> float: ...
@overload
def expected_tokens(acceptance_rate: object, draft_length: object) -> Any: ...
@eager
def expected_tokens(acceptance_rate: object, draft_length: object) -> Any:
    """Answer how many tokens a step of the target emits on average.

    Parameters
    ----------
    acceptance_rate : float or array
        How probable it is that a drafted token is kept: the same at every position, whatever became
        of the others. From 0 to 1.
    draft_length : int or array of int
        How many tokens are drafted for each step.

    Returns
    -------
    float or array, float64
        ``(1 - rate ** (length + 1)) / (1 - rate)``, the last token included, which is drawn anew. A
        Python float where all arguments are numbers, else an array of the caller's library, of the
        shape that the arguments broadcast to.

    Raises
    ------
    TypeError
        Arguments that are no numbers, lengths that are no integers, arrays of two libraries.
    ValueError
        Rates outside 0 to 1, negative lengths, shapes that do not broadcast together.
    NotImplementedError
        Tensors on another device than the CPU.

    Notes
    -----
    Leviathan, Kalman and Matias, ICML 2023, equation 1 (arXiv 2211.17192). Nothing cancels near a
    rate of 1: the error is some units in the last place for every rate and length.

    Examples
    --------
    >>> expected_tokens(0.5, 3)
    1.875
    >>> expected_tokens(1.0, [1, 2, 3])
    array([2., 3., 4.])
    """
    numbers = Numbers()
    numbers.rates("acceptance_rate", acceptance_rate)
    numbers.lengths("draft_length", draft_length)
    return numbers.answer(_emitted(*numbers.together()))


@overload
def speedup(acceptance_rate: float, draft_length: int, cost_ratio: float) -> float: ...
@overload
def speedup(acceptance_rate: object, draft_length: object, cost_ratio: object) -> Any: ...
@eager
def speedup(acceptance_rate: object, draft_length: object, cost_ratio: object) -> Any:
    """Answer how many times faster decoding becomes.

    Parameters
    ----------
    acceptance_rate : float or array
        As for `expected_tokens`.
    draft_length : int or array of int
        As for `expected_tokens`.
    cost_ratio : float or array
        The time of a draft step divided by that of a target step, which is taken to be the same for
        one token as for ``draft_length + 1``.

    Returns
    -------
    float or array, float64
        ``expected_tokens(rate, length) / (1 + length * cost)``, as `expected_tokens` answers it.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `expected_tokens` does; negative or infinite costs are a ValueError.

    Notes
    -----
    Leviathan, Kalman and Matias, ICML 2023, theorem 3.8 (arXiv 2211.17192).

    Examples
    --------
    >>> speedup(0.75, 1, 0.25)
    1.4
    """
    numbers = Numbers()
    numbers.rates("acceptance_rate", acceptance_rate)
    numbers.lengths("draft_length", draft_length)
    numbers.finite("cost_ratio", cost_ratio, _COST_CURE)
    rate, length, cost = numbers.together()
    with np.errstate(over="ignore", under="ignore"):
        return numbers.answer(_emitted(rate, length) / (1 + length * cost))


@overload
def best_draft_length(
    acceptance_rate: float, cost_ratio: float, *, longest: SupportsIndex = 64
) -> int: ...
@overload
def best_draft_length(
    acceptance_rate: object, cost_ratio: object, *, longest: SupportsIndex = 64
) -> Any: ...
@eager
def best_draft_length(
    acceptance_rate: object, cost_ratio: object, *, longest: SupportsIndex = 64
) -> Any:
    """Answer the draft length of the largest `speedup`, the smallest one of several.

    Parameters
    ----------
    acceptance_rate : float or array
        As for `expected_tokens`.
    cost_ratio : float or array
        As for `speedup`.
    longest : int, default 64
        Look no further than this length, at most 65536.

    Returns
    -------
    int or array, int64
        From 0 to ``longest``; 0, do not draft, unless the rate exceeds the cost. A Python int where
        all arguments are numbers, else an array as of `expected_tokens`.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `speedup` does; a ``longest`` that is no integer or out of range.

    Notes
    -----
    The speedup rises up to the best length and falls behind it. Lengths that rounding does not tell
    apart are compared exactly.

    Examples
    --------
    >>> best_draft_length(0.8, 0.05)
    8
    >>> best_draft_length([0.3, 0.6, 0.9], 0.1)
    array([ 1,  3, 10])
    """
    numbers = Numbers()
    numbers.rates("acceptance_rate", acceptance_rate)
    numbers.finite("cost_ratio", cost_ratio, _COST_CURE)
    end = _tokens.as_index("longest", longest)
    if not 0 <= end <= _LONGEST:
        message = (
            f"longest: expected an integer from 0 to {_LONGEST}, got {longest}; pass the length "
            f"that the engine allows"
        )
        raise ValueError(message)
    rate, cost = numbers.together()
    low, high = np.zeros(rate.shape, np.int64), np.full(rate.shape, end, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        rises = _rises(rate, cost, middle)
        low, high = (
            np.where((low < high) & rises, middle + 1, low),
            np.where((low < high) & ~rises, middle, high),
        )
    return numbers.answer(low)


def _emitted(rate: Floats, length: Floats) -> Floats:
    """Compute 1 + rate * (1 - rate ** length) / (1 - rate), from terms that do not cancel."""
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        beyond = rate * -np.expm1(length * np.log(rate)) / (1 - rate)
    beyond = np.where(rate == 1, length, np.where((rate == 0) | (length == 0), 0.0, beyond))
    return np.asarray(1 + beyond)


def _rises(rate: Floats, cost: Floats, length: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether one more token than `length` gives a larger speedup.

    That is rate ** (length + 1) * (1 + length * cost) > cost * emitted. Logarithms do not
    underflow; what they leave open is decided exactly. Where a step of the draft costs as much as
    one of the target, nothing is gained.
    """
    with np.errstate(all="ignore"):
        power, price = (length + 1) * np.log(rate), np.log(cost)
        left = power + np.log1p(length * cost)
        right = price + np.log(_emitted(rate, length.astype(np.float64)))
        error = 2.0**-48 * (1 + np.abs(power) + np.abs(price))
        rises = np.array((left > right) & (cost < 1))
        undecided = (np.abs(left - right) <= error) & (cost < 1)
    for index in map(tuple, np.argwhere(undecided)):
        rises[index] = _rises_exactly(float(rate[index]), float(cost[index]), int(length[index]))
    return rises


def _rises_exactly(rate: float, cost: float, length: int) -> bool:
    """Compare as `_rises` does, for a cost below 1."""
    exact, price = Fraction(rate), Fraction(cost)
    over = exact ** (length + 1) * ((1 + length * price) * (1 - exact) + price) > price
    return rate == 1 or over
