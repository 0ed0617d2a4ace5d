"""The example `examples/serve.py`, driven over HTTP: the same texts in company as alone.

The model is a table of logits, and its tokenizer knows a letter for each token; one test takes
the real weights.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinds import lacking, need

EXAMPLES = Path(__file__).parents[1] / "examples"
LETTERS = "abcdefghijk."
END = LETTERS.index(".")
SECONDS = 20.0  # no test waits longer


class Tokenizer:
    eos_token_id = END

    def __call__(self, prompt: str) -> dict[str, list[int]]:
        return {"input_ids": [LETTERS.index(letter) for letter in prompt if letter in LETTERS]}

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(LETTERS[token] for token in ids)


class Model:
    """Rows depend on the last two tokens. `watch` sees every context that the target is given."""

    longest = 1000

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        shape = (len(LETTERS),) * 3
        target = random.normal(0, 1.5, shape)
        target[..., END] = -4.0
        self.target = need("torch").tensor(target, dtype=need("torch").float32)
        self.draft = self.target + need("torch").from_numpy(random.normal(0, 0.7, shape)).float()
        self.tokenizer = Tokenizer()
        self.watch: Callable[[list[int]], None] = lambda _: None

    def begin(self) -> None:
        pass

    def another(self) -> Model:
        return self

    def draft_logits(self, context: list[int]) -> Any:
        return self.draft[context[-2:][0], context[-1]]

    def target_logits(self, context: list[int], drafted: int) -> Any:
        self.watch(context)
        ends = range(len(context) - drafted, len(context) + 1)
        return need("torch").stack([self.target[context[:e][-2:][0], context[e - 1]] for e in ends])


@pytest.fixture(scope="module")
def examples() -> Iterator[tuple[Any, Any, Any]]:
    for module in ("torch", "fastapi", "uvicorn", "httpx", "prometheus_client"):
        need(module)
    if not EXAMPLES.exists():
        lacking("examples are not beside the tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        names = ("generate", "serve_engine", "serve")
        yield tuple(importlib.import_module(name) for name in names)  # type: ignore[misc]


class Service:
    """The application in a thread of its own, on a free port."""

    def __init__(self, examples: tuple[Any, Any, Any], model: Any, **options: Any) -> None:
        uvicorn, httpx = need("uvicorn"), need("httpx")
        self.engine = examples[1].Engine(model, **options)
        app = examples[2].app_of(self.engine)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        self.server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        address = "http://127.0.0.1:{}".format(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self.server.run, args=([self._socket],))
        self._thread.start()
        self.client = httpx.Client(base_url=address, timeout=SECONDS)
        until(lambda: self.server.started)

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(SECONDS)
        self._socket.close()
        assert not self._thread.is_alive()

    def ask(self, **fields: Any) -> Any:
        return self.client.post("/generate", json=fields)

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextlib.contextmanager
def served(examples: Any, model: Any, **options: Any) -> Iterator[Service]:
    service = Service(examples, model, **options)
    try:
        yield service
    finally:
        service.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def alone(examples: Any, model: Any, method: str = "standard", **fields: Any) -> list[int]:
    """Generate the same by the command line's loop."""
    options = argparse.Namespace(
        method=method,
        tokens=fields["max_tokens"],
        window=8,
        **{name: fields[name] for name in ("temperature", "draft_length", "seed")},
    )
    steps = examples[0].generate(model, fields["prompt"], options)
    return [token for step in steps for token in step.emitted]
