"""The example `examples/serve.py`, driven over HTTP: the same texts in company as alone.

The model is a table of logits, and its tokenizer knows a letter for each token; one test takes the
real weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from kinds import lacking, need, need_weights

EXAMPLES = Path(__file__).parents[1] / "examples"
LETTERS = "abcdefghijk."
END = LETTERS.index(".")
SECONDS = 60.0  # no test waits longer for anything


class Tokenizer:
    eos_token_id = END

    def __call__(self, prompt: str) -> dict[str, list[int]]:
        return {"input_ids": [LETTERS.index(letter) for letter in prompt if letter in LETTERS]}

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(LETTERS[token] for token in ids)


class Model:
    """Its rows depend on the last two tokens; `before` is called with each context."""

    longest = 1000

    def __init__(self) -> None:
        torch, random = need("torch"), np.random.default_rng(5)
        shape = (len(LETTERS),) * 3
        target = random.normal(0, 1.5, shape)
        target[..., END] = -30.0
        self.target = torch.tensor(target, dtype=torch.float32)
        self.draft = torch.tensor(target + random.normal(0, 0.7, shape), dtype=torch.float32)
        self.tokenizer = Tokenizer()
        self.before: Callable[[list[int]], object] = lambda _: None

    def begin(self) -> None:
        pass

    def another(self) -> Model:
        return self

    def draft_logits(self, context: list[int]) -> Any:
        return self.draft[context[-2:][0], context[-1]]

    def target_logits(self, context: list[int], drafted: int) -> Any:
        self.before(context)
        ends = range(len(context) - drafted, len(context) + 1)
        rows = [self.target[context[:end][-2:][0], context[end - 1]] for end in ends]
        return need("torch").stack(rows)


class Examples(NamedTuple):
    generate: Any
    serve: Any
    load: Any


@pytest.fixture(scope="module")
def examples() -> Iterator[Examples]:
    for module in ("torch", "fastapi", "uvicorn", "httpx", "prometheus_client"):
        need(module)
    if not EXAMPLES.exists():
        lacking("examples are not beside the tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        names = ("generate", "serve", "serve_load")
        yield Examples(*(importlib.import_module(name) for name in names))


class Service:
    """The application in a thread of its own, on a free port."""

    def __init__(
        self,
        examples: Examples,
        model: Any,
        method: str = "standard",
        grace: int = 5,
        **options: Any,
    ) -> None:
        uvicorn, httpx = need("uvicorn"), need("httpx")
        self.engine = examples.serve.Engine(model, method, **options)
        app = examples.serve.app_of(self.engine)
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=grace)
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, args=([self._socket],))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS)
        until(lambda: self.server.started)
        self._before = self._samples()  # the metrics are the process's

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        # The step's thread has ended as well.
        assert not [thread for thread in threading.enumerate() if "asyncio" in thread.name]

    def ask(self, **fields: Any) -> Any:
        return self.client.post("/generate", json=fields)

    def stream(self, **fields: Any) -> Any:
        return self.client.stream("POST", "/generate", json={**fields, "stream": True})

    def metrics(self) -> dict[str, float]:
        samples = self._samples()
        counted = (name for name in samples if not name.endswith("rate"))
        return samples | {name: samples[name] - self._before.get(name, 0) for name in counted}

    def _samples(self) -> dict[str, float]:
        parser = importlib.import_module("prometheus_client.parser")
        families = parser.text_string_to_metric_families(self.client.get("/metrics").text)
        return {
            "/".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }


@contextlib.contextmanager
def served(examples: Examples, model: Any, **options: Any) -> Iterator[Service]:
    service = Service(examples, model, **options)
    try:
        yield service
    finally:
        service.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def alone(examples: Examples, model: Any, method: str, fields: dict[str, Any]) -> list[int]:
    """Generate the same text by the loop of `generate.py`, which serves nobody else."""
    numbers = {name: fields[name] for name in ("temperature", "draft_length", "seed")}
    options = argparse.Namespace(method=method, tokens=fields["max_tokens"], **numbers)
    steps = examples.generate.generate(model, fields["prompt"], options)
    return [token for step in steps for token in step.emitted]


def wishes(number: int) -> list[dict[str, Any]]:
    """Make requests of which no two have the same settings."""
    return [
        {
            "prompt": "abcdefgh"[at % 5 :],
            "max_tokens": 20 + at,
            "temperature": [1.0, 0.7, 0.0, 1.5, 5e-324][at % 5],
            "draft_length": [4, 1, 6, 2, 3][at % 5],
            "seed": at,
        }
        for at in range(number)
    ]


@pytest.mark.parametrize("method", ["standard", "block"])
def test_texts_in_company_are_those_alone(
    monkeypatch: pytest.MonkeyPatch, examples: Examples, method: str
) -> None:
    model, fields = Model(), wishes(12)
    fields[5]["draft_length"] = fields[10]["draft_length"] = 0  # plain sampling among them
    expected = [alone(examples, model, method, wish) for wish in fields]
    calls: list[list[int]] = []
    verify = examples.serve.verify_chain_logits

    def watched(*arguments: Any, **options: Any) -> Any:
        calls.append(np.diff(options["indptr"]).tolist())
        assert options["method"] == method
        assert len(options["temperature"]) == len(calls[-1])
        return verify(*arguments, **options)

    monkeypatch.setattr(examples.serve, "verify_chain_logits", watched)
    with served(examples, model, method=method, slots=5) as service:
        # No step ends before all have come.
        model.before = lambda _: until(lambda: service.server.should_exit or everyone.is_set())
        everyone = threading.Event()
        with ThreadPoolExecutor(len(fields)) as pool:
            answers = [pool.submit(service.ask, **wish) for wish in fields]
            until(lambda: len(service.engine.jobs) == len(fields))
            everyone.set()
            results = [answer.result() for answer in answers]
        metrics = service.metrics()
    for at, result in enumerate(results):
        assert result.status_code == 200
        body = result.json()
        assert body["token_ids"] == expected[at]
        assert len(body["token_ids"]) == fields[at]["max_tokens"]
        assert body["text"] == model.tokenizer.decode(body["token_ids"])
        assert body["finish_reason"] == "length"
        # Nothing is drafted that the text has no room for.
        assert body["accepted"] + body["steps"] == len(body["token_ids"])
    # Five requests a call, and not of one length.
    assert max(len(lengths) for lengths in calls) == 5
    assert max(len(set(lengths)) for lengths in calls) > 2
    assert any(0 in lengths for lengths in calls)
    totals = {
        name: sum(result.json()[name] for result in results)
        for name in ("steps", "drafted", "accepted")
    }
    assert sum(len(lengths) for lengths in calls) == totals["steps"]
    assert metrics["draftverify_drafted_tokens_total"] == totals["drafted"]
    assert metrics["draftverify_accepted_tokens_total"] == totals["accepted"]
    assert metrics["draftverify_acceptance_rate"] == totals["accepted"] / totals["drafted"]
    assert metrics["draftverify_tokens_per_step_count"] == totals["steps"]
    given = sum(len(result.json()["token_ids"]) for result in results)
    assert metrics["draftverify_tokens_per_step_sum"] == given
    assert metrics["draftverify_verification_seconds_count"] == len(calls)
    assert metrics["draftverify_requests_per_verification_sum"] == totals["steps"]
    assert metrics["draftverify_requests_total/length"] == len(fields)


def test_a_stream_is_the_text_in_pieces(examples: Examples) -> None:
    model, [wish] = Model(), wishes(1)
    with served(examples, model) as service:
        whole = service.ask(**wish).json()
        with service.stream(**wish) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            *lines, last = map(json.loads, response.iter_lines())
        assert len(lines) == last["steps"] > 2
        assert "".join(line["text"] for line in lines) == whole["text"]
        assert [token for line in lines for token in line["token_ids"]] == whole["token_ids"]
        assert last == {name: whole[name] for name in last}
        # Without a seed one is drawn, and told.
        del wish["seed"]
        drawn = [service.ask(**wish).json() for _ in range(2)]
        assert drawn[0]["seed"] != drawn[1]["seed"]
        assert service.ask(**wish, seed=drawn[0]["seed"]).json() == drawn[0]
        # It stops where the text does, and does not show the token that says so.
        model.target[LETTERS.index("k"), LETTERS.index("k"), END] = 99.0
        stopped = service.ask(prompt="kk", temperature=0).json()
        assert stopped["finish_reason"] == "stop"
        assert stopped["text"] == ""


def test_a_character_is_not_sent_in_halves(examples: Examples) -> None:
    class Bytes(Tokenizer):
        eos_token_id = -1

        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode(errors="replace")

    async def pieces() -> list[str]:
        model = Model()
        model.tokenizer = Bytes()
        body = examples.serve.Body(prompt="A", max_tokens=7, stream=True)
        job = examples.serve.Job([1], body, model)
        for emitted in ([0x41, 0xF0], [0x9F], [0x99, 0x82], [0x42, 0xE2]):
            job.proposal = SimpleNamespace(drafted=emitted[1:])
            job.add(emitted)
        lines = [await job.lines.get() for _ in range(5)]
        assert lines[4]["finish_reason"] == job.outcome == "length"
        return [line["text"] for line in lines[:4]]

    assert asyncio.run(pieces()) == ["A", "", "\U0001f642", "B\ufffd"]


def test_a_client_that_leaves_frees_its_slot(examples: Examples) -> None:
    httpx, model = need("httpx"), Model()
    calls: list[list[int]] = []

    def before(context: list[int]) -> None:
        calls.append(context)
        time.sleep(0.01)

    model.before = before
    endless = {"prompt": "ab", "max_tokens": 900, "draft_length": 1, "temperature": 1.5}
    with served(examples, model, slots=1, places=2) as service:
        with service.stream(**endless) as response:
            lines = response.iter_lines()  # dropped, it would close the connection
            next(lines)
            # Another one leaves while it waits, and is never begun.
            with pytest.raises(httpx.ReadTimeout):
                service.client.post("/generate", json={**endless, "prompt": "ccc"}, timeout=0.3)
            until(lambda: len(service.engine.jobs) == 1)
            assert service.metrics()["draftverify_requests_total/cancelled"] == 1
        until(lambda: not service.engine.jobs)
        # One that wants the whole text leaves as well.
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/generate", json={**endless, "prompt": "dd"}, timeout=0.3)
        until(lambda: not service.engine.jobs)
        answer = service.ask(prompt="ee", max_tokens=4)
        assert answer.status_code == 200
        metrics = service.metrics()
        assert metrics["draftverify_requests_total/cancelled"] == 3
        assert metrics["draftverify_requests_total/length"] == 1
        number = len(calls)
        time.sleep(0.1)
        assert len(calls) == number
    begun = [context[:2] for context in calls]
    assert [0, 1] in begun
    assert [3, 3] in begun
    assert [2, 2] not in begun


BAD = {
    b'{"prompt"': "body: Invalid JSON: EOF while parsing an object at line 1 column 9, got",
    b"\xff": "body: Invalid JSON",
    b"[" * 100_000: "body: Invalid JSON",
    b"": "body: Invalid JSON",
    b"[1]": "body: ",
    b"{}": "prompt: Field required, got {}",
    b'{"prompt": ""}': "prompt: ",
    b'{"prompt": 1}': "prompt: Input should be a valid string, got 1",
    b'{"prompt": "XYZ"}': "prompt: expected 1 to 936 tokens beside max_tokens, got 0",
    b'{"prompt": "%b"}'
    % (b"a" * 937): "prompt: expected 1 to 936 tokens beside max_tokens, got 937",
    b'{"prompt": "ab", "max_tokens": 999}': "prompt: expected 1 to 1 tokens",
    b'{"prompt": "\\ud800"}': "body: Invalid JSON",
    b'{"prompt": "a", "\\ud800": 1}': "body: Invalid JSON",
    b'{"prompt": "a", "colour": "red"}': "colour: Extra inputs are not permitted",
    json.dumps({"prompt": "a"} | dict.fromkeys(range(9999))).encode(): "0: Extra inputs are",
    b'{"prompt": "a", "temperature": -1}': "equal to 0, got -1",
    b'{"prompt": "a", "temperature": NaN}': "temperature: ",
    b'{"prompt": "a", "temperature": Infinity}': "temperature: ",
    b'{"prompt": "a", "max_tokens": 0}': "max_tokens: ",
    b'{"prompt": "a", "max_tokens": 4097}': "max_tokens: ",
    b'{"prompt": "a", "max_tokens": true}': "max_tokens: ",
    b'{"prompt": "a", "max_tokens": "5"}': "max_tokens: ",
    b'{"prompt": "a", "draft_length": 17}': "draft_length: ",
    b'{"prompt": "a", "draft_length": -1}': "draft_length: ",
    b'{"prompt": "a", "seed": -1}': "seed: ",
    b'{"prompt": "a", "seed": 9223372036854775808}': "seed: ",
    b'{"prompt": "a", "stream": 1}': "stream: ",
}


def test_bad_requests_are_told_what_is_bad(examples: Examples) -> None:
    headers = {"content-type": "application/json"}
    with served(examples, Model()) as service:
        for content, text in BAD.items():
            answer = service.client.post("/generate", content=content, headers=headers)
            assert answer.status_code == 422, content[:80]
            assert text in answer.json()["error"], content[:80]
            assert len(answer.content) < 400
        # Too large, with a length that is told before, and without.
        for large in (b" " * 2**21, iter([b" " * 2**20] * 2)):
            answer = service.client.post("/generate", content=large, headers=headers)
            assert answer.status_code == 413
            assert "at most 1 MiB" in answer.json()["error"]
        assert service.metrics()["draftverify_requests_total/refused"] == len(BAD) + 2
        assert service.client.get("/generate").status_code == 405
        assert service.client.get("/nowhere").status_code == 404
        # The longest that is allowed is allowed, and nothing is left behind.
        assert service.ask(prompt="a" * 936, temperature=0).status_code == 200
        assert service.client.get("/health").json() == {"ok": True}
        assert not service.engine.jobs


def test_who_finds_no_place_is_sent_away(examples: Examples) -> None:
    model, free = Model(), threading.Event()
    model.before = lambda _: free.wait(SECONDS)
    with served(examples, model, slots=1, places=2) as service:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(service.ask, prompt="ab", max_tokens=4) for _ in range(2)]
            until(lambda: len(service.engine.jobs) == 2)
            refused = service.ask(prompt="ab")
            # All this while the engine is stuck: the event loop is not.
            assert service.client.get("/health").status_code == 200
            free.set()
            assert [answer.result().status_code for answer in answers] == [200, 200]
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "all 2 places are taken" in refused.json()["error"]
        assert service.metrics()["draftverify_requests_total/refused"] == 1
        assert service.ask(prompt="ab", max_tokens=1).status_code == 200


@pytest.mark.parametrize("where", ["model", "verification"])
def test_an_error_is_of_one_request_alone(examples: Examples, where: str) -> None:
    model, fields = Model(), wishes(4)
    # The third request comes upon it, some steps on, and no other one may: they start elsewhere.
    fields[2] = {**fields[2], "prompt": "kj", "temperature": 0.0, "max_tokens": 20}
    expected = [alone(examples, model, "standard", wish) for wish in fields]
    everyone = threading.Event()

    def before(context: list[int]) -> None:
        until(everyone.is_set)
        bad = context[:2] == [10, 9] and len(context) > 10
        if bad and where == "model":
            message = "a layer is missing"
            raise RuntimeError(message)
        # Nothing else is read between here and the verification but this request's rows.
        broken.append(bad)

    broken: list[bool] = []
    rows_of = model.target_logits

    def target_logits(context: list[int], drafted: int) -> Any:
        rows = rows_of(context, drafted)
        return rows * float("nan") if broken[-1] else rows

    model.target_logits = target_logits  # type: ignore[method-assign]
    model.before = before
    with served(examples, model) as service:
        with ThreadPoolExecutor(len(fields)) as pool:
            answers = [pool.submit(service.ask, **wish) for wish in fields]
            until(lambda: len(service.engine.jobs) == len(fields))
            everyone.set()
            results = [answer.result() for answer in answers]
        with service.stream(**fields[2]) as response:
            last = json.loads(list(response.iter_lines())[-1])
        for at in (0, 1, 3):
            assert results[at].json()["token_ids"] == expected[at]
        assert results[2].status_code == 500
        assert results[2].json() == last
        text = "a layer is missing" if where == "model" else "ValueError: target_logits: expected"
        assert text in last["error"]
        assert service.metrics()["draftverify_requests_total/failed"] == 2
        assert service.client.get("/health").status_code == 200


def test_nobody_waits_for_an_engine_that_is_dead(
    monkeypatch: pytest.MonkeyPatch, examples: Examples
) -> None:
    class Panic(BaseException):  # as those of compiled code
        pass

    model, free = Model(), threading.Event()
    with served(examples, model, slots=2) as service:

        def panic(_: object) -> None:
            free.wait(SECONDS)
            raise Panic

        monkeypatch.setattr(service.engine, "_verify", panic)
        with ThreadPoolExecutor(3) as pool:
            answers = [pool.submit(service.ask, prompt="ab") for _ in range(3)]
            until(lambda: len(service.engine.jobs) == 3)
            free.set()
            results = [answer.result() for answer in answers]
        assert [result.status_code for result in results] == [503] * 3
        assert {result.json()["error"] for result in results} == {"the engine has stopped"}
        assert service.client.get("/health").status_code == 503
        assert service.ask(prompt="ab").status_code == 503


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("tokens", "grace"), [(30, 50), (900, 1)])
def test_a_text_is_finished_at_shutdown_if_it_can_be(
    examples: Examples, tokens: int, grace: int, stream: bool
) -> None:
    model, calls = Model(), 0

    def before(_: object) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.01)

    model.before = before
    wish = {"prompt": "ab", "max_tokens": tokens, "temperature": 0.0, "draft_length": 0}
    with served(examples, model, grace=grace) as service, ThreadPoolExecutor(1) as pool:
        future = pool.submit(service.ask, **wish, stream=stream)
        until(lambda: calls > 2)
        service.server.should_exit = True
        answer = future.result()
    last = json.loads(answer.text.splitlines()[-1])
    if tokens == 30:
        assert last["finish_reason"] == "length"
    else:
        assert answer.status_code == (200 if stream else 503)
        assert last["error"] == "the engine has stopped"


def test_the_load_test_counts_what_it_sees(
    examples: Examples, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model()
    model.before = lambda _: time.sleep(0.002)
    with served(examples, model) as service:
        arguments = ["--url", service.url, "--requests", "24", "--tokens", "60"]
        assert examples.load.main(arguments) == 0
        output = capsys.readouterr().out
        assert "18 complete, 3 left, 3 refused, 0 errors" in output
        assert "first tokens: p50 " in output
        assert "a token: p50 " in output
        assert 'draftverify_requests_total{outcome="length"} ' in output
        assert service.metrics()["draftverify_requests_total/length"] == 18
        model.before = lambda _: 1 / 0
        assert examples.load.main([*arguments[:2], "--requests", "2"]) == 1
        assert "2 errors" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of Transformers' own
def test_real_texts_in_company_are_those_alone(
    monkeypatch: pytest.MonkeyPatch, examples: Examples
) -> None:
    need_weights()
    model = examples.serve.installed_model(window=8)
    fields = [
        {**wish, "prompt": prompt, "max_tokens": 4, "draft_length": length}
        for wish, prompt, length in zip(
            wishes(2), ("The Moon is", "Water boils when it"), (2, 3), strict=True
        )
    ]
    expected = [alone(examples, model, "block", wish) for wish in fields]
    propose, both = examples.serve.propose, threading.Event()

    def wait(*arguments: Any, **options: Any) -> Any:
        both.wait(SECONDS)
        return propose(*arguments, **options)

    monkeypatch.setattr(examples.serve, "propose", wait)
    with served(examples, model, method="block") as service, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(service.ask, **wish) for wish in fields]
        until(lambda: len(service.engine.jobs) == 2)
        both.set()
        results = [answer.result().json() for answer in answers]
        metrics = service.metrics()
    # The first step may be of one alone.
    together = "draftverify_requests_per_verification"
    assert metrics[f"{together}_sum"] > metrics[f"{together}_count"]
    assert [result["token_ids"] for result in results] == expected
    assert all(result["text"].strip() for result in results)


def test_who_left_while_waiting_takes_no_slot(examples: Examples) -> None:
    engine = examples.serve.Engine(Model(), "block", slots=2)
    body = examples.serve.Body(prompt="b", max_tokens=2)
    served: list[Any] = []

    def step(jobs: list[Any]) -> None:
        served.append(jobs)
        engine.stopped = True

    engine._step = step

    async def run() -> list[Any]:
        jobs = [examples.serve.Job([1], body, engine.model) for _ in range(6)]
        for job in jobs:
            engine.submit(job)
        for job in jobs[:3]:
            await engine.release(job)
        await engine.run()
        return jobs

    assert served == [asyncio.run(run())[3:5]]


def test_numbers_of_the_command_line(
    examples: Examples, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--slots", "0"], ["--window", "-1"]):
        with pytest.raises(SystemExit) as caught:
            examples.serve.main(arguments)
        assert caught.value.code == 2
        assert f"{arguments[0]}: expected a number >= " in capsys.readouterr().err
