"""What whole chains cost: `python benches/chains.py`, with Torch and Transformers installed.

Three tables. A chain from logits, beside Transformers' own function on the same tensors, rows that
are in no cache. Many requests from probabilities, beside reading once what has to be read. A chain
that is accepted, by size of the vocabulary.
"""

from __future__ import annotations

import inspect
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.generation import utils

import draftverify

ROUNDS = 10
DRAFTED = 4
# So many that no cache holds their rows of 128,256 entries, and that it matters little which they
# are: a chain takes the longer the more of it is kept, and some draws need a second look at rows.
CHAINS = 36
THREADS = range(1, (os.cpu_count() or 1) + 1)


class Chain(NamedTuple):
    """A request's tensors, with a batch of one in front."""

    draft: Any
    target: Any
    drafted: Any
    uniforms: Any


def chains(number: int, vocabulary: int) -> list[Chain]:
    """Draw logits as a model and a good draft have them, and tokens from the draft."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(number):
        target = rng.normal(0, 3, (1, DRAFTED + 1, vocabulary))
        draft = (target + rng.normal(0, 0.75, target.shape))[:, :-1]
        # The largest of logits with this noise is a draw from their law.
        drafted = np.argmax(draft + rng.gumbel(size=draft.shape), -1)
        logits = [torch.tensor(each.astype(np.float32)) for each in (draft, target)]
        uniforms = torch.tensor(rng.random((1, DRAFTED + 1)))
        found.append(Chain(*logits, torch.tensor(drafted), uniforms))
    return found


def by_draftverify(chain: Chain) -> object:
    """Verify as this package does."""
    return draftverify.verify_chain_logits(*chain)


def by_transformers(chain: Chain) -> object:
    """Verify as Transformers does; it draws numbers itself."""
    function: Any = utils._speculative_sampling
    more = (False,) if "is_done_candidate" in inspect.signature(function).parameters else ()
    return function(chain.drafted, chain.draft, DRAFTED, chain.target, *more)


def microseconds(call: Callable[[Any], object], inputs: Sequence[Any]) -> list[float]:
    """Time a call on each input."""
    # The threads of OpenMP, which Torch uses, spin for some milliseconds behind a call, on the
    # processors that the next way would use.
    time.sleep(0.01)
    found = []
    for each in inputs:
        begin = time.perf_counter()
        call(each)
        found.append((time.perf_counter() - begin) * 1e6)
    return found


def from_logits() -> None:
    """Print a chain from logits beside Transformers."""
    inputs = chains(CHAINS, 128_256)
    rates = [
        draftverify.acceptance_rate(*(torch.softmax(each, -1)[0, :DRAFTED] for each in chain[:2]))
        for chain in inputs
    ]
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for threads in THREADS:
            torch.set_num_threads(threads)
            draftverify.set_num_threads(threads)
            for call in (by_transformers, by_draftverify):
                found = times.setdefault((call.__name__, threads), [])
                found += microseconds(call, inputs)
    medians = {way: statistics.median(found) for way, found in times.items()}
    means = {way: statistics.mean(found) for way, found in times.items()}
    theirs = [medians["by_transformers", threads] for threads in THREADS]
    rate = float(torch.stack(rates).mean())
    print(f"a chain of {DRAFTED} from logits, 128,256 float32, acceptance rate {rate:.2f}:")
    print("median (mean) in microseconds; how many times as long Transformers takes at its best")
    for threads, other in zip(THREADS, theirs, strict=True):
        own = medians["by_draftverify", threads]
        mean, other_mean = means["by_draftverify", threads], means["by_transformers", threads]
        print(
            f"  {threads} threads: Transformers {other:7.0f} ({other_mean:.0f}), "
            f"draftverify {own:6.0f} ({mean:.0f}), "
            f"{min(theirs) / own:5.1f} times ({other / own:.1f} at as many threads)"
        )


def from_probabilities(number: int = 32, vocabulary: int = 32_000) -> None:
    """Print many requests from probabilities beside reading what they must read."""
    requests = Chain(*(torch.cat(each) for each in zip(*chains(number, vocabulary), strict=True)))
    draft, target = (torch.softmax(each, -1).numpy() for each in requests[:2])
    drafted, uniforms = requests.drafted.numpy(), requests.uniforms.numpy()
    kept = draftverify.verify_chain(draft, target, drafted, uniforms).num_accepted
    needed = [target[request, at] for request, at in enumerate(kept)]
    needed += [draft[request, at] for request, at in enumerate(kept) if at < DRAFTED]

    def verify(_: object) -> object:
        return draftverify.verify_chain(draft, target, drafted, uniforms)

    def read(_: object) -> object:
        return [row.max() for row in needed]

    times: dict[str, list[float]] = {}
    draftverify.set_num_threads(1)
    for _ in range(10 * ROUNDS):
        for call in (read, verify):
            times.setdefault(call.__name__, []).extend(microseconds(call, range(4)))
    reading, verifying = (statistics.median(found) for found in times.values())
    print(f"{number} requests from probabilities, {vocabulary:,} float32, one thread, microseconds")
    print(f"  reading {reading:.0f}, draftverify {verifying:.0f}, {verifying / reading:.2f} times")


def accepted() -> None:
    """Print a chain that is accepted, by size of the vocabulary."""
    print("a chain from probabilities that is accepted, its bonus token from elsewhere")
    for vocabulary in (1000, 10_000, 100_000, 1_000_000):
        rows = np.full((1, 1, vocabulary), 1 / vocabulary, np.float32)
        ids, uniforms = np.array([[1]]), np.array([[0.5, 0.5]])

        def verify(_: object, rows: Any = rows, ids: Any = ids, uniforms: Any = uniforms) -> object:
            return draftverify.verify_chain(rows, rows, ids, uniforms, bonus_token_ids=ids[0])

        print(f"  {vocabulary:>9,} {statistics.median(microseconds(verify, range(2000))):6.1f}")


if __name__ == "__main__":
    from_logits()
    from_probabilities()
    accepted()
