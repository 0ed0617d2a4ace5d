"""Which uniform code draws the final token with, where it is not the one that `check` sets for it.

The cells that `check` measures in are made for code that draws with the uniform behind those of
the drafted tokens. Here every uniform has the cells of all of them. What is measured is then exact
for code that compares any uniform with the right thresholds, also if it compares one twice.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from draftverify.testing._feed import Feed, Probe, asked, rule_of, target_of, weighed
from draftverify.testing._grid import TooFineError, batches
from draftverify.testing._instances import Instance
from draftverify.testing._laws import Context, emitted_law, gathered, target_law

_MOST_ROWS = 60_000


class Draws(NamedTuple):
    """What was measured of an instance with the cells of all thresholds on each uniform."""

    instance: Instance
    # Whether the law, and the number of kept tokens, are right.
    right: bool
    # By the number of kept tokens: the uniforms, counted from 0, that the final token changes with.
    by_kept: dict[int, set[int]]
    # The uniform behind those of the drafted tokens.
    last: int

    @property
    def with_another(self) -> bool:
        """Whether the final token changes with another uniform than the last."""
        return any(numbers != {self.last} for numbers in self.by_kept.values())


def draws_of(
    verify: Callable[..., Any], instance: Instance, method: str, feed: Feed
) -> Draws | None:
    """Measure code without presuming which uniform is for what; None where that is too much."""
    batched: list[list[Probe]] = []
    try:
        for probes in batches(instance, method, feed, "middle", any_uniform=True):
            batched.append(probes)
            if sum(len(probe.uniforms) for batch in batched for probe in batch) > _MOST_ROWS:
                return None
    except TooFineError:
        return None
    tally: dict[tuple[Context, int], Fraction] = {}
    by_kept: dict[int, set[int]] = {}
    finals_of: dict[tuple[Any, ...], int] = {}
    try:
        for probes in batched:
            kept, finals = asked(verify, probes, instance.vocabulary, feed)
            shares = weighed(probes, kept, finals, instance.vocabulary)
            for key, share in shares.items():
                tally[key] = tally.get(key, Fraction(0)) + share
            rows = [(probe.path.token_ids, row) for probe in probes for row in probe.uniforms]
            for (ids, row), n, final in zip(rows, kept.tolist(), finals.tolist(), strict=True):
                numbers = row.tolist()
                for place in range(len(numbers)):
                    others = (ids, n, place, *numbers[:place], *numbers[place + 1 :])
                    if finals_of.setdefault(others, final) != final:
                        by_kept.setdefault(n, set()).add(place)
    except Exception:  # what the code raises has been reported
        return None
    target, length = target_of(instance, method), instance.draft_length
    emissions = ((sequence, n, share) for (sequence, n), share in tally.items())
    found = gathered(emissions, target, length + 1)
    right = emitted_law(rule_of(method, feed), instance.draft, instance.target, length)
    is_right = (found.law, found.expected_accepted) == (
        target_law(target, length + 1),
        right.expected_accepted,
    )
    return Draws(instance, is_right, dict(sorted(by_kept.items())), length)
