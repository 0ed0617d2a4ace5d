"""Draw the figures of the documentation, from the library itself.

`python docs/figures.py FOLDER` writes them as SVG files, as the build of the site does. The same
versions of everything give the same bytes. Lines and text are `currentColor`: within a page they
have the colour of its text, in a light theme and in a dark one. The colours of the data are those
of Okabe and Ito that stand out from white and from black, the blue a little lighter; what they tell
is also told by hatching, by dashes, by markers or by words.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from draftverify import (
    accept_probs,
    accept_residual,
    best_draft_length,
    expected_tokens,
    speedup,
    testing,
    verify_chain,
)
from draftverify._demo import stated_uniforms
from draftverify._demo_data import load

BLUE, VERMILLION, GREEN, PURPLE = "#2080c0", "#d55e00", "#009e73", "#cc79a7"
INK = "#010203"  # becomes currentColor
STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the same everywhere
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "hatch.linewidth": 1.2,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "path",
}

# The toy vocabulary of docs/concepts.md, which shows the same numbers.
TOKENS = ["mat", "sofa", "roof", "floor", "chair", "table", "moon", "dog"]
DRAFT = np.array([6, 4, 2, 1, 1, 1, 1, 0]) / 16
TARGET = np.array([4, 5, 1, 2, 1, 0, 1, 2]) / 16


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """Make a transparent figure and its axes; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for each in axes.flat:
        each.set_facecolor("none")
    return figure, axes


def accept_residual_figure() -> Figure:
    """Show where the target's law comes from: kept tokens and replacements."""
    ids = np.flatnonzero(DRAFT)  # the first seven: what the draft can propose
    rows = (len(ids), len(TOKENS))
    answer = accept_residual(np.broadcast_to(DRAFT, rows), np.broadcast_to(TARGET, rows), ids)
    kept = np.zeros_like(DRAFT)
    kept[ids] = DRAFT[ids] * answer.accept_prob
    replaced = answer.mass[0] * answer.residual[0]

    figure, axes = new_figure(7.2, 4.6, rows=2, sharex=True, sharey=True)
    places = np.arange(len(TOKENS))
    (proposed,), (emitted,) = axes
    bars(proposed, 0, kept, "kept")
    bars(proposed, kept, DRAFT - kept, "rejected")
    proposed.set_title("What the draft proposes")
    bars(emitted, 0, kept, "kept")
    bars(emitted, kept, replaced, "replacement")
    emitted.set_title("What is emitted")
    for each, law, name in ((proposed, DRAFT, "draft_probs"), (emitted, TARGET, "target_probs")):
        each.hlines(law, places - 0.45, places + 0.45, colors=INK, linewidths=1.5, label=name)
        each.set_ylabel("probability")
        each.legend(loc="upper right", ncols=3)
    for place in ids:
        above(proposed, place, DRAFT[place], f"{answer.accept_prob[place]:.2g}")
    for place in np.flatnonzero(replaced):
        above(emitted, place, TARGET[place], f"residual {answer.residual[0][place]:g}")
    above(proposed, -0.85, DRAFT[0], "accept")
    emitted.set_xticks(places, TOKENS)
    emitted.set_xlim(-1.2, len(TOKENS) - 0.4)
    emitted.set_ylim(0, 0.44)
    return figure


def above(axes: Any, place: Any, height: float, text: str) -> None:
    """Write above a bar."""
    axes.annotate(
        text, (place, height), (0, 4), textcoords="offset points", ha="center", fontsize=9
    )


def bars(axes: Any, bottom: Any, heights: NDArray[Any], label: str) -> None:
    """Draw bars: full for what is kept, hatched for the rest."""
    colour, hatch = {
        "kept": (BLUE, None),
        "rejected": (VERMILLION, "////"),
        "replacement": (GREEN, "\\\\\\\\"),
    }[label]
    axes.bar(
        range(len(heights)),
        heights,
        0.8,
        bottom,
        color="none" if hatch else colour,  # SVG cannot have a light colour behind a hatch
        edgecolor=colour,
        hatch=hatch,
        linewidth=0.8,
        label=label,
    )


def chain_figure() -> Figure:
    """Show what becomes of the recorded chains of a real model."""
    extract = load()
    uniforms = np.array(stated_uniforms(len(extract.draft_token_ids) + len(extract.contexts)))
    figure, axes = new_figure(
        7.2, 2.9, columns=2, sharey=True, gridspec_kw={"width_ratios": [3, 2]}
    )
    for each, chain in zip(axes.flat, (1, 2), strict=True):
        rows = extract.rows(chain)
        ids = extract.draft_token_ids[rows]
        draft, target = extract.draft_probs[rows], extract.target_probs[rows]
        numbers = uniforms[rows.start + chain : rows.stop + chain + 1]
        verdict = verify_chain(
            draft[None], target[None], ids[None], numbers[None], bonus_token_ids=[0]
        )
        kept = int(verdict.num_accepted[0])
        accept = accept_probs(draft, target, ids)
        places = np.arange(len(ids))
        each.bar(places, accept, 0.62, color=f"{BLUE}55", edgecolor=BLUE, label="accept_prob")
        each.scatter(
            places, numbers[:-1], 42, color=VERMILLION, marker="D", zorder=3, label="uniform"
        )
        fates = ["kept"] * kept + ["replaced"] + ["not looked at"] * len(ids)
        names = [f"“{extract.text(int(t))}”\n{fate}" for t, fate in zip(ids, fates, strict=False)]
        each.set_xticks(places, names)
        each.set_xlim(-0.6, len(ids) - 0.4)
        emitted = "".join(extract.text(int(t)) for t in verdict.token_ids[0, : kept + 1])
        each.set_title(f"emitted: “{emitted}”")
    axes[0, 0].set_ylabel("probability")
    axes[0, 0].set_ylim(0, 1.05)
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure


def block_figure() -> Figure:
    """Compare what the two rules keep, for mirrored models of every acceptance rate."""
    length = 4
    rates = [Fraction(k, 40) for k in range(2, 41)]
    found: dict[str, list[float]] = {"block": [], "standard": []}
    for rate in rates:
        high = 1 - rate / 2
        models = [lambda _, row=row: row for row in ((high, 1 - high), (1 - high, high))]
        for name, rule in (("block", testing.block), ("standard", testing.standard)):
            law = testing.emitted_law(rule, models[0], models[1], length)
            found[name].append(float(law.expected_accepted) + 1)
    figure, axes = new_figure(7.2, 3.2)
    (each,) = axes.flat
    numbers = [float(rate) for rate in rates]
    each.fill_between(numbers, found["standard"], found["block"], color=f"{GREEN}33", linewidth=0)
    each.plot(numbers, found["block"], color=GREEN, linewidth=2)
    each.plot(numbers, found["standard"], color=BLUE, linewidth=2, linestyle="--")
    middle = numbers.index(0.7)
    each.annotate(
        "block",
        (numbers[middle], found["block"][middle]),
        (-8, 8),
        textcoords="offset points",
        ha="right",
    )
    each.annotate(
        "standard",
        (numbers[middle], found["standard"][middle]),
        (8, -14),
        textcoords="offset points",
    )
    each.set_xlabel("acceptance rate of one token")
    each.set_ylabel(f"tokens a step, {length} drafted")
    each.set_xlim(0, 1)
    each.set_ylim(1, length + 1.05)
    return figure


def draft_length_figure() -> Figure:
    """Show the tokens of a step and the speedup against the draft length, for four rates."""
    cost, longest = 0.05, 16
    lengths = np.arange(longest + 1)
    figure, axes = new_figure(7.2, 3.2, columns=2, sharex=True)
    left, right = axes.flat
    series = (
        (0.9, PURPLE, "-", "o"),
        (0.8, GREEN, "--", "s"),
        (0.7, VERMILLION, "-.", "^"),
        (0.5, BLUE, ":", "D"),
    )
    for rate, colour, dashes, marker in series:
        values = (expected_tokens(rate, lengths), speedup(rate, lengths, cost))
        for each, numbers in zip((left, right), values, strict=True):
            each.plot(lengths, numbers, color=colour, linestyle=dashes, linewidth=2)
            each.annotate(
                f"rate {rate}",
                (longest, numbers[-1]),
                (5, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
        best = best_draft_length(rate, cost, longest=longest)
        right.plot([best], [values[1][best]], color=colour, marker=marker, markersize=8)
    left.set_ylabel("tokens a step")
    right.set_ylabel(f"speedup at a cost ratio of {cost}")
    for each in (left, right):
        each.set_xlabel("draft length")
        each.set_xticks(range(0, longest + 1, 4))
        each.set_ylim(0)
        each.set_xlim(0, longest)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "accept_residual": accept_residual_figure,
    "block": block_figure,
    "chain": chain_figure,
    "draft_length": draft_length_figure,
}


def draw(name: str) -> str:
    """Draw a figure as the text of an SVG file."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure, stream = FIGURES[name](), io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing)
    drawing = stream.getvalue().replace(INK, "currentColor")
    # Ids of one drawing must not be those of another in the same page: those made from the salt are
    # not, letters get the name too, and groups, which nothing refers to, need none.
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    return drawing.replace("DejaVuSans-", f"{name}-letter-")


def draw_all(folder: Path) -> None:
    """Write all figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        (folder / f"{name}.svg").write_text(draw(name), encoding="utf-8")


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
