"""The text that the bench prints: at most 80 columns, plain characters."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from draftverify._bench_work import Work

if TYPE_CHECKING:
    from draftverify._bench import Loss, Report, Result, Timing

WIDTH = 80
BAR = 18
LONGEST_BAR = 5.0  # times draftverify's median
LARGE_RATIO = 1000.0  # from here on decimals say nothing

OPENING = """\
draftverify {version}: how long it takes to verify a drafted token on this machine

{machine}
{contenders}
Absent: {absent}

Microseconds a call, median and quartiles over turns of some milliseconds, one
after the other in one process. Ratio: the median over draftverify's; above 1 it
takes longer. Bars that end in > would be longer than {longest:.0f} times draftverify's.
"""

HEADINGS = f"  {'':<20} {'median':>9} {'quartiles':>19} {'ratio':>7}\n"


def render(report: Report, encoding: str) -> str:
    """Make text of a report."""
    machine, versions = report["machine"], report["versions"]
    where = f"{machine['cpu']}, {machine['logical_cores']} logical cores, {machine['system']}"
    if report["load_average"] is not None:
        where += f", load average {report['load_average']:.1f}"
    where += "; " + ", ".join(f"{name} {version}" for name, version in versions.items())
    opening = OPENING.format(
        version=versions["draftverify"],
        machine=_fill(where, encoding),
        contenders="".join(
            f"\n  {name:<20} {about}" for name, about in report["contenders"].items()
        ),
        absent=", ".join(report["absent"]) or "none",
        longest=LONGEST_BAR,
    )
    parts = [opening, *map(_table, report["results"]), _losses(report["losses"])]
    return "\n".join(parts)


def _fill(text: str, encoding: str = "ascii", indent: str = "") -> str:
    """Break a text into lines; what `encoding` does not have is shown as an escape."""
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    return textwrap.fill(
        shown, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _table(result: Result) -> str:
    work = Work(result["vocabulary_size"], result["dtype"], result["rows"])
    threads = f"{result['threads']} thread" + "s" * (result["threads"] > 1)
    title = f"{work}, {threads}"
    longest = min(max(timing["ratio"] for timing in result["timings"]), LONGEST_BAR)
    lines = [title[0].upper() + title[1:] + "\n", HEADINGS]
    lines += [_line(timing, longest) for timing in result["timings"]]
    for timing in result["timings"]:
        if not timing["agrees"]:
            lines.append(
                f"  * {timing['contender']} is off: accept_prob by "
                f"{timing['accept_prob_difference']:.1g}, residual by "
                f"{timing['residual_difference']:.1g} in sum\n"
            )
    if result["unsupported"]:
        note = f"no {result['dtype']}: {', '.join(result['unsupported'])}"
        lines.append(_fill(note, indent="  ") + "\n")
    if result["failed"]:
        lines.append(_fill(f"failed: {', '.join(result['failed'])}", indent="  ") + "\n")
    return "".join(lines)


def _line(timing: Timing, longest: float) -> str:
    median, lower, upper = (
        _microseconds(timing[key])
        for key in ("median_seconds", "lower_quartile_seconds", "upper_quartile_seconds")
    )
    bar = "#" * max(1, round(BAR * min(timing["ratio"] / longest, 1.0)))
    if timing["ratio"] > longest:
        bar = bar[:-1] + ">"
    ratio = f"{timing['ratio']:.{2 if timing['ratio'] < LARGE_RATIO else 0}f}"
    mark = " " if timing["agrees"] else "*"
    return f"{mark} {timing['contender']:<20} {median:>9} {lower:>9} {upper:>9} {ratio:>7}  {bar}\n"


def _microseconds(seconds: float) -> str:
    """Round to what a reader can use: two decimals below 100, none from 10 000 on."""
    value = seconds * 1e6
    for limit, decimals in ((100, 2), (10_000, 1)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def _losses(losses: list[Loss]) -> str:
    if not losses:
        return "draftverify is behind nobody here.\n"
    lines = ["Where draftverify is behind: the share of its time (~ the quartiles overlap)\n"]
    for loss in losses:
        mark = "~" if loss["spreads_overlap"] else " "
        name = loss["faster"] + " (on its tensors)" * (loss["slower"] != "draftverify")
        work = f"{loss['rows'] or 1} x {loss['vocabulary_size']:,} {loss['dtype']}"
        lines.append(f" {mark}{loss['ratio']:.2f}  {name:<24}{work}, {loss['threads']} thr.\n")
    return "".join(lines)
