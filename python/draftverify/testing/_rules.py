"""The verification rules in exact terms: fractions in, thresholds out.

A rule says with what probability each position passes and from which weights the final token is
drawn. This is all there is to know about it: the law follows by arithmetic, and the places where
floating-point code has to change its mind are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod

Row = tuple[Fraction, ...]
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Thresholds:
    """What a rule does with its uniforms for one drafted chain.

    Attributes
    ----------
    passes : tuple of Fraction
        Position i passes iff its uniform is below passes[i].
    finals : tuple of tuple of Fraction
        The weights, not normalised, that the final token is drawn from after n kept tokens; n from
        0 to the length of the chain.
    longest : bool
        False: the first position that does not pass ends the chain. True: the last one that passes
        decides, whatever was before it.
    """

    passes: Row
    finals: tuple[Row, ...]
    longest: bool = False

    def kept(self) -> Row:
        """Give the probability of n kept tokens, n from 0 to the length."""
        length = len(self.passes)
        fails = tuple(ONE - each for each in self.passes)
        if self.longest:
            return tuple(
                (self.passes[n - 1] if n else ONE) * prod(fails[n:], start=ONE)
                for n in range(length + 1)
            )
        return tuple(
            prod(self.passes[:n], start=ONE) * (fails[n] if n < length else ONE)
            for n in range(length + 1)
        )

    def outcomes(self) -> dict[tuple[int, int], Fraction]:
        """Give the probability of each (num_accepted, final id) that can come."""
        return {
            (kept, final): probability * weight / sum(weights)
            for kept, (probability, weights) in enumerate(
                zip(self.kept(), self.finals, strict=True)
            )
            for final, weight in enumerate(weights)
            if probability and weight
        }


Rule = Callable[[tuple[int, ...], tuple[Row, ...], tuple[Row, ...]], Thresholds]


def residual(draft: Row, target: Row, scale: Fraction = ONE) -> Row:
    """Weigh the replacement: max(scale * target - draft, 0); the target where that is nothing."""
    excess = tuple(max(scale * b - a, ZERO) for a, b in zip(draft, target, strict=True))
    return excess if any(excess) else target


def mass(draft: Row, target: Row, scale: Fraction) -> Fraction:
    """Sum max(scale * target - draft, 0)."""
    return sum((max(scale * b - a, ZERO) for a, b in zip(draft, target, strict=True)), ZERO)


def ratios(token_ids: tuple[int, ...], draft: tuple[Row, ...], target: tuple[Row, ...]) -> Row:
    """Divide the target's by the draft's probability of each drafted token."""
    return tuple(target[i][t] / draft[i][t] for i, t in enumerate(token_ids))


def capped(ratio: Row) -> Row:
    """Multiply the ratios up, capped at 1 at each position; begins with 1 for no token at all."""
    joint = [ONE]
    for each in ratio:
        joint.append(min(ONE, joint[-1] * each))
    return tuple(joint)


def standard(
    token_ids: tuple[int, ...], draft: tuple[Row, ...], target: tuple[Row, ...]
) -> Thresholds:
    """Verify token by token: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318).

    Token t passes iff u < min(1, target[t] / draft[t]); the first that does not is replaced from
    max(target - draft, 0).
    """
    passes = tuple(min(ONE, each) for each in ratios(token_ids, draft, target))
    finals = tuple(map(residual, draft, target[:-1]))
    return Thresholds(passes, (*finals, target[-1]))


def block(
    token_ids: tuple[int, ...], draft: tuple[Row, ...], target: tuple[Row, ...]
) -> Thresholds:
    """Verify the chain as a whole: Sun et al. (arXiv 2403.10444), algorithm 2.

    Keeps at least as many tokens as `standard` on average, and emits the same law.
    """
    joint = capped(ratios(token_ids, draft, target))
    passes = []
    for kept in range(1, len(token_ids)):
        excess = mass(draft[kept], target[kept], joint[kept])
        whole = excess + ONE - joint[kept]
        passes.append(excess / whole if whole else ONE)
    finals = tuple(map(residual, draft, target[:-1], joint[:-1]))
    return Thresholds(
        (*passes, joint[-1]) if token_ids else (), (*finals, target[-1]), longest=True
    )


def greedy(
    token_ids: tuple[int, ...],
    draft: tuple[Row, ...],  # noqa: ARG001 - a rule's signature
    target: tuple[Row, ...],
) -> Thresholds:
    """Keep what the target's most probable token is, the lowest id of several."""
    best = tuple(map(most_probable, target))
    passes = tuple(row[token] for row, token in zip(best[:-1], token_ids, strict=True))
    return Thresholds(passes, best)


def most_probable(row: Row) -> Row:
    """Put all probability on the most probable token, the lowest id of several."""
    return single(len(row), row.index(max(row)))


def single(vocabulary: int, token: int) -> Row:
    """Put all probability on one token."""
    return tuple(Fraction(int(each == token)) for each in range(vocabulary))


def one_hot(rule: Rule) -> Rule:
    """Take the drafted tokens as certain proposals: the draft's rows are not used.

    So a rule verifies what came without probabilities: from a greedy draft, n-grams, suffixes.

    Examples
    --------
    >>> from draftverify import testing
    >>> three = testing.t3(draft_length=1)
    >>> rule = testing.one_hot(testing.standard)
    >>> print(testing.emitted_law(rule, three.draft, three.target, 1).expected_accepted)
    29/100
    """

    def verify(
        token_ids: tuple[int, ...], draft: tuple[Row, ...], target: tuple[Row, ...]
    ) -> Thresholds:
        rows = tuple(single(len(row), t) for row, t in zip(draft, token_ids, strict=True))
        return rule(token_ids, rows, target)

    return verify


RULES: dict[str, Rule] = {"standard": standard, "block": block, "greedy": greedy}
