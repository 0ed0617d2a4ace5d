"""The engine of `serve.py`: one thread drafts for several requests, and verifies all in one call.

The models are called request by request. So no bit of a request's logits depends on who else is
served, none of its verdict does either, and the same seed gives the same text in any company.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import numpy as np
import prometheus_client as prometheus
import torch
from speculation import Proposal, Randomness, Text, propose

from draftverify import verify_chain_logits

STOPPED = "the engine has stopped"
LOG = logging.getLogger("uvicorn.error")


class UnavailableError(Exception):
    """No request can be taken now."""


class Settings(NamedTuple):
    """What a client may choose; temperature 0 is greedy."""

    max_tokens: int
    temperature: float
    draft_length: int
    seed: int


class Metrics:
    """What Prometheus is told."""

    def __init__(self, engine: Engine) -> None:
        """Begin at zero."""
        self.registry = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"namespace": "draftverify", "registry": self.registry}
        counter, histogram = prometheus.Counter, prometheus.Histogram
        self.drafted = counter("drafted_tokens", "Tokens drafted", **own)
        self.accepted = counter("accepted_tokens", "Drafted tokens kept", **own)
        self.requests = counter("requests", "Requests that have ended", ["outcome"], **own)
        buckets: list[float] = [*range(1, 10), 17]
        self.tokens = histogram(
            "tokens_per_step", "Tokens a request gets by a step", buckets=buckets, **own
        )
        buckets = [digit * 10.0**power for power in range(-4, 0) for digit in (1, 2, 5)]
        self.seconds = histogram(
            "verification_seconds", "Time of a call for all requests", buckets=buckets, **own
        )
        self.together = histogram(
            "requests_per_verification", "Requests of a call", buckets=[1, 2, 4, 8, 16, 32], **own
        )
        self.number_drafted = self.number_accepted = 0
        for name, text, function in (
            ("acceptance_rate", "Accepted tokens by drafted ones", self._rate),
            ("running_requests", "Requests in a slot", lambda: engine.number("running")),
            ("waiting_requests", "Requests that wait for one", lambda: engine.number("waiting")),
        ):
            prometheus.Gauge(name, text, **own).set_function(function)

    def _rate(self) -> float:
        return self.number_accepted / max(self.number_drafted, 1)

    def step(self, drafted: int, accepted: int, given: int) -> None:
        """Count a step of one request. The last one may give less than was accepted."""
        self.number_drafted += drafted
        self.number_accepted += accepted
        self.drafted.inc(drafted)
        self.accepted.inc(accepted)
        self.tokens.observe(given)


class Job:
    """A request on its way: the engine's thread writes lines, the response reads them."""

    def __init__(self, prompt: list[int], settings: Settings, model: Any) -> None:
        """Begin, within the event loop."""
        self.settings, self.model = settings, model.another()
        self.text = Text(prompt, settings.max_tokens, model.tokenizer.eos_token_id)
        self.randomness = Randomness(settings.seed)
        self.state = "waiting"  # then "running", then how it ended
        self.released = False
        self.counts = {"steps": 0, "drafted": 0, "accepted": 0}
        self._shown, self._loop = "", asyncio.get_running_loop()
        self._lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def propose(self) -> Proposal:
        """Call both models for a step."""
        return propose(
            self.text.context,
            self.model.draft_logits,
            self.model.target_logits,
            self.randomness,
            draft_length=self.settings.draft_length,
            temperature=self.settings.temperature,
        )

    def add(self, drafted: int, emitted: list[int]) -> int:
        """Take the verdict of a step, tell what can be read of it, and answer how many tokens."""
        for name, number in zip(self.counts, (1, drafted, len(emitted) - 1), strict=True):
            self.counts[name] += number
        emitted = self.text.add(emitted)
        tokens = self.text.emitted
        text = self.model.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        if not self.text.complete:
            text = text.rstrip("\ufffd")  # a character with bytes still to come
        self.tell({"text": text[len(self._shown) :], "token_ids": emitted})
        self._shown = text
        if self.text.complete:
            reason = "stop" if self.text.ended else "length"
            self.end(reason, {"finish_reason": reason, "seed": self.settings.seed, **self.counts})
        return len(emitted)

    @property
    def open(self) -> bool:
        """Whether lines are to come."""
        return self.state in {"waiting", "running"}

    def end(self, state: str, line: dict[str, Any]) -> None:
        """Tell the last line, and let go of the model's cache."""
        self.state, self.model = state, None
        self.tell(line)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        LOG.error("a request failed", exc_info=error)
        self.end("failed", {"error": f"{type(error).__name__}: {error}", "status": 500})

    def tell(self, line: dict[str, Any]) -> None:
        """Pass a line to the event loop."""
        with contextlib.suppress(RuntimeError):  # it is closed, and the client gone
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Give the lines as they come."""
        line: dict[str, Any] = {"text": ""}
        while "text" in line:
            line = await self._lines.get()
            yield line


class Engine:
    """The thread that drafts and verifies, `slots` requests at once, while `waiting` may wait."""

    def __init__(
        self,
        model: Any,
        method: str = "standard",
        slots: int = 4,
        waiting: int = 16,
        context: int = 2048,
    ) -> None:
        """Take a model like `speculation.SmolLM2`."""
        self.model, self.method, self.slots = model, method, slots
        self.capacity, self.context = slots + waiting, min(context, model.longest)
        self.jobs: set[Job] = set()  # all that are not released; the event loop's
        self.running: list[Job] = []  # the thread's
        self.stopped = False
        self.metrics = Metrics(self)
        self._arrivals: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.start = self._thread.start

    def submit(self, job: Job) -> None:
        """Let a job wait for a slot."""
        if len(self.jobs) >= self.capacity:
            message = f"all {self.capacity} places are taken; try again"
            raise UnavailableError(message)
        self._arrivals.put(job)
        if self.stopped:  # asked last, as the thread stops first and then empties what has arrived
            raise UnavailableError(STOPPED)
        self.jobs.add(job)

    def release(self, job: Job) -> None:
        """Forget a job whose client reads no more; its slot is free behind the step."""
        job.released = True
        self.jobs.discard(job)
        self.metrics.requests.labels("cancelled" if job.open else job.state).inc()

    def number(self, state: str) -> int:
        """Count the jobs of a state."""
        return sum(job.state == state for job in self.jobs)

    def close(self) -> None:
        """Stop, and wait for the step to end."""
        self.stopped = True
        self._arrivals.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._admit():
                self._step()
        except BaseException:  # a panic of compiled code is not an Exception
            LOG.exception("the engine failed")
        self.stopped = True
        while not self._arrivals.empty():
            self.running += [job for job in [self._arrivals.get()] if job]
        for job in self.running:
            if job.open:
                job.end("failed", {"error": STOPPED, "status": 503})

    def _admit(self) -> bool:
        """Fill the slots, and wait if all are free."""
        self.running = [job for job in self.running if job.open and not job.released]
        while len(self.running) < self.slots and not (self.running and self._arrivals.empty()):
            job = self._arrivals.get()
            if job is None:
                break
            if not job.released:  # else it would hold its slot for a step
                job.state = "running"
                self.running.append(job)
        return not self.stopped

    def _step(self) -> None:
        """Draft for each request, verify all together, and hand on what came of it."""
        proposals: dict[Job, Proposal] = {}
        for job in self.running:
            try:
                if not job.released:
                    proposals[job] = job.propose()
            except Exception as error:
                job.fail(error)
        for job, emitted in self._verify(proposals).items():
            drafted = len(proposals[job].drafted)
            try:
                given = job.add(drafted, emitted)
                self.metrics.step(drafted, len(emitted) - 1, given)
            except Exception as error:
                job.fail(error)

    def _verify(self, proposals: dict[Job, Proposal]) -> dict[Job, list[int]]:
        """Say what each request emits, by one call without padding, however much each drafted.

        An error is one request's, and says nothing about the others: each is verified again
        alone, which has the same result as in company, and the one to blame fails.
        """
        parts = list(proposals.values())
        if not parts:
            return {}
        draft = torch.cat([part.draft for part in parts])
        target = torch.cat([part.target for part in parts])
        begin = time.perf_counter()
        try:
            verdict = verify_chain_logits(
                draft,
                target,
                np.array([token for part in parts for token in part.drafted], dtype=np.int64),
                # Greedy requests have no uniforms, and read none.
                [number for part in parts for number in part.uniforms or [0.0] * len(part.target)],
                temperature=[job.settings.temperature for job in proposals],
                indptr=np.cumsum([0, *(len(part.drafted) for part in parts)]),
                method=self.method,  # type: ignore[arg-type]
            )
        except Exception as error:
            if len(parts) > 1:
                alone = [self._verify({job: part}) for job, part in proposals.items()]
                return {job: emitted for one in alone for job, emitted in one.items()}
            next(iter(proposals)).fail(error)
            return {}
        self.metrics.seconds.observe(time.perf_counter() - begin)
        self.metrics.together.observe(len(parts))
        rows = zip(verdict.num_accepted.tolist(), verdict.token_ids.tolist(), strict=True)
        emitted = [ids[: accepted + 1] for accepted, ids in rows]
        return dict(zip(proposals, emitted, strict=True))
