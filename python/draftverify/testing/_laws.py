"""Exact laws: what a target model emits by itself, and what a verification rule emits.

All numbers are fractions. Models are functions from a context, the tuple of the ids so far, to the
row of the next token. A law maps sequences of ids to their probabilities.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from draftverify.testing._rules import Row, Rule, Thresholds

Context = tuple[int, ...]
Model = Callable[[Context], Row]
Law = Mapping[Context, Fraction]
# (num_accepted, final id) -> probability
Outcomes = Mapping[tuple[int, int], Fraction]
ExactVerify = Callable[[Context, tuple[Row, ...], tuple[Row, ...]], Outcomes | Thresholds]


class Emitted(NamedTuple):
    """What a verification emits, as exact numbers.

    Attributes
    ----------
    law : mapping
        Sequences of draft_length + 1 ids and their probabilities: what was emitted in one step,
        continued by the target model where it is shorter. A lossless verification gives the
        target's own law.
    expected_accepted : Fraction
        How many drafted tokens are kept on average.
    outcomes : mapping
        The ids as they were emitted, from 1 to draft_length + 1 of them, and their probabilities.
    """

    law: Law
    expected_accepted: Fraction
    outcomes: Law


class Path(NamedTuple):
    """Drafted tokens, the rows they are verified with, and the probability of drafting them."""

    token_ids: Context
    draft_rows: tuple[Row, ...]
    target_rows: tuple[Row, ...]
    probability: Fraction


def row_of(model: Model, context: Context) -> Row:
    """Ask a model for a row, and see that it is one."""
    row = tuple(x if isinstance(x, Fraction) else Fraction(x) for x in model(context))
    if not row or min(row) < 0 or sum(row) != 1:
        shown = ", ".join(map(str, row))
        message = (
            f"model: expected fractions >= 0 that sum to 1 after {context}, got ({shown}); "
            "write them as Fraction(1, 3), not as 1 / 3"
        )
        raise ValueError(message)
    return row


def paths(draft: Model, target: Model, draft_length: int) -> Iterator[Path]:
    """Go through all that can be drafted."""
    draft_row = cache(lambda context: row_of(draft, context))
    target_row = cache(lambda context: row_of(target, context))
    vocabulary = len(target_row(()))
    if len(draft_row(())) != vocabulary:
        message = f"draft: expected rows of {vocabulary} entries as target's, got another number"
        raise ValueError(message)
    for token_ids in itertools.product(range(vocabulary), repeat=draft_length):
        probability = Fraction(1)
        draft_rows = []
        for position, token in enumerate(token_ids):
            row = draft_row(token_ids[:position])
            draft_rows.append(row)
            probability *= row[token]
            if not probability:
                break
        else:
            target_rows = [target_row(token_ids[:end]) for end in range(draft_length + 1)]
            yield Path(token_ids, tuple(draft_rows), tuple(target_rows), probability)


def target_law(target: Model, length: int) -> dict[Context, Fraction]:
    """Compute the law of the target's own sequences of a length.

    Examples
    --------
    >>> from draftverify import testing
    >>> print(*testing.target_law(testing.t2().target, 2).values())
    1/9 2/9 2/9 4/9
    """
    return extended({(): Fraction(1)}, target, length)


def extended(outcomes: Law, target: Model, length: int) -> dict[Context, Fraction]:
    """Continue sequences with the target until all have the same length."""
    law = dict(outcomes)
    for short in range(length):
        for sequence in [each for each in law if len(each) == short]:
            probability = law.pop(sequence)
            for token, share in enumerate(row_of(target, sequence)):
                if share:
                    longer = (*sequence, token)
                    law[longer] = law.get(longer, Fraction(0)) + probability * share
    return dict(sorted(law.items()))


def gathered(
    emissions: Iterable[tuple[Context, int, Fraction]], target: Model, length: int
) -> Emitted:
    """Make a law of emissions: the ids, how many of them were drafted, the probability."""
    outcomes: dict[Context, Fraction] = {}
    expected = Fraction(0)
    for sequence, kept, probability in emissions:
        if probability:
            outcomes[sequence] = outcomes.get(sequence, Fraction(0)) + probability
            expected += probability * kept
    return Emitted(extended(outcomes, target, length), expected, dict(sorted(outcomes.items())))


def emitted_law(
    verify: ExactVerify | Rule, draft: Model, target: Model, draft_length: int
) -> Emitted:
    """Enumerate exactly what a verification rule emits.

    Parameters
    ----------
    verify : callable
        The rule: from the drafted ids, the draft's rows and the target's rows (one more), all of
        them fractions, to a mapping of (num_accepted, final id) to its probability. `standard`,
        `block`, `greedy` and those in `WRONG_RULES` are such rules.
    draft, target : callable
        The models: from a context, a tuple of ids, to the row of the next token.
    draft_length : int
        Drafted tokens a step. The work grows with the vocabulary to this power.

    Returns
    -------
    Emitted
        The law of the sequences, the expected number of kept tokens, and what is emitted as it is.

    Raises
    ------
    ValueError
        Where a row, or what the rule answers, is no distribution.

    Examples
    --------
    >>> from draftverify import testing
    >>> two = testing.t2(draft_length=2)
    >>> found = testing.emitted_law(testing.block, two.draft, two.target, two.draft_length)
    >>> print(found.expected_accepted)
    11/9
    >>> found.law == testing.target_law(two.target, 3)
    True
    """

    def emissions() -> Iterator[tuple[Context, int, Fraction]]:
        for path in paths(draft, target, draft_length):
            answer = verify(path.token_ids, path.draft_rows, path.target_rows)
            outcomes = answer.outcomes() if isinstance(answer, Thresholds) else answer
            _expect_outcomes(outcomes, path)
            for (kept, final), probability in outcomes.items():
                sequence = (*path.token_ids[:kept], final)
                yield sequence, kept, path.probability * probability

    return gathered(emissions(), target, draft_length + 1)


def _expect_outcomes(outcomes: Outcomes, path: Path) -> None:
    vocabulary, length = len(path.target_rows[0]), len(path.token_ids)
    total = sum(outcomes.values(), Fraction(0))
    if total != 1 or min(outcomes.values()) < 0:
        message = f"verify: expected probabilities that sum to 1 for {path.token_ids}, got {total}"
        raise ValueError(message)
    for kept, final in outcomes:
        if not (0 <= kept <= length and 0 <= final < vocabulary):
            message = (
                f"verify: expected 0 to {length} kept tokens and an id below {vocabulary} for "
                f"{path.token_ids}, got {kept} and {final}"
            )
            raise ValueError(message)


def total_variation(law: Law, other: Law) -> Fraction:
    """Measure how far apart two laws are: half the sum of all differences, exactly.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from draftverify.testing import total_variation
    >>> half, third = Fraction(1, 2), Fraction(1, 3)
    >>> print(total_variation({(0,): half, (1,): half}, {(0,): third, (1,): 2 * third}))
    1/6
    """
    zero = Fraction(0)
    differences = (abs(law.get(key, zero) - other.get(key, zero)) for key in law.keys() | other)
    return sum(differences, zero) / 2


def next_token(law: Law, context: Context, vocabulary: int) -> Row | None:
    """Condition a law on what a sequence begins with; None where nothing begins so."""
    place = len(context)
    shares = [Fraction(0)] * vocabulary
    for sequence, probability in law.items():
        if sequence[:place] == context:
            shares[sequence[place]] += probability
    total = sum(shares, Fraction(0))
    return tuple(share / total for share in shares) if total else None
