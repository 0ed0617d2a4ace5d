"""`python -m draftverify demo`: recorded drafts of a real model, verified by two methods.

What is shown is gathered here as plain data, which `--json` prints as it is; `_demo_text` says what
is in it, and makes text of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from draftverify import (
    __version__,
    _demo_text,
    accept_residual,
    acceptance_rate,
    expected_tokens_block,
    expected_tokens_by_position,
    speculative_decode_step,
    verify_chain,
)
from draftverify._demo_data import Extract, load
from draftverify._demo_text import Chain, Entry, Outcome, Replacement, Report, Step, Timing
from draftverify._machine import machine

GOLDEN_RATIO = 0.6180339887498949
LARGEST = 5
ROUNDS = 50


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="verify recorded drafts of a real model, token by token",
        description="Verify recorded drafts of SmolLM2-135M-Instruct, token by token and block by "
        "block: what is kept, what replaces the rest, and how long a step takes beside NumPy.",
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
    chains = walk(extract, uniforms)
    steps = [step for chain in chains for step in chain["steps"]]
    visited = [step["visited"] for step in steps]
    kept = sum(step["kept"] for step in steps)
    rates = acceptance_rate(extract.draft_probs[visited], extract.target_probs[visited])
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
            "visited": sum(visited),
            "kept": kept,
            "observed": kept / sum(visited),
            "expected": float(rates.mean()),
        },
        "tokens_per_step": {
            "standard": {
                "observed": _mean(chain["num_accepted"] + 1 for chain in chains),
                "expected": _mean(
                    expected_tokens_by_position([step["accept_prob"] for step in chain["steps"]])
                    for chain in chains
                ),
            },
            "block": {
                "observed": _mean(chain["block"]["num_accepted"] + 1 for chain in chains),
                "expected": _mean(
                    expected_tokens_block([step["ratio"] for step in chain["steps"]])
                    for chain in chains
                ),
            },
        },
        "timing": _measure(extract),
    }


def walk(extract: Extract, uniforms: Sequence[float]) -> list[Chain]:
    """Verify all chains by both methods.

    A chain owns one uniform per drafted token, and one more for the draw that may follow.
    """
    standard = _outcomes(extract, uniforms, "standard")
    block = _outcomes(extract, uniforms, "block")
    chains: list[Chain] = []
    for chain, context in enumerate(extract.contexts):
        rows = extract.rows(chain)
        tokens: list[int] = extract.draft_token_ids[rows].tolist()
        own = uniforms[rows.start + chain : rows.stop + chain + 1]
        chains.append(
            {
                "context": context,
                "draft_token_ids": tokens,
                "draft_texts": [extract.text(token) for token in tokens],
                "steps": _steps(extract, rows, own, standard[chain]["num_accepted"]),
                **standard[chain],
                "block": block[chain],
            }
        )
    return chains


def _steps(
    extract: Extract, rows: slice, uniforms: Sequence[float], num_accepted: int
) -> list[Step]:
    tokens: list[int] = extract.draft_token_ids[rows].tolist()
    accept_probs, residuals, masses = accept_residual(
        extract.draft_probs[rows], extract.target_probs[rows], tokens
    )
    ratios = extract.ratios(rows)
    _, *joint_ratios = _joint(ratios)
    return [
        {
            "token_id": token,
            "text": extract.text(token),
            "accept_prob": float(accept_probs[position]),
            "uniform": uniforms[position],
            "visited": position <= num_accepted,
            "kept": position < num_accepted,
            "ratio": ratios[position],
            "joint_ratio": joint_ratios[position],
            "mass": float(masses[position]),
            "residual_largest": _largest(extract, residuals[position]),
        }
        for position, token in enumerate(tokens)
    ]


def _outcomes(
    extract: Extract, uniforms: Sequence[float], method: Literal["standard", "block"]
) -> list[Outcome]:
    """Verify all chains in one call, and look up what it answers."""
    requests, vocabulary = len(extract.contexts), extract.target_probs.shape[1]
    num_accepted, token_ids = verify_chain(
        extract.draft_probs,
        extract.target_probs,
        extract.draft_token_ids,
        uniforms,
        indptr=extract.indptr,
        method=method,
        # The bonus rows are not recorded: an id of no token stands for what they would give.
        bonus_token_ids=[vocabulary] * requests,
    )
    outcomes: list[Outcome] = []
    for chain, kept in enumerate(num_accepted.tolist()):
        rows = extract.rows(chain)
        *emitted, last = token_ids[chain, : kept + 1].tolist()
        replacement: Replacement | None = None
        if last != vocabulary:
            # Standard draws from the row's residual, block from that of a target scaled down.
            scale = _joint(extract.ratios(rows))[kept] if method == "block" else 1.0
            row = slice(rows.start + kept, rows.start + kept + 1)
            residual = accept_residual(
                extract.draft_probs[row],
                scale * extract.target_probs[row],
                extract.draft_token_ids[row],
            )[1]
            replacement = {
                **_entry(extract, residual[0], last),
                "uniform": uniforms[rows.stop + chain],
            }
            emitted.append(last)
        outcomes.append(
            {
                "num_accepted": kept,
                "replacement": replacement,
                "emitted_token_ids": emitted,
                "emitted_text": "".join(extract.text(token) for token in emitted),
            }
        )
    return outcomes


def _joint(ratios: Sequence[float]) -> list[float]:
    """Multiply the ratios up, capped at 1 at each: that of no token, of the first, and so on."""
    return list(accumulate(ratios, lambda joint, ratio: min(joint * ratio, 1.0), initial=1.0))


def _mean(numbers: Iterable[float]) -> float:
    return float(np.mean(list(numbers)))


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
