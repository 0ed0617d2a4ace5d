"""Independence: the randomness of drafting, of accepting and of replacing must not be shared.

A verification is exact only if, given the tokens before it, each drafted token follows the draft's
row, and each uniform number is independent of all that came before it:

- The uniform that accepts a drafted token must be independent of the noise that token was drawn
  with. Otherwise a token is accepted more or less often than target / draft says. Being drawn tells
  something about the noise: by inverse CDF the first token comes from the small numbers, which also
  accept; with Gumbel noise a token drawn had a large number.
- The uniform of the final draw must be independent of those that accepted: a rejection says that
  one of them was large, and the replacement would be drawn from the large ones only.
- The uniform of the final draw must be independent of the draft's noise: a rejected token says what
  that noise was.
- The noise of each position must be independent of that of the others, and so must the uniforms: a
  position is reached only if those before it were kept. A request's numbers may not come back for
  another request, nor at its next step, where the two are looked at together.

One generator may serve all, with every number used once. Sharing one seed or offset is what goes
wrong: vLLM drew the draft's Gumbel noise and the noise of the replacement from the same Philox
offset (pull request 54282), and its tests of 4,096 tokens did not see it. Sharing noise between the
two models is right for one rule only, which keeps a drafted token iff the target would have drawn
the same one with the same noise (Daliri et al., arXiv 2408.07978).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftverify.testing._feed import verdicts
from draftverify.testing._instances import Instance
from draftverify.testing._laws import Context, Emitted, Model, gathered

Floats = NDArray[np.float64]
# From 2 K + 1 independent columns to the draft's noise (rows, K) and the uniforms (rows, K + 1).
Coupling = Callable[[Floats, int], tuple[Floats, Floats]]
FEWEST = 512
_TABLE = 8
_SHARE = 0.1


def law_of_step(
    step: Callable[[Floats], Any],
    target: Model,
    draft_length: int,
    grid: Sequence[int],
) -> Emitted:
    """Measure the exact law of a whole step, drafting included, from the noise that it is handed.

    Parameters
    ----------
    step : callable
        From independent uniforms of shape (rows, columns) to num_accepted (rows,) and token_ids
        (rows, draft_length + 1): it drafts and verifies with these and no other randomness. If it
        uses a column twice, the law shows it.
    target : callable
        The target model.
    draft_length : int
        Drafted tokens a step.
    grid : sequence of int
        For each column the number N of its values (k + 1/2) / N. The law is exact where all
        thresholds that are compared with a column are multiples of its 1 / N.

    Returns
    -------
    Emitted
        To be compared with the target's law by `total_variation`.

    Examples
    --------
    >>> from draftverify import testing
    >>> two, verify = testing.t2(draft_length=1), testing.as_chain(testing.standard)
    >>> def step(noise):  # the uniform that has drafted also accepts
    ...     return testing.speculate(verify, two, noise[:, :1], noise[:, :2])
    >>> found = testing.law_of_step(step, two.target, 1, grid=(6, 3))
    >>> print(testing.total_variation(found.law, testing.target_law(two.target, 2)))
    1/6
    """
    values = [(np.arange(cells) + 0.5) / cells for cells in grid]
    noise = np.stack([each.ravel() for each in np.meshgrid(*values, indexing="ij")], axis=1)
    kept, emitted = (np.asarray(each) for each in tuple(step(noise)))
    share = Fraction(1, len(noise))

    def emissions() -> Iterator[tuple[Context, int, Fraction]]:
        rows = np.concatenate([kept[:, None], emitted], axis=1)
        for (n, *ids), times in zip(*np.unique(rows, axis=0, return_counts=True), strict=True):
            yield tuple(int(t) for t in ids[: n + 1]), int(n), share * int(times)

    return gathered(emissions(), target, draft_length + 1)


def speculate(
    verify: Callable[..., Any], instance: Instance, draft_noise: Floats, uniforms: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draft by inverse CDF, one number a token, and verify: a step for `law_of_step`.

    Parameters
    ----------
    verify : callable
        As for `law_of`.
    instance : Instance
        The models.
    draft_noise : array of float64, shape (rows, draft_length)
        What the drafted tokens are drawn with.
    uniforms : array of float64, shape (rows, draft_length + 1)
        What they are verified with.

    Returns
    -------
    tuple of array
        num_accepted and token_ids.
    """
    ids = draft_ids(instance.draft, draft_noise)
    contexts = {
        tuple(row[:end]) for row in ids.tolist() for end in range(instance.draft_length + 1)
    }
    rows = {
        context: tuple(np.array(m(context), np.float64) for m in (instance.draft, instance.target))
        for context in contexts
    }
    shape = (len(ids), -1, instance.vocabulary)
    draft, target = (
        np.array([[rows[tuple(r[:i])][which] for i in range(n)] for r in ids.tolist()])
        for which, n in ((0, instance.draft_length), (1, instance.draft_length + 1))
    )
    answer = verify(draft.reshape(shape), target, ids, uniforms)
    return verdicts(answer, ids, instance.vocabulary, 0)


def draft_ids(draft: Model, noise: Floats) -> NDArray[np.int64]:
    """Draw a chain for each row of noise: the first id whose running sum exceeds the number."""
    running: dict[Context, Floats] = {}
    ids = np.zeros(noise.shape, np.int64)
    for row, numbers in zip(ids, noise, strict=True):
        for i, number in enumerate(numbers):
            context = tuple(row[:i].tolist())
            if context not in running:
                sums = itertools.accumulate(draft(context))
                running[context] = np.array([float(each) for each in sums])
            row[i] = np.searchsorted(running[context], number, side="right")
    return ids


def _independent(noise: Floats, length: int) -> tuple[Floats, Floats]:
    return noise[:, :length], noise[:, length:]


def _draft_and_acceptance(noise: Floats, length: int) -> tuple[Floats, Floats]:
    return noise[:, :length], np.concatenate([noise[:, :length], noise[:, -1:]], axis=1)


def _acceptance_and_replacement(noise: Floats, length: int) -> tuple[Floats, Floats]:
    return noise[:, :length], np.concatenate(
        [noise[:, length:-1], noise[:, length : length + 1]], axis=1
    )


def _draft_and_replacement(noise: Floats, length: int) -> tuple[Floats, Floats]:
    return noise[:, :length], np.concatenate([noise[:, length:-1], noise[:, :1]], axis=1)


COUPLINGS: dict[str, Coupling] = {
    "independent": _independent,
    "draft and acceptance": _draft_and_acceptance,
    "acceptance and replacement": _acceptance_and_replacement,
    "draft and replacement": _draft_and_replacement,
}


class Dependence(NamedTuple):
    """Two columns of numbers that are not independent.

    Attributes
    ----------
    first, second : str
        The columns, as ``draft_noise[:, 0]``.
    kind : str
        ``"equal"``: the same numbers in the same rows; ``"reused"``: the same numbers in other
        rows; ``"rank"``: one rises or falls with the other, which any monotone function of the
        other does; ``"table"``: some other dependence.
    strength : float
        The share of equal numbers, the rank correlation, or the chi-square over what is allowed.
    """

    first: str
    second: str
    kind: str
    strength: float

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} depend on each other: {self.kind} {self.strength:.3g}"
        )


def shared_noise(draft_noise: ArrayLike, uniforms: ArrayLike) -> list[Dependence]:
    """Find numbers that drafting and verification share in what an engine has recorded.

    Which numbers have to be independent of which, and why: all that drafts and verifies one chain,
    of each other. The noise that a token was drawn with must not decide whether it is kept, nor
    draw its replacement, and what has decided a rejection must not draw the replacement.

    Every two columns are compared. The verdict is a function of what was recorded, nothing is
    drawn here; independent numbers are called dependent less than once in a million comparisons.

    Parameters
    ----------
    draft_noise : array_like, shape (rows, ...)
        What was used to draft: uniforms, exponential or Gumbel noise, one number a token or one
        for each entry of the vocabulary. A row for each chain; at least 512 rows.
    uniforms : array_like, shape (rows, draft_length + 1)
        What was used to verify.

    Returns
    -------
    list of Dependence
        Empty if nothing was found. Found are equal numbers, numbers used again in another row
        (also as 1 - u), monotone functions, and all else that shows in a table of 8 by 8 cells.
        Not found is what shows in three columns together only.

    Raises
    ------
    ValueError
        Where rows are too few or do not match, or where numbers are NaN or mostly repeat.

    Examples
    --------
    >>> import numpy as np
    >>> from draftverify import testing
    >>> numbers = np.random.default_rng(1).random((1000, 3))
    >>> testing.shared_noise(numbers[:, :1], numbers[:, 1:])
    []
    >>> gumbel = -np.log(-np.log(numbers[:, :1]))
    >>> print(testing.shared_noise(gumbel, numbers[:, [0, 2]])[0])
    draft_noise[:, 0] and uniforms[:, 0] depend on each other: rank 1
    """
    columns = {**_columns("draft_noise", draft_noise), **_columns("uniforms", uniforms)}
    rows = {len(column) for column in columns.values()}
    if len(rows) != 1:
        message = f"uniforms: expected as many rows as draft_noise, got {sorted(rows)}"
        raise ValueError(message)
    ranks = {name: np.argsort(np.argsort(column)) for name, column in columns.items()}
    found = []
    for first, second in itertools.combinations(columns, 2):
        one, other = columns[first], columns[second]
        dependence = _equality(one, other) or _association(ranks[first], ranks[second])
        if dependence:
            found.append(Dependence(first, second, *dependence))
    return found


def _columns(name: str, numbers: ArrayLike) -> dict[str, NDArray[np.float32]]:
    """Name the columns; float32, so that numbers kept in two dtypes are still the same."""
    array = np.asarray(numbers)
    if array.ndim == 1:
        array = array[:, None]
    if len(array) < FEWEST:
        message = f"{name}: expected at least {FEWEST} rows, got {len(array)}; record more steps"
        raise ValueError(message)
    columns = {}
    for index in np.ndindex(array.shape[1:]):
        label = f"{name}[:, {', '.join(map(str, index))}]"
        column = array[(slice(None), *index)].astype(np.float32)
        if np.isnan(column).any() or len(np.unique(column)) < len(column) / 2:
            message = f"{label}: expected numbers that differ, got NaN or many that are equal"
            raise ValueError(message)
        columns[label] = column
    return columns


def _equality(one: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[str, float] | None:
    same = float(np.mean(one == other))
    if same > _SHARE:
        return "equal", same
    reused = max(float(np.mean(np.isin(each, other))) for each in (one, np.float32(1) - one))
    return ("reused", reused) if reused > _SHARE else None


def _association(one: NDArray[np.intp], other: NDArray[np.intp]) -> tuple[str, float] | None:
    rows = len(one)
    correlation = float(np.corrcoef(one, other)[0, 1])
    if abs(correlation) > 6 / math.sqrt(rows - 1):  # six standard deviations
        return "rank", correlation
    table = np.zeros((_TABLE, _TABLE))
    np.add.at(table, (one * _TABLE // rows, other * _TABLE // rows), 1)
    expected = np.outer(table.sum(1), table.sum(0)) / rows
    chi_square = float(np.sum((table - expected) ** 2 / expected))
    freedom = (_TABLE - 1) ** 2
    allowed = freedom + 10 * math.sqrt(2 * freedom)
    return ("table", chi_square / allowed) if chi_square > allowed else None
