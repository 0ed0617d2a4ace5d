"""The text that the demo prints: at most 80 columns, no colour, in any encoding."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftverify._demo import Chain, Entry, Report, Step

WIDTH = 80

OPENING = """\
draftverify {version}: recorded drafts of a real model, verified token by token

Target: SmolLM2-135M-Instruct on the whole context. Draft: the same model on
the last 32 tokens of it. Each drafted token was sampled from the draft.

A drafted token is kept if uniform < accept. At the first rejection the chain
ends with a replacement drawn from that row's residual. The library makes no
random numbers; these uniforms are the fractional parts of k * {ratio:.10f},
k = 1, 2, ..., one per drafted token and one per chain for the draw after it.
"""

CLOSING = """\
Acceptance over the rows visited
  expected  {expected:.4f}   the mean of 1 - mass
  observed  {observed:.4f}   {kept} kept of {visited}

Time for one row of {vocabulary_size:,} {dtype} entries, median of {calls} calls in turns
  speculative_decode_step  {step:8.1f} us   every entry checked
  NumPy, three lines       {numpy:8.1f} us   {ratio:.1f} times as long; none checked
    excess = np.maximum(target - draft, 0)
    mass = excess.sum()
    residual = excess / mass
"""


def render(report: Report, encoding: str) -> str:
    """Make text of a report; what `encoding` does not have is shown as an escape."""
    versions, machine, timing = report["versions"], report["machine"], report["timing"]
    parts = [OPENING.format(version=versions["draftverify"], ratio=report["uniforms"][0])]
    count = len(report["chains"])
    parts += [
        _chain(f"Chain {number} of {count}", chain, encoding)
        for number, chain in enumerate(report["chains"], start=1)
    ]
    closing = CLOSING.format(
        **report["acceptance"],
        vocabulary_size=timing["vocabulary_size"],
        dtype=timing["dtype"],
        calls=timing["calls"],
        step=timing["step_seconds"] * 1e6,
        numpy=timing["numpy_seconds"] * 1e6,
        ratio=timing["numpy_over_step"],
    )
    where = (
        f"{machine['cpu']}, {machine['logical_cores']} logical cores, {machine['system']}; "
        f"Python {versions['python']}, NumPy {versions['numpy']}, "
        f"draftverify {versions['draftverify']}"
    )
    indent = "  "
    where = textwrap.fill(where, WIDTH, initial_indent=indent, subsequent_indent=indent)
    parts.append(f"{closing}{where}\n")
    return "\n".join(parts).encode(encoding, "backslashreplace").decode(encoding)


def quote(text: str, encoding: str, room: int, *, tail: bool = False) -> str:
    """Quote a text within `room` columns, line breaks and the like as escapes.

    What does not fit is cut from the end, or with `tail` from the beginning.
    """
    for cut in range(len(text) + 1):
        part = text[cut:] if tail else text[: len(text) - cut]
        try:
            part.encode(encoding)
            quoted = repr(part)
        except UnicodeEncodeError:
            quoted = ascii(part)
        if cut:
            quoted = f"...{quoted}" if tail else f"{quoted}..."
        if len(quoted) <= room:
            break
    return quoted


def _chain(title: str, chain: Chain, encoding: str) -> str:
    lines = [f"{title}, after the context"]
    lines += _context(chain["context"], encoding)
    for position, step in enumerate(chain["steps"], start=1):
        lines += ["", _step(position, step, encoding)]
        lines += _largest(step["residual_largest"], encoding)
    lines.append("")
    unread = "".join(chain["draft_texts"][len(chain["steps"]) :])
    if unread:
        lines.append("  not reached: " + quote(unread, encoding, WIDTH - 15))
    replacement = chain["replacement"]
    if replacement is None:
        lines.append("  all kept; one more token would come from the target's next row")
    else:
        drawn = quote(replacement["text"], encoding, 24)
        lines.append(
            f"  replacement: {drawn}, drawn from the residual with uniform "
            f"{replacement['uniform']:.4f}"
        )
    lines.append("  emitted: " + quote(chain["emitted_text"], encoding, WIDTH - 11))
    return "\n".join(lines) + "\n"


def _context(context: str, encoding: str) -> list[str]:
    """Set the end of the context on two or three lines, no blank lost."""
    return textwrap.wrap(
        quote(context, encoding, 2 * WIDTH - 24, tail=True),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        drop_whitespace=False,
        break_on_hyphens=False,
    )


def _step(position: int, step: Step, encoding: str) -> str:
    sign, verdict = ("< ", "kept") if step["kept"] else (">=", "replaced")
    return (
        f"{position:3}  {quote(step['text'], encoding, 15):<15} uniform {step['uniform']:.4f} "
        f"{sign} accept {step['accept_prob']:.4f}   {verdict:<8}   mass {step['mass']:.4f}"
    )


def _largest(entries: list[Entry], encoding: str) -> list[str]:
    """Set texts over probabilities, in columns, texts cut to what five columns leave."""
    heads, probs = "     residual ", " " * 14
    room = (WIDTH - len(heads)) // max(len(entries), 1) - 1
    for entry in entries:
        text, prob = quote(entry["text"], encoding, room), f"{entry['prob']:.4f}"
        width = max(len(text), len(prob))
        heads += f" {text:<{width}}"
        probs += f" {prob:<{width}}"
    return [heads.rstrip(), probs.rstrip()]
