"""What a check found, and in words what is wrong."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass
from fractions import Fraction

from draftverify.testing._draws import Draws
from draftverify.testing._grid import Place
from draftverify.testing._instances import Instance
from draftverify.testing._laws import Law, next_token

_DIGITS = 12
_AT_EDGES = """\
Where the middle of the cells is right and low or high is not, the code decides otherwise for
uniforms next to a threshold only: at 0 or 1 (take u in [0, 1), compare strictly), by rounding, or
with thresholds that are off by a little.
What is shown there is as if the whole cell went that way; the true bias is smaller."""
_OTHER_UNIFORM = """\
The final token is drawn with another uniform than is measured. With the cells of all thresholds on
every uniform the law is the target's, of {instances}. In {instance} the final token changes with
uniform {numbers}, counted from 0; measured is number {last}, the one behind those of the drafted
tokens. Draw with that one whatever was rejected, or measure the code as it is: law_of with a grid.
"""
_PADDING = """\
Without padding the law is the target's, of {instances}: the code reads what is behind the drafted
tokens. The final token is drawn with the uniform behind those of a request's own tokens, which is
not the last one of the row.
"""


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
    hint : str
        What explains a law that is wrong as it was measured: uniforms next to a threshold, or a
        final token that is drawn with another uniform. The verdict stands.
    """

    method: str
    findings: tuple[Finding, ...]
    same_as: tuple[str, ...] = ()
    hint: str = ""

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
        if len(self.findings) > 1 and all(
            each.failure and not each.left_out for each in self.findings
        ):
            first = self.findings[0]
            others = len({id(each.instance) for each in self.findings} - {id(first.instance)})
            lines.append(f"  {first.instance}: {first.verdict}")
            if others:
                lines.append(f"  the {others} other instances: FAILED too")
            return "\n".join(lines)
        for instance, group in itertools.groupby(self.findings, key=lambda f: f.instance):
            findings = list(group)
            if len({finding.verdict for finding in findings}) == 1:
                lines.append(f"  {instance}: {findings[0].verdict}")
            else:
                lines += [f"  {finding}" for finding in findings]
            if not detail:  # one is enough to begin with
                detail = next((each.detail for each in findings if each.detail), "")
                lines += [f"    {line}" for line in detail.splitlines()]
        if self.hint:
            lines.append(self.hint)
        if self.same_as:
            lines.append(f"The same comes of: {', '.join(self.same_as)}.")
        return "\n".join(lines)


def hint_of(findings: list[Finding], closer: list[Draws], padding: int) -> str:
    """Explain laws that are wrong, by what a closer look showed of these instances."""
    if not all(draws.right for draws in closer):
        return ""
    instances = ", ".join(str(draws.instance) for draws in closer)
    with_another = [draws for draws in closer if draws.with_another]
    middles = [each for each in findings if each.place == "middle" and not each.left_out]
    if with_another:
        shown = max(with_another, key=lambda draws: len(draws.by_kept))
        numbers = ", ".join(
            f"{' and '.join(map(str, sorted(numbers)))} after {kept} kept"
            for kept, numbers in shown.by_kept.items()
        )
        text = _OTHER_UNIFORM.format(
            instances=instances, instance=shown.instance, numbers=numbers, last=shown.last
        )
    elif all(each.ok for each in middles):
        return _AT_EDGES if any(not each.ok for each in findings) else ""
    elif closer and padding:
        text = _PADDING.format(instances=instances)
    else:
        return ""
    return textwrap.fill(text, 100)


def detail_of(law: Law, right: Law, instance: Instance) -> str:
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
