"""The exact law of floating-point code, measured with chosen uniforms and no statistics.

Code that decides by comparing uniforms with thresholds treats all uniforms between two thresholds
alike. So each uniform is asked for once in every cell, and counts with the width of the cell. The
cells are either those between the thresholds of the right rule, of any width, or N equal ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from draftverify.testing._instances import Instance
from draftverify.testing._laws import Context, Emitted, Model, Path, gathered, paths
from draftverify.testing._rules import (
    ONE,
    RULES,
    ZERO,
    Row,
    Rule,
    Thresholds,
    most_probable,
    one_hot,
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


@dataclass(frozen=True)
class Feed:
    """How code under test is fed.

    Attributes
    ----------
    one_hot : bool
        Pass None for the draft's rows: the drafted tokens are certain proposals.
    log_probs : bool
        Pass logarithms of the probabilities, -inf for 0, as logits.
    dtype, uniform_dtype : dtype
        Of the rows and of the uniforms.
    interval : str
        ``"[0,1)"``, or ``"(0,1]"`` for code that expects uniforms as cuRAND makes them.
    padding : int
        So many positions more than drafted tokens: ids of -1, rows and uniforms of NaN.
    tolerance : float, optional
        How far from the exact thresholds, in a uniform, the code may change its mind. By default
        not at all where all numbers are exact in the dtype, else a few of its rounding errors.
    convert : callable, optional
        From a NumPy array to one of the library that the code takes, as `torch.from_numpy`.
    """

    one_hot: bool = False
    log_probs: bool = False
    dtype: DTypeLike = np.float64
    uniform_dtype: DTypeLike = np.float64
    interval: Literal["[0,1)", "(0,1]"] = "[0,1)"
    padding: int = 0
    tolerance: float | None = None
    convert: Callable[[NDArray[Any]], Any] | None = None


PLAIN = Feed()


class TooFineError(ValueError):
    """Thresholds lie closer together than the dtype can tell apart."""


class Axis(NamedTuple):
    """What one uniform is set to, and the exact width of the cells these values stand for."""

    values: NDArray[np.float64]
    widths: Row


def rule_of(method: str, feed: Feed = PLAIN) -> Rule:
    """Find the right rule for a method by its name."""
    if method not in RULES:
        message = f"method: expected one of {', '.join(RULES)}, got {method!r}"
        raise ValueError(message)
    return one_hot(RULES[method]) if feed.one_hot else RULES[method]


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
        of the running sum in the order of the ids. Bind other arguments with `functools.partial`.
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
    ValueError
        Where the code answers what no verification can answer: ids that were not drafted, an id
        outside the vocabulary, another shape, no -1 behind the end. Where two thresholds are too
        close for the dtype.

    Notes
    -----
    Code that is not right has thresholds inside cells, and what is measured of it is then no more
    than near to its law: `grid` with many cells comes nearer.

    Examples
    --------
    >>> from draftverify import testing
    >>> two = testing.t2(draft_length=2)
    >>> verify = testing.as_chain(testing.block)
    >>> found = testing.law_of(verify, two, method="block", grid=12)
    >>> print(found.expected_accepted, found.outcomes[0, 0, 1])
    11/9 2/27
    """
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
        for key, share in _answers(verify, probes, instance.vocabulary, feed).items():
            tally[key] = tally.get(key, ZERO) + share
    emissions = ((sequence, kept, share) for (sequence, kept), share in tally.items())
    return gathered(emissions, target_of(instance, method), instance.draft_length + 1)


def target_of(instance: Instance, method: str) -> Model:
    """Give the model whose law is to be emitted: of greedy verification, that of the argmax."""
    if method != "greedy":
        return instance.target
    return lambda context: most_probable(instance.target(context))


class Probe(NamedTuple):
    """Uniforms for one drafted chain and what each row of them counts."""

    path: Path
    uniforms: NDArray[np.float64]
    weights: NDArray[np.object_]
    denominator: int


def batches(
    instance: Instance, method: str, feed: Feed, place: Place, grid: int | None = None
) -> Iterator[list[Probe]]:
    """Pack the probes of all chains, so that a call has many rows and not too many."""
    rule = rule_of(method, feed)
    batch: list[Probe] = []
    rows = 0
    for path in paths(instance.draft, instance.target, instance.draft_length):
        axes = _axes(path, rule, feed, place, grid)
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


def _axes(path: Path, rule: Rule, feed: Feed, place: Place, grid: int | None) -> list[Axis]:
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


def _answers(
    verify: Callable[..., Any], probes: list[Probe], vocabulary: int, feed: Feed
) -> dict[tuple[Context, int], Fraction]:
    """Let the code verify, check the form of its answers, and weigh them."""
    length = len(probes[0].path.token_ids)
    repeats = [len(probe.uniforms) for probe in probes]
    ids = np.repeat(
        np.array([probe.path.token_ids for probe in probes], np.int64).reshape(len(probes), length),
        repeats,
        axis=0,
    )
    arrays: list[NDArray[Any] | None] = [
        None
        if feed.one_hot
        else _rows([probe.path.draft_rows for probe in probes], repeats, vocabulary, feed),
        _rows([probe.path.target_rows for probe in probes], repeats, vocabulary, feed),
        _padded(ids, feed.padding, -1),
        _padded(
            np.concatenate([probe.uniforms for probe in probes]).astype(feed.uniform_dtype),
            feed.padding,
            np.nan,
        ),
    ]
    convert = feed.convert or (lambda array: array)
    answer = verify(*(None if array is None else convert(array) for array in arrays))
    kept, emitted = verdicts(answer, ids, vocabulary, feed.padding)
    tally: dict[tuple[Context, int], Fraction] = {}
    start = 0
    for probe in probes:
        rows = slice(start, start := start + len(probe.uniforms))
        finals = emitted[np.arange(rows.start, rows.stop), kept[rows]]
        codes = kept[rows] * vocabulary + finals
        for code in np.unique(codes).tolist():
            n, final = divmod(code, vocabulary)
            count = int(probe.weights[codes == code].sum())
            key = ((*probe.path.token_ids[:n], final), n)
            share = probe.path.probability * Fraction(count, probe.denominator)
            tally[key] = tally.get(key, ZERO) + share
    return tally


def _rows(
    of_probes: list[tuple[Row, ...]], repeats: list[int], vocabulary: int, feed: Feed
) -> NDArray[Any]:
    """Make the rows of a batch in the dtype of the feed."""
    floats = np.array([[[float(x) for x in row] for row in rows] for rows in of_probes])
    floats = floats.reshape(len(of_probes), len(of_probes[0]), vocabulary)
    if feed.log_probs:
        with np.errstate(divide="ignore"):
            floats = np.log(floats)
    return _padded(np.repeat(floats.astype(feed.dtype), repeats, axis=0), feed.padding, np.nan)


def _padded(array: NDArray[Any], padding: int, fill: float) -> NDArray[Any]:
    """Add positions that must not be read."""
    if not padding:
        return array
    shape = (array.shape[0], padding, *array.shape[2:])
    return np.concatenate([array, np.full(shape, fill).astype(array.dtype)], axis=1)


def verdicts(
    answer: Any, ids: NDArray[np.int64], vocabulary: int, padding: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Take num_accepted and token_ids to NumPy; raise a ValueError if they cannot be right."""
    kept, emitted = (
        np.asarray(each.cpu() if hasattr(each, "cpu") else each) for each in tuple(answer)
    )
    rows, length = ids.shape
    expected = (rows, length + padding + 1)
    if kept.shape != (rows,) or emitted.shape != expected:
        message = (
            f"verify: expected num_accepted of shape ({rows},) and token_ids of shape {expected}, "
            f"got {kept.shape} and {emitted.shape}"
        )
        raise ValueError(message)
    if kept.dtype.kind not in "iu" or emitted.dtype.kind not in "iu":
        message = f"verify: expected integers, got {kept.dtype} and {emitted.dtype}"
        raise ValueError(message)
    kept, emitted = kept.astype(np.int64), emitted.astype(np.int64)
    column = np.arange(length + padding + 1)
    proposed = np.concatenate([ids, np.zeros((rows, padding + 1), np.int64)], axis=1)
    n = kept[:, None]
    within = (emitted >= 0) & (emitted < vocabulary)
    wrong = {
        f"expected num_accepted from 0 to {length}": (kept < 0) | (kept > length),
        "expected the kept ids to be the drafted ones": ((column < n) & (emitted != proposed)).any(
            1
        ),
        f"expected a final id from 0 to {vocabulary - 1}": ((column == n) & ~within).any(1),
        "expected -1 behind the final id": ((column > n) & (emitted != -1)).any(1),
    }
    for expectation, rows_wrong in wrong.items():
        if rows_wrong.any():
            b = int(np.argmax(rows_wrong))
            message = (
                f"verify: {expectation} for the drafted {ids[b].tolist()}, got num_accepted "
                f"{kept[b]} and token_ids {emitted[b].tolist()}"
            )
            raise ValueError(message)
    return kept, emitted
