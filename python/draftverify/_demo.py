"""`python -m draftverify demo`: recorded drafts of a real model, verified token by token.

What is shown is gathered here as plain data, which `--json` prints as it is; `_demo_text` makes
text of it. The TypedDicts are the document: their keys stay.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from draftverify import __version__, _demo_text, accept_residual, speculative_decode_step
from draftverify._demo_data import Extract, load
from draftverify._machine import Machine, machine

GOLDEN_RATIO = 0.6180339887498949
LARGEST = 5
ROUNDS = 50


class Entry(TypedDict):
    """A token and its probability in a residual."""

    token_id: int
    text: str
    prob: float


class Step(TypedDict):
    """A drafted token that was visited."""

    token_id: int
    text: str
    accept_prob: float
    uniform: float
    kept: bool
    mass: float
    residual_largest: list[Entry]


class Replacement(Entry):
    """The token drawn from the residual of a rejected one."""

    uniform: float


class Chain(TypedDict):
    """The drafted tokens of one request, up to the first rejection."""

    context: str
    draft_token_ids: list[int]
    draft_texts: list[str]
    steps: list[Step]
    replacement: Replacement | None
    emitted_token_ids: list[int]
    emitted_text: str


class Acceptance(TypedDict):
    """How many tokens were kept, and how many were to be expected."""

    visited: int
    kept: int
    observed: float
    expected: float


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
    timing: Timing


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="verify recorded drafts of a real model, token by token",
        description="Verify recorded drafts of SmolLM2-135M-Instruct, token by token: what is "
        "kept, what replaces the rest, and how long a step takes beside NumPy.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, numbers at full precision"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Walk the recorded chains and print what came of it."""
    found = report(load())
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(_demo_text.render(found, sys.stdout.encoding or "ascii"))


def stated_uniforms(count: int) -> list[float]:
    """Give the fractional parts of the multiples of the golden ratio: evenly spread, not random."""
    return [k * GOLDEN_RATIO % 1.0 for k in range(1, count + 1)]


def report(extract: Extract) -> Report:
    """Walk all chains of the extract, and time a step."""
    uniforms = stated_uniforms(len(extract.draft_token_ids) + len(extract.contexts))
    chains = [walk(extract, chain, uniforms) for chain in range(len(extract.contexts))]
    steps = [step for chain in chains for step in chain["steps"]]
    kept = sum(step["kept"] for step in steps)
    return {
        "versions": {
            "draftverify": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": machine(),
        "uniforms": uniforms,
        "chains": chains,
        "acceptance": {
            "visited": len(steps),
            "kept": kept,
            "observed": kept / len(steps),
            "expected": sum(1.0 - step["mass"] for step in steps) / len(steps),
        },
        "timing": _measure(extract),
    }


def walk(extract: Extract, chain: int, uniforms: Sequence[float]) -> Chain:
    """Verify the drafted tokens of a chain up to the first rejection.

    A chain owns one uniform per drafted token, and one more for the draw that may follow.
    """
    rows = slice(*extract.indptr[chain : chain + 2].tolist())
    own = uniforms[rows.start + chain : rows.stop + chain + 1]
    tokens: list[int] = extract.draft_token_ids[rows].tolist()
    accept_probs, residuals, masses = accept_residual(
        extract.draft_probs[rows], extract.target_probs[rows], tokens
    )
    steps: list[Step] = []
    replacement: Replacement | None = None
    for position, token in enumerate(tokens):
        step: Step = {
            "token_id": token,
            "text": extract.text(token),
            "accept_prob": float(accept_probs[position]),
            "uniform": own[position],
            "kept": own[position] < accept_probs[position].item(),
            "mass": float(masses[position]),
            "residual_largest": _largest(extract, residuals[position]),
        }
        steps.append(step)
        if not step["kept"]:
            drawn = inverse_cdf(residuals[position], own[-1])
            replacement = {**_entry(extract, residuals[position], drawn), "uniform": own[-1]}
            break
    emitted = [step["token_id"] for step in steps if step["kept"]]
    if replacement is not None:
        emitted.append(replacement["token_id"])
    return {
        "context": extract.contexts[chain],
        "draft_token_ids": tokens,
        "draft_texts": [extract.text(token) for token in tokens],
        "steps": steps,
        "replacement": replacement,
        "emitted_token_ids": emitted,
        "emitted_text": "".join(extract.text(token) for token in emitted),
    }


def inverse_cdf(law: NDArray[np.float32], uniform: float) -> int:
    """Draw the first id at which the running sum of a law exceeds `uniform` times its sum."""
    running = np.cumsum(law, dtype=np.float64)
    return int(np.searchsorted(running, uniform * running[-1], side="right"))


def _largest(extract: Extract, residual: NDArray[np.float32]) -> list[Entry]:
    leading = np.argsort(-residual, kind="stable")[:LARGEST].tolist()
    return [_entry(extract, residual, token) for token in leading if residual[token] > 0]


def _entry(extract: Extract, residual: NDArray[np.float32], token: int) -> Entry:
    return {"token_id": token, "text": extract.text(token), "prob": float(residual[token])}


def _measure(extract: Extract) -> Timing:
    """Time a step and NumPy's three lines in turns, so that both meet the same disturbances."""
    step_times: list[int] = []
    numpy_times: list[int] = []
    rows = list(
        zip(
            extract.draft_probs, extract.target_probs, extract.draft_token_ids.tolist(), strict=True
        )
    )
    clock = time.perf_counter_ns
    for draft, target, token in rows * (ROUNDS + 1):
        start = clock()
        speculative_decode_step(draft, target, token)
        between = clock()
        _three_lines(draft, target)
        numpy_times.append(clock() - between)
        step_times.append(between - start)
    del step_times[: len(rows)], numpy_times[: len(rows)]  # the first round warms up
    step_seconds, numpy_seconds = (float(np.median(ns)) / 1e9 for ns in (step_times, numpy_times))
    return {
        "vocabulary_size": extract.draft_probs.shape[1],
        "dtype": extract.draft_probs.dtype.name,
        "calls": len(step_times),
        "step_seconds": step_seconds,
        "numpy_seconds": numpy_seconds,
        "numpy_over_step": numpy_seconds / step_seconds,
    }


def _three_lines(draft: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
    excess = np.maximum(target - draft, 0)
    mass = excess.sum()
    residual: NDArray[np.float32] = excess / mass
    return residual
