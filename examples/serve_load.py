"""Put a bounded load on `serve.py`, some clients leaving early and some asking nonsense.

    pip install 'httpx>=0.28'
    python examples/serve_load.py --clients 4 --requests 24 --tokens 32

Each of the clients sends one request after another, so no more than that many are open. Answers
that are not as they should be are counted as errors, and make the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import httpx
import numpy as np

PROMPTS = ("The Moon is", "Water boils when", "Once upon a time", "To make bread,")
NONSENSE: tuple[dict[str, Any], ...] = ({"temperature": -1}, {"prompt": ""}, {"colour": "red"})
SHOWN = ("_total", "acceptance_rate", "_sum", "_count")


class Results:
    """What the clients have seen."""

    def __init__(self) -> None:
        """Begin."""
        self.first: list[float] = []  # seconds to the first tokens
        self.between: list[float] = []  # seconds a token behind them, a mean for each text
        self.tokens = self.complete = self.cancelled = self.refused = 0
        self.errors: list[str] = []


def body_of(number: int, tokens: int) -> dict[str, Any]:
    """Choose what a request asks for: of all settings some, the same in each run."""
    return {
        "prompt": PROMPTS[number % len(PROMPTS)],
        "max_tokens": tokens,
        "temperature": (1.0, 0.7, 0.0)[number % 3],
        "draft_length": (4, 2, 6, 3)[number % 4],
        "seed": number,
        "stream": True,
    }


async def refuse(client: httpx.AsyncClient, body: dict[str, Any], results: Results) -> None:
    """Send a request that has to be refused."""
    response = await client.post("/generate", json=body)
    if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        results.refused += 1
    else:
        results.errors.append(f"{response.status_code} for {body}")


async def read(
    client: httpx.AsyncClient, body: dict[str, Any], results: Results, *, leave: bool
) -> None:
    """Read a stream, or leave behind its first line."""
    begin = time.perf_counter()
    first = tokens = after = 0.0
    async with client.stream("POST", "/generate", json=body) as response:
        if response.is_error:
            await response.aread()
            results.errors.append(f"{response.status_code}: {response.text}")
            return
        async for text in response.aiter_lines():
            line = json.loads(text)
            if "text" not in line:
                break
            tokens += len(line["token_ids"])
            if not first:
                first, after = time.perf_counter() - begin, tokens
            if leave:
                results.cancelled += 1
                return
    if "error" in line:
        results.errors.append(line["error"])
        return
    results.first.append(first)
    if tokens > after:
        results.between.append((time.perf_counter() - begin - first) / (tokens - after))
    results.tokens += int(tokens)
    results.complete += 1


async def load(options: argparse.Namespace) -> tuple[Results, float, str]:
    """Send all requests, and ask the server for its metrics."""
    results, numbers = Results(), iter(range(options.requests))
    async with httpx.AsyncClient(base_url=options.url, timeout=options.timeout) as client:

        async def work() -> None:
            for number in numbers:  # one iterator for all, so each takes the next
                body = body_of(number, options.tokens)
                try:
                    if number % options.nonsense == options.nonsense - 1:
                        body |= NONSENSE[number % len(NONSENSE)]
                        await refuse(client, body, results)
                    else:
                        leave = number % options.leave == options.leave - 1
                        await read(client, body, results, leave=leave)
                except (httpx.HTTPError, ValueError) as error:
                    results.errors.append(repr(error))

        begin = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(options.clients)))
        seconds = time.perf_counter() - begin
        metrics = ""
        with contextlib.suppress(httpx.HTTPError):  # the errors are counted above
            metrics = (await client.get("/metrics")).text
    return results, seconds, metrics


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Put a bounded load on the service.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=4, help="requests open at once")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32, help="of each text")
    parser.add_argument("--leave", type=int, default=6, help="every how many leave early")
    parser.add_argument("--nonsense", type=int, default=8, help="every how many are refused")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds without a byte")
    options = parser.parse_args(argv)
    results, seconds, metrics = asyncio.run(load(options))
    write = sys.stdout.write
    write(
        f"{options.requests} requests of {options.clients} clients in {seconds:.1f} s: "
        f"{results.complete} complete, {results.cancelled} left, {results.refused} refused, "
        f"{len(results.errors)} errors\n{results.tokens / seconds:.2f} tokens/s of complete texts\n"
    )
    for name, times in (("first tokens", results.first), ("a token", results.between)):
        if times:
            median, high = np.percentile(times, [50, 95])
            write(f"{name}: p50 {median:.3f} s, p95 {high:.3f} s\n")
    for line in metrics.splitlines():
        if line.startswith("draftverify_") and line.split("{")[0].split()[0].endswith(SHOWN):
            write(f"{line}\n")
    for error in results.errors:
        sys.stderr.write(f"error: {error}\n")
    return 1 if results.errors else 0


if __name__ == "__main__":
    sys.exit(main())
