"""The exact law of floating-point code, measured with chosen uniforms and no statistics.

Code that decides by comparing uniforms with thresholds treats all uniforms between two thresholds
alike. So each uniform is asked for once in every cell, and counts with the width of the cell. The
cells are either those between the thresholds of the right rule, of any width, or N equal ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify.testing._feed import (
    PLAIN,
    Feed,
    Probe,
    answers,
    expect_callable,
    rule_of,
    target_of,
)
from draftverify.testing._instances import Instance
from draftverify.testing._laws import Context, Emitted, Path, gathered, paths
from draftverify.testing._rules import (
    ONE,
    ZERO,
    Row,
    Rule,
    Thresholds,
    single,
)

Place = Literal["low", "middle", "high"]
PLACES: tuple[Place, ...] = ("low", "middle", "high")
# Numbers with a denominator up to this are exact in every float dtype, and so are their products.
_FINEST_EXACT = 64
# What is allowed where numbers are rounded: so many roundings, relative to the smallest mass.
_ROUNDINGS = 2
_ROUNDINGS_OF_LOGS = 8
_ROWS_A_CALL = 8192


class TooFineError(ValueError):
    """Thresholds lie closer together than the dtype can tell apart."""


class Axis(NamedTuple):
    """What one uniform is set to, and the exact width of the cells these values stand for."""

    values: NDArray[np.float64]
    widths: Row


def law_of(  # noqa: PLR0913 - the last three by name
    verify: Callable[..., Any],
    instance: Instance,
    *,
    method: str = "standard",
    feed: Feed = PLAIN,
    place: Place = "middle",
    grid: int | None = None,
) -> Emitted:
    """Measure the exact law of code that verifies chains.

    Every chain that can be drafted is verified with every combination of chosen uniforms: one in
    each cell. What comes out is weighed with the widths of the cells, as fractions.

    Parameters
    ----------
    verify : callable
        ``verify(draft_probs, target_probs, draft_token_ids, uniforms)``, returning num_accepted
        and token_ids: rows (B, K, V) and (B, K + 1, V), ids (B, K), uniforms (B, K + 1); results
        (B,) and (B, K + 1), with -1 behind the final id. The final token is drawn by the inverse
        of the running sum in the order of the ids, with the uniform behind those of the drafted
        tokens whatever was rejected: of code that draws it with another one, however sound, the
        cells are not those that are measured. Bind other arguments with `functools.partial`.
    instance : Instance
        The models.
    method : str
        ``"standard"``, ``"block"`` or ``"greedy"``: whose thresholds bound the cells.
    feed : Feed
        Dtypes, layout, library.
    place : str
        Where in the cells: in the ``"middle"``, or next to the ``"low"`` or ``"high"`` end. Code
        that is monotone in each uniform and gives the same law at both ends has its thresholds
        where they belong.
    grid : int, optional
        So many equal cells instead, (k + 1/2) / grid in the middle, for each uniform. Exact for
        code whose thresholds and running sums are multiples of 1 / grid.

    Returns
    -------
    Emitted
        As of `emitted_law`, but measured. After greedy verification sequences are continued by the
        target's most probable tokens.

    Raises
    ------
    TypeError
        Where ``verify`` cannot be called, or answers something else than two arrays of integers.
    ValueError
        Where the code answers what no verification can answer: ids that were not drafted, an id
        outside the vocabulary, another shape, no -1 behind the end. Where two thresholds are too
        close for the dtype.

    Notes
    -----
    Code that is not right has thresholds inside cells, and what is measured of it is then no more
    than near to its law: ``grid`` with many cells comes nearer.

    Examples
    --------
    >>> from draftverify import testing
    >>> two = testing.t2(draft_length=2)
    >>> verify = testing.as_chain(testing.block)
    >>> found = testing.law_of(verify, two, method="block", grid=12)
    >>> print(found.expected_accepted, found.outcomes[0, 0, 1])
    11/9 2/27
    """
    expect_callable(verify)
    return measured(verify, batches(instance, method, feed, place, grid), instance, method, feed)


def measured(
    verify: Callable[..., Any],
    batches: Iterable[list[Probe]],
    instance: Instance,
    method: str,
    feed: Feed,
) -> Emitted:
    """Hand over what has been prepared by `batches`, and gather the answers."""
    tally: dict[tuple[Context, int], Fraction] = {}
    for probes in batches:
        for key, share in answers(verify, probes, instance.vocabulary, feed).items():
            tally[key] = tally.get(key, ZERO) + share
    emissions = ((sequence, kept, share) for (sequence, kept), share in tally.items())
    return gathered(emissions, target_of(instance, method), instance.draft_length + 1)


def batches(  # noqa: PLR0913 - what makes the cells
    instance: Instance,
    method: str,
    feed: Feed,
    place: Place,
    grid: int | None = None,
    *,
    any_uniform: bool = False,
) -> Iterator[list[Probe]]:
    """Pack the probes of all chains, so that a call has many rows and not too many.

    With `any_uniform` every uniform has the cells of all: whichever of them code compares with what
    threshold, it does not change its mind within one.
    """
    rule = rule_of(method, feed)
    batch: list[Probe] = []
    rows = 0
    for path in paths(instance.draft, instance.target, instance.draft_length):
        axes = _axes(path, rule, feed, place, grid, any_uniform=any_uniform)
        shape = [len(axis.values) for axis in axes]
        # Whole numbers count faster than fractions.
        scales = [math.lcm(*(width.denominator for width in axis.widths)) for axis in axes]
        counts = [
            np.array([int(width * scale) for width in axis.widths], dtype=object)
            for axis, scale in zip(axes, scales, strict=True)
        ]
        for start in range(0, math.prod(shape), _ROWS_A_CALL):
            flat = np.arange(start, min(start + _ROWS_A_CALL, math.prod(shape)))
            picks = np.unravel_index(flat, shape)
            uniforms = np.stack(
                [axis.values[pick] for axis, pick in zip(axes, picks, strict=True)], axis=1
            )
            weights = np.ones(len(flat), dtype=object)
            for axis_counts, pick in zip(counts, picks, strict=True):
                weights = weights * axis_counts[pick]
            batch.append(Probe(path, uniforms, weights, math.prod(scales)))
            rows += len(flat)
            if rows >= _ROWS_A_CALL:
                yield batch
                batch, rows = [], 0
    if batch:
        yield batch


def _axes(  # noqa: PLR0913 - as of `batches`
    path: Path, rule: Rule, feed: Feed, place: Place, grid: int | None, *, any_uniform: bool
) -> list[Axis]:
    """Choose the values of each uniform for one chain."""
    thresholds = rule(path.token_ids, path.draft_rows, path.target_rows)
    reached = [
        weights
        for probability, weights in zip(thresholds.kept(), thresholds.finals, strict=True)
        if probability
    ]
    sums = {
        running / sum(weights) for weights in reached for running in itertools.accumulate(weights)
    }
    edges: list[set[Fraction]] = [{each} for each in thresholds.passes] + [sums]
    if any_uniform:
        edges = [set().union(*edges)] * len(edges)
    if grid is not None:
        if grid < 1:
            message = f"grid: expected at least one cell, got {grid}"
            raise ValueError(message)
        edges = [{Fraction(k, grid) for k in range(grid)} for _ in edges]
    slack = feed.tolerance
    if slack is None:
        slack = _slack(path, thresholds, reached, edges, feed)
    return [_axis(sorted(each | {ZERO, ONE}), slack, feed, place) for each in edges]


def _slack(
    path: Path,
    thresholds: Thresholds,
    reached: list[Row],
    edges: list[set[Fraction]],
    feed: Feed,
) -> float:
    """Bound how far rounding moves a threshold: by nothing where nothing is rounded."""
    proposals = path.draft_rows
    if feed.one_hot:
        vocabulary = len(path.target_rows[0])
        proposals = tuple(single(vocabulary, token) for token in path.token_ids)
    drafted = [row[token] for row, token in zip(proposals, path.token_ids, strict=True)]
    totals = [sum(weights, ZERO) for weights in reached]
    numbers = {*itertools.chain(*proposals, *path.target_rows, *reached, *edges)}
    exact = all(map(_dyadic, numbers | {*thresholds.passes}))
    if exact and all(map(_power_of_two, [*drafted, *totals])) and not feed.log_probs:
        return 0.0
    rounding = max(_epsilon(np.dtype(feed.dtype)), _epsilon(np.dtype(feed.uniform_dtype)))
    roundings = _ROUNDINGS_OF_LOGS if feed.log_probs else _ROUNDINGS
    return roundings * rounding / float(min(totals))


def _dyadic(number: Fraction) -> bool:
    return number.denominator.bit_count() == 1 and number.denominator <= _FINEST_EXACT


def _power_of_two(number: Fraction) -> bool:
    return _dyadic(number) and number.numerator.bit_count() == 1


@cache
def _epsilon(dtype: np.dtype[Any]) -> float:
    """Give the distance from 1 to the next number, also of dtypes that NumPy does not know."""
    one = np.ones((), dtype)
    epsilon = 1.0
    while one + np.asarray(epsilon / 2).astype(one.dtype) > one:
        epsilon /= 2
    return epsilon


def _axis(edges: list[Fraction], slack: float, feed: Feed, place: Place) -> Axis:
    """Put a value into each cell."""
    cells = [(low, high) for low, high in itertools.pairwise(edges) if ZERO <= low < high <= ONE]
    widths = tuple(high - low for low, high in cells)
    if float(min(widths)) <= 2 * slack:
        apart = float(min(widths))
        message = f"thresholds {apart:.3g} apart, {np.dtype(feed.dtype)} may not tell them apart"
        raise TooFineError(message)
    dtype = np.dtype(feed.uniform_dtype)
    if place == "middle":
        values = np.array([float(low + high) / 2 for low, high in cells])
    elif slack:
        values = np.array(
            [float(low) + slack if place == "low" else float(high) - slack for low, high in cells]
        )
    else:
        ends = np.array([float(low if place == "low" else high) for low, high in cells], dtype)
        inside = (place == "low") == (feed.interval == "[0,1)")
        other = np.array([float(high if place == "low" else low) for low, high in cells], dtype)
        values = (ends if inside else np.nextafter(ends, other)).astype(np.float64)
    return Axis(values, widths)
