"""Check code against the exact laws, and say in words what is wrong with it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from draftverify.testing._grid import (
    PLACES,
    PLAIN,
    Feed,
    Place,
    Probe,
    TooFineError,
    batches,
    measured,
    rule_of,
    target_of,
)
from draftverify.testing._instances import Instance, dyadic, random_models, t2, t3, t4
from draftverify.testing._laws import (
    Emitted,
    Law,
    emitted_law,
    next_token,
    target_law,
    total_variation,
)
from draftverify.testing._rules import standard
from draftverify.testing._wrong import WRONG_RULES, as_chain

_DIGITS = 12
_AT_EDGES = """\
Where the middle of the cells is right and low or high is not, the code decides otherwise for
uniforms next to a threshold only: at 0 or 1 (take u in [0, 1), compare strictly), or by rounding.
What is shown there is as if the whole cell went that way; the true bias is smaller."""


@dataclass(frozen=True)
class Finding:
    """What came of one instance, with the uniforms at one place of their cells.

    Attributes
    ----------
    instance : Instance
        The models.
    place : str
        Where the uniforms were in their cells: ``"low"``, ``"middle"`` or ``"high"``.
    total_variation : Fraction or None
        How far the law is from what it should be; None if there is no law.
    accepted, expected_accepted : Fraction or None, Fraction
        The tokens kept on average, measured and as they should be.
    failure : str
        Why there is no law: what the code raised, or what of its answer cannot be.
    left_out : bool
        Whether the thresholds lie too close for the dtype, so that nothing was measured.
    detail : str
        What is wrong with the law, in some lines.
    """

    instance: Instance
    place: Place
    total_variation: Fraction | None
    accepted: Fraction | None
    expected_accepted: Fraction
    failure: str = ""
    left_out: bool = False
    detail: str = ""

    @property
    def lossless(self) -> bool:
        """Whether the law is exactly right, or was not measured."""
        return self.left_out or self.total_variation == 0

    @property
    def ok(self) -> bool:
        """Whether the law and the number of kept tokens are right, or were not measured."""
        return self.left_out or (self.lossless and self.accepted == self.expected_accepted)

    @property
    def verdict(self) -> str:
        """What came of it, in a line."""
        if self.failure:
            return ("left out, " if self.left_out else "FAILED, ") + self.failure
        if self.ok:
            return f"exact, keeps {self.accepted}"
        law = "the law is exact"
        if not self.lossless and self.total_variation is not None:
            law = f"total variation {_number(self.total_variation)}"
        kept = f"keeps {self.accepted}"
        if self.accepted != self.expected_accepted:
            kept += f" where {self.expected_accepted} was expected"
        return f"WRONG, {law}, {kept}"

    def __str__(self) -> str:
        return f"{self.instance}, {self.place}: {self.verdict}"


@dataclass(frozen=True)
class Report:
    """What came of all instances; `str` of it says it in words.

    Attributes
    ----------
    method : str
        The rule that the code was compared with.
    findings : tuple of Finding
        One for each instance and each place.
    same_as : tuple of str
        The known wrong rules that give exactly what was found.
    """

    method: str
    findings: tuple[Finding, ...]
    same_as: tuple[str, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether every law that was measured is right, and some was."""
        return all(f.lossless for f in self.findings) and self._measured

    @property
    def ok(self) -> bool:
        """Whether, beside the laws, as many tokens are kept as the method keeps."""
        return all(f.ok for f in self.findings) and self._measured

    @property
    def _measured(self) -> bool:
        return any(not f.left_out for f in self.findings)

    @property
    def _only_at_edges(self) -> bool:
        """Whether some instance is right in the middle of the cells and wrong at their ends."""
        right = {id(f.instance) for f in self.findings if f.place == "middle" and f.ok}
        return any(id(f.instance) in right and not f.ok for f in self.findings)

    def __str__(self) -> str:
        verdict = "not lossless"
        if self.ok:
            verdict = "lossless"
        elif self.lossless:
            verdict = f"lossless, but not as many tokens are kept as {self.method} keeps"
        elif not self._measured:
            verdict = "nothing was measured"
        lines = [verdict]
        detail = ""
        for instance, group in itertools.groupby(self.findings, key=lambda f: f.instance):
            findings = list(group)
            if len({finding.verdict for finding in findings}) == 1:
                lines.append(f"  {instance}: {findings[0].verdict}")
            else:
                lines += [f"  {finding}" for finding in findings]
            if not detail:  # one is enough to begin with
                detail = next((each.detail for each in findings if each.detail), "")
                lines += [f"    {line}" for line in detail.splitlines()]
        if self._only_at_edges:
            lines.append(_AT_EDGES)
        if self.same_as:
            lines.append(f"The same comes of: {', '.join(self.same_as)}.")
        return "\n".join(lines)


def ready_instances() -> list[Instance]:
    """List the instances that `check` takes if none are given.

    Examples
    --------
    >>> from draftverify import testing
    >>> for instance in testing.ready_instances():
    ...     print(instance)
    T2 with 3 drafted
    T3 with 2 drafted
    T4 with 2 drafted
    dyadic with 2 drafted
    random models 1 of 3 tokens with 3 drafted
    random models 2 of 4 tokens with 2 drafted
    """
    return [
        t2(3),
        t3(2),
        t4(2),
        dyadic(2),
        random_models(1, vocabulary=3, draft_length=3),
        random_models(2, vocabulary=4, draft_length=2),
    ]


def check(
    verify: Callable[..., Any],
    *,
    method: str = "standard",
    feed: Feed = PLAIN,
    instances: Sequence[Instance] | None = None,
) -> Report:
    """Check that code which verifies chains emits exactly the target's law.

    Each instance is measured with the uniforms in the middle and next to both ends of their cells.
    Code that is monotone in each uniform and passes has every threshold where it belongs: to the
    last bit where all numbers are exact in the dtype, to a few rounding errors elsewhere.

    Parameters
    ----------
    verify : callable
        As for `law_of`.
    method : str
        ``"standard"``, ``"block"`` or ``"greedy"``: which tokens are to be kept. The law of greedy
        verification is that of the target's most probable tokens.
    feed : Feed
        Dtypes, layout, library.
    instances : sequence of Instance, optional
        Other models than `ready_instances()`.

    Returns
    -------
    Report
        Nothing is raised because of what the code does, not even if the code raises.

    Raises
    ------
    ValueError
        For a method that is not known.

    Examples
    --------
    >>> from draftverify import testing
    >>> verify = testing.as_chain(testing.standard)
    >>> print(testing.check(verify, instances=[testing.t2()]))
    lossless
      T2 with 2 drafted: exact, keeps 10/9
    """
    findings: list[Finding] = []
    met: list[_Met] = []
    rule = rule_of(method, feed)
    for instance in ready_instances() if instances is None else instances:
        length = instance.draft_length
        right = emitted_law(rule, instance.draft, instance.target, length)
        law = target_law(target_of(instance, method), length + 1)
        for place in PLACES:
            finding = Finding(instance, place, None, None, right.expected_accepted)
            try:
                probes = list(batches(instance, method, feed, place))
                found = measured(verify, probes, instance, method, feed)
            except TooFineError as error:
                findings.append(replace(finding, failure=str(error), left_out=True))
                continue
            except Exception as error:  # whatever the code raises is a finding
                failure = f"{type(error).__name__}: {error}".removesuffix(": ")
                findings.append(replace(finding, failure=failure))
                continue
            finding = replace(
                finding,
                total_variation=total_variation(found.law, law),
                accepted=found.expected_accepted,
                detail=_detail(found.law, law, instance),
            )
            findings.append(finding)
            met.append(_Met(finding, found, probes))
    return Report(method, tuple(findings), _same_as(met, method, feed))


def assert_lossless(
    verify: Callable[..., Any],
    *,
    method: str = "standard",
    feed: Feed = PLAIN,
    instances: Sequence[Instance] | None = None,
) -> None:
    """Raise an AssertionError with the text of the report unless `check` finds all well.

    Parameters
    ----------
    verify, method, feed, instances
        As for `check`.

    Raises
    ------
    AssertionError
        Where a law, or the number of kept tokens, is not what it should be.

    Examples
    --------
    >>> from draftverify import testing
    >>> testing.assert_lossless(testing.as_chain(testing.block), method="block")
    """
    report = check(verify, method=method, feed=feed, instances=instances)
    if not report.ok:
        raise AssertionError(str(report))


def _detail(law: Law, right: Law, instance: Instance) -> str:
    """Say where two laws differ: the first context, and the sequences that differ most."""
    zero = Fraction(0)
    excess = {key: law.get(key, zero) - right.get(key, zero) for key in law.keys() | right}
    if not any(excess.values()):
        return ""
    lines = [_first_context(law, right, instance)]
    ordered = sorted(excess, key=lambda key: (excess[key], key))
    for what, sequence in (("too often", ordered[-1]), ("too seldom", ordered[0])):
        got, expected = law.get(sequence, zero), right.get(sequence, zero)
        lines.append(f"most {what}: {sequence}, {_number(got)} instead of {_number(expected)}")
    return "\n".join(lines)


def _first_context(law: Law, right: Law, instance: Instance) -> str:
    """Name the shortest context after which the next token does not follow the target."""
    contexts = {key[:end] for key in (*law, *right) for end in range(len(key))}
    for context in sorted(contexts, key=lambda each: (len(each), each)):
        got = next_token(law, context, instance.vocabulary)
        expected = next_token(right, context, instance.vocabulary)
        if got and expected and got != expected:
            lines = [
                f"  token {token}: {_number(a)} instead of {_number(b)}"
                for token, (a, b) in enumerate(zip(got, expected, strict=True))
                if a != b
            ]
            where = f"after {context}" if context else "in the first token"
            return "\n".join([f"the law differs {where}", *lines])
        if got and not expected:
            return f"{context} is emitted, and the target never says it"
    return "a context of the target is never emitted"


def _number(fraction: Fraction) -> str:
    """Write a fraction, with its value beside it, or its value alone if it is too long."""
    text = str(fraction)
    if fraction.denominator == 1:
        return text
    return f"{text} ({float(fraction):.4g})" if len(text) <= _DIGITS else f"{float(fraction):.6g}"


class _Met(NamedTuple):
    """A finding, the law that was measured, and what the code was asked."""

    finding: Finding
    found: Emitted
    probes: list[list[Probe]]


def _same_as(met: list[_Met], method: str, feed: Feed) -> tuple[str, ...]:
    """Name the known wrong rules that answer all uniforms as the code did."""
    if all(each.finding.ok for each in met):
        return ()
    suspects = {name: as_chain(rule) for name, rule in WRONG_RULES.items()}
    suspects["as_chain(standard, accepts=operator.le)"] = as_chain(standard, accepts=operator.le)
    suspects["as_chain(standard, exceeds=operator.ge)"] = as_chain(standard, exceeds=operator.ge)
    # They read probabilities, from NumPy arrays.
    plain = replace(feed, log_probs=False, convert=None, padding=0)
    for each in sorted(met, key=lambda each: each.finding.ok):  # the wrong ones first
        for name, suspect in list(suspects.items()):
            other = measured(suspect, each.probes, each.finding.instance, method, plain)
            if other.outcomes != each.found.outcomes:
                del suspects[name]
    return tuple(suspects)
