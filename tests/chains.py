"""Chains of drafted tokens for the tests: rows, tokens and uniforms, padded with garbage."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinds import DTYPES

JUST_BELOW_ONE = np.nextafter(1.0, 0.0)


class Batch(NamedTuple):
    """Requests in the padded layout. What is behind a request's tokens is garbage."""

    draft: Any
    target: Any
    ids: Any
    uniforms: Any
    lengths: Any

    def alone(self, request: int) -> Batch:
        """One request in arrays just wide enough."""
        one, length = slice(request, request + 1), int(self.lengths[request])
        return Batch(
            self.draft[one, :length],
            self.target[one, : length + 1],
            self.ids[one, :length],
            self.uniforms[one, : length + 1],
            self.lengths[one],
        )

    def flat(self) -> tuple[Batch, NDArray[np.int64]]:
        """All requests one after the other, and the running totals of their tokens."""
        drafted = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        with_final = np.arange(self.ids.shape[1] + 1) <= self.lengths[:, None]
        flat = Batch(
            self.draft[drafted],
            self.target[with_final],
            self.ids[drafted],
            self.uniforms[with_final],
            self.lengths,
        )
        return flat, np.concatenate([[0], np.cumsum(self.lengths)])


def batch(dtype: str, requests: int, longest: int, vocabulary: int, seed: int = 0) -> Batch:
    """Chains whose tokens were drawn from the draft's rows, which resemble the target's.

    Some uniforms are 0, or the largest number below 1.
    """
    rng = np.random.default_rng(seed)
    shape = (requests, longest + 1, vocabulary)
    logits = rng.normal(0.0, 2.0, shape)
    target = _rows(logits, rng)
    draft = _rows(logits + rng.normal(0.0, 0.7, shape), rng)[:, :longest]
    target, draft = target.astype(DTYPES[dtype]), draft.astype(DTYPES[dtype])
    running = np.cumsum(draft.astype(np.float64), axis=-1)
    thresholds = rng.random((requests, longest, 1)) * running[..., -1:]
    ids = (running <= thresholds).sum(axis=-1)
    uniforms = rng.random((requests, longest + 1))
    uniforms[rng.random(uniforms.shape) < 0.1] = 0.0
    uniforms[rng.random(uniforms.shape) < 0.1] = JUST_BELOW_ONE
    lengths = rng.integers(0, longest + 1, requests)
    behind = np.arange(longest) >= lengths[:, None]
    behind_final = np.arange(longest + 1) > lengths[:, None]
    draft[behind], target[behind_final] = np.nan, -np.inf
    ids[behind] = rng.integers(-9, 9 * vocabulary, behind.sum())
    uniforms[behind_final] = 7.0
    return Batch(draft, target, ids, uniforms, lengths)


def _rows(logits: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    weights = np.exp(logits)
    weights[rng.random(weights.shape) < 0.1] = 0.0
    weights[..., rng.integers(weights.shape[-1])] += 0.1  # no row of zeros alone
    total: NDArray[np.float64] = weights.sum(axis=-1, keepdims=True)
    return weights / total
