"""What the demo shows: the document that `--json` prints, and the text of it.

The TypedDicts are the document: their keys stay. The text has at most 80 columns and no colour, in
any encoding.
"""

from __future__ import annotations

import textwrap
from typing import TypedDict

from draftverify._machine import Machine

WIDTH = 80

OPENING = """\
draftverify {version}: recorded drafts of a real model, verified by two methods

Target: SmolLM2-135M-Instruct on the whole context. Draft: the same model on
the last 32 tokens of it. Each drafted token was sampled from the draft.

standard  goes token by token: one is kept if uniform < accept, the smaller of
          1 and target / draft. The first that is not ends the chain: its
          replacement is drawn from that row's residual.
block     looks at the chain as a whole. Its joint ratio is the product of
          target / draft so far, capped at 1 at each token: a token that the
          target likes better makes up for those before it. All are kept if the
          last token's uniform < its joint ratio; else as many as pass a like
          test, which reads the next row too. By the same uniforms it may keep
          more or fewer than standard; on average it never keeps fewer.

Tokens are listed with what standard makes of them, what both emit is below.

What either emits follows the target. The library makes no random numbers;
these uniforms are the fractional parts of k * {ratio:.10f}, k = 1, 2, ...,
one per drafted token and one per chain for the draw after it.
"""

CLOSING = """\
Acceptance by standard, over the rows visited
  expected  {expected:.4f}   the mean acceptance_rate
  observed  {observed:.4f}   {kept} kept of {visited}

Tokens per step, the bonus token counted: means of {chains} chains, picked to show it
            expected  observed
  standard  {standard[expected]:8.4f}  {standard[observed]:8.4f}
  block     {block[expected]:8.4f}  {block[observed]:8.4f}
  Expected is the mean over all uniforms: expected_tokens_by_position of accept,
  expected_tokens_block of target / draft.

Time for one row of {vocabulary_size:,} {dtype} entries, median of {calls} calls in turns
  speculative_decode_step  {step:8.1f} us   every entry checked
  NumPy, three lines       {numpy:8.1f} us   {speedup:.1f} times as long; none checked
    excess = np.maximum(target - draft, 0)
    mass = excess.sum()
    residual = excess / mass
"""


class Entry(TypedDict):
    """A token and its probability in a residual."""

    token_id: int
    text: str
    prob: float


class Step(TypedDict):
    """A drafted token, and what the standard method makes of it, which stops at a rejection."""

    token_id: int
    text: str
    accept_prob: float
    uniform: float
    visited: bool
    kept: bool
    ratio: float
    joint_ratio: float
    mass: float
    residual_largest: list[Entry]


class Replacement(Entry):
    """The token drawn behind those that were kept, and its probability in the law drawn from."""

    uniform: float


class Outcome(TypedDict):
    """What a method makes of a chain; the bonus token, which is not recorded, is left out."""

    num_accepted: int
    replacement: Replacement | None
    emitted_token_ids: list[int]
    emitted_text: str


class Chain(Outcome):
    """The drafted tokens of one request; the outcome is that of the standard method."""

    context: str
    draft_token_ids: list[int]
    draft_texts: list[str]
    steps: list[Step]
    block: Outcome


class Acceptance(TypedDict):
    """How many tokens were kept, and how many were to be expected."""

    visited: int
    kept: int
    observed: float
    expected: float


class Tokens(TypedDict):
    """Tokens that a step emits, the bonus token counted: means over the chains."""

    observed: float
    expected: float


class TokensPerStep(TypedDict):
    """The same for either method."""

    standard: Tokens
    block: Tokens


class Timing(TypedDict):
    """Medians over calls in turns in one process."""

    vocabulary_size: int
    dtype: str
    calls: int
    step_seconds: float
    numpy_seconds: float
    numpy_over_step: float


class Report(TypedDict):
    """All that the demo shows."""

    versions: dict[str, str]
    machine: Machine
    uniforms: list[float]
    chains: list[Chain]
    acceptance: Acceptance
    tokens_per_step: TokensPerStep
    timing: Timing


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
        **report["tokens_per_step"],
        chains=count,
        vocabulary_size=timing["vocabulary_size"],
        dtype=timing["dtype"],
        calls=timing["calls"],
        step=timing["step_seconds"] * 1e6,
        numpy=timing["numpy_seconds"] * 1e6,
        speedup=timing["numpy_over_step"],
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
    lines += ["", *_outcome("standard", chain, chain, encoding)]
    lines += _outcome("block", chain["block"], chain, encoding)
    for name, ratios in (
        ("target / draft", [step["ratio"] for step in chain["steps"]]),
        ("joint ratio", [step["joint_ratio"] for step in chain["steps"]]),
    ):
        lines.append(f"{'':12}{name:<14}" + "".join(f" {ratio:9.4f}" for ratio in ratios))
    return "\n".join(lines) + "\n"


def _outcome(method: str, outcome: Outcome, chain: Chain, encoding: str) -> list[str]:
    """Say how many tokens a method keeps, what it emits, and where the last token comes from."""
    kept, drafted = outcome["num_accepted"], chain["draft_texts"]
    head = f"  {method:<8}  keeps {kept} of {len(drafted)}, emits "
    replacement = outcome["replacement"]
    if replacement is None:
        last = "all kept; the bonus row is not in the recording"
    else:
        drawn, rejected = (
            quote(text, encoding, 15) for text in (replacement["text"], drafted[kept])
        )
        last = f"{drawn} replaces {rejected}, drawn with uniform {replacement['uniform']:.4f}"
    return [
        head + quote(outcome["emitted_text"], encoding, WIDTH - len(head)),
        f"{'':12}{last}",
    ]


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
    sign = "< " if step["uniform"] < step["accept_prob"] else ">="
    verdict = "kept" if step["kept"] else "replaced" if step["visited"] else "not read"
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
