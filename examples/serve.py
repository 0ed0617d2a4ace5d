"""Serve text over HTTP; the drafts of all requests are verified by one call a step.

Around the model of `generate.py`, and with what that needs beside draftverify:

    pip install 'fastapi>=0.165' 'uvicorn>=0.54' 'prometheus-client>=0.26'
    python examples/serve.py --method block
    curl -N localhost:8000/generate --json '{"prompt": "The Moon is", "stream": true}'

A stream is lines of JSON: any client reads them, and the frames of server-sent events are for
EventSource, which cannot POST. The last line has a `finish_reason` or an `error`.

`serve_engine.py` drafts and verifies; this file speaks HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator

import prometheus_client as prometheus
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from generate import METHODS
from pydantic import BaseModel, ConfigDict, Field, field_validator
from serve_engine import Engine, Job, Settings, UnavailableError
from speculation import installed_model
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import Receive, Scope, Send

LEAST_TEMPERATURE = 0.01  # a draft's softmax of less may overflow


class Body(BaseModel):
    """What a client asks for. Temperature 0 is greedy; without a seed, one is drawn."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: str = Field(min_length=1, max_length=100_000)
    max_tokens: int = Field(64, ge=1, le=4096)
    temperature: float = Field(1.0, ge=0, le=100)
    draft_length: int = Field(4, ge=0, le=16)
    seed: int = Field(default_factory=lambda: secrets.randbelow(2**32), ge=0, lt=2**63)
    stream: bool = False

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float) -> float:
        if 0 < value < LEAST_TEMPERATURE:
            raise ValueError(f"expected 0 or a number from {LEAST_TEMPERATURE}")  # noqa: TRY003
        return value


class Answer(StreamingResponse):
    """Lines as they come, or all in one. The base class ends it where the client goes."""

    def __init__(self, engine: Engine, job: Job, stream: bool) -> None:
        """Begin."""
        lines = (json.dumps(line) + "\n" async for line in job.lines())
        super().__init__(lines, media_type="application/x-ndjson")
        self._engine, self._job, self._stream = engine, job, stream

    async def stream_response(self, send: Send) -> None:
        """Send; if in one, with a status that says what came of it."""
        if self._stream:
            return await super().stream_response(send)
        *lines, last = [line async for line in self._job.lines()]
        ids = [token for line in lines for token in line["token_ids"]]
        text = {"text": "".join(line["text"] for line in lines), "token_ids": ids}
        whole = JSONResponse(last if "error" in last else text | last, last.get("status", 200))
        return await whole(self._scope, self._receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, and release the job whatever happens."""
        self._scope, self._receive = scope, receive
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._engine.release(self._job)


def app_of(engine: Engine) -> FastAPI:
    """Make the application around an engine."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(title="draftverify", lifespan=lifespan, max_body_size=1 << 20)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # FastAPI's own answer repeats the input, of any length, and JSON knows no NaN.
        engine.metrics.requests.labels("refused").inc()
        texts, status = [], 422
        for part in error.errors():
            name = ".".join(str(name) for name in part["loc"][1:]) or "body"
            text = f"{name}: {part['msg']}, got {part['input']!r:.60}"
            if part["type"] == "json_invalid":
                text, status = f"body: no JSON: {part['ctx']['error']} at character {name}", 400
            elif isinstance(part["input"], bytes):
                text = "body: expected JSON, of content type application/json"
            elif part["type"] == "missing":
                text = f"{name}: {part['msg']}"
            texts.append(text)
        return JSONResponse({"error": "; ".join(texts)[:300]}, status)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        if request.url.path == "/generate":
            engine.metrics.requests.labels("refused").inc()
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    tokenizing = asyncio.Lock()

    @app.post("/generate")
    async def generate(body: Body) -> Response:
        async with tokenizing:
            encoded = await asyncio.to_thread(engine.model.tokenizer, body.prompt)
        prompt, room = list(encoded["input_ids"]), engine.context - body.draft_length
        if not prompt:
            raise HTTPException(422, "prompt: expected a token at least, got none")
        if len(prompt) + body.max_tokens > room:
            message = (
                f"expected at most {room} tokens in all, got {len(prompt)} and {body.max_tokens}"
            )
            raise HTTPException(422, f"prompt and max_tokens: {message}; shorten one of them")
        temperature = 0.0 if engine.method == "greedy" else body.temperature
        settings = Settings(body.max_tokens, temperature, body.draft_length, body.seed)
        job = Job(prompt, settings, engine.model)
        try:
            engine.submit(job)
        except UnavailableError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
        return Answer(engine, job, body.stream)

    @app.get("/metrics")
    async def metrics() -> Response:
        text = prometheus.generate_latest(engine.metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"ok": not engine.stopped}, 503 if engine.stopped else 200)

    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Serve text whose drafts are verified together.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--method", choices=METHODS, default="standard")
    parser.add_argument("--slots", type=int, default=4, help="requests served at once")
    parser.add_argument("--waiting", type=int, default=16, help="requests that may wait for it")
    parser.add_argument("--context", type=int, default=2048, help="tokens of prompt and text")
    parser.add_argument("--window", type=int, default=32, help="tokens that the draft sees")
    parser.add_argument(
        "--grace", type=int, default=10, help="seconds to finish texts in at the end"
    )
    options = vars(parser.parse_args(argv))
    for name, least in {"slots": 1, "waiting": 0, "context": 2, "window": 1, "grace": 0}.items():
        if options[name] < least:
            parser.error(f"--{name}: expected a number >= {least}, got {options[name]}")
    network = {name: options.pop(name) for name in ("host", "port")}
    grace, window = options.pop("grace"), options.pop("window")
    app = app_of(Engine(installed_model(window), **options))
    uvicorn.run(app, **network, timeout_graceful_shutdown=grace)


if __name__ == "__main__":
    main()
