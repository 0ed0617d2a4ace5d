"""Check code against the exact laws."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from draftverify.testing._draws import draws_of
from draftverify.testing._feed import PLAIN, Feed, Probe, expect_callable, rule_of, target_of
from draftverify.testing._grid import PLACES, TooFineError, batches, measured
from draftverify.testing._instances import Instance, dyadic, random_models, t2, t3, t4
from draftverify.testing._laws import Emitted, emitted_law, target_law, total_variation
from draftverify.testing._report import Finding, Report, detail_of, hint_of
from draftverify.testing._rules import standard
from draftverify.testing._wrong import WRONG_RULES, as_chain


def ready_instances() -> list[Instance]:
    """List the instances that `check` takes if none are given.

    On the last one every rule in `WRONG_RULES` emits another law, each its own.

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
    random models 4 of 4 tokens with 2 drafted
    """
    return [
        t2(3),
        t3(2),
        t4(2),
        dyadic(2),
        random_models(1, vocabulary=3, draft_length=3),
        random_models(4, vocabulary=4, draft_length=2),
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
    TypeError
        For a ``verify`` that cannot be called.
    ValueError
        For a method that is not known.

    Notes
    -----
    Where laws are wrong, the instances are measured once more, if they are small enough, with the
    cells of all thresholds on every uniform. If they are right then, ``Report.hint`` says which
    uniform the code draws the final token with. It is not ``ok`` all the same: the ends of its
    cells were not looked at.

    Examples
    --------
    >>> from draftverify import testing
    >>> verify = testing.as_chain(testing.standard)
    >>> print(testing.check(verify, instances=[testing.t2()]))
    lossless
      T2 with 2 drafted: exact, keeps 10/9
    """
    expect_callable(verify)
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
                detail=detail_of(found.law, law, instance),
            )
            findings.append(finding)
            met.append(_Met(finding, found, probes))
    hint = _hint(verify, findings, method, feed)
    return Report(method, tuple(findings), _same_as(met, method, feed), hint)


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
    TypeError, ValueError
        As `check` does.

    Examples
    --------
    >>> from draftverify import testing
    >>> testing.assert_lossless(testing.as_chain(testing.block), method="block")
    """
    report = check(verify, method=method, feed=feed, instances=instances)
    if not report.ok:
        raise AssertionError(str(report))


def _hint(verify: Callable[..., Any], findings: list[Finding], method: str, feed: Feed) -> str:
    """Look closer at the instances of which something was measured that is wrong."""
    wrong = {id(each.instance): each.instance for each in findings if not (each.ok or each.failure)}
    plain = replace(feed, padding=0)
    closer = [draws_of(verify, instance, method, plain) for instance in wrong.values()]
    return hint_of(findings, [draws for draws in closer if draws is not None], feed.padding)


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
