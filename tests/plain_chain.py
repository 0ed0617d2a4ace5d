"""`verify_chain` in plain Python: a twin to test against, one request and one token at a time.

Padded layout. It follows the arithmetic contract to the bit: sums in the fixed order, differences
of narrow rows in float32 for the standard rule, everything in float64 for the block rule, strict
comparisons, and the fallbacks for what only rounding can bring about.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from test_bits import block_sums, sub_block_sum, tree_sum

SUB_BLOCK = 256
Floats = NDArray[np.float64]


class PlainVerdict(NamedTuple):
    num_accepted: NDArray[np.int32]
    token_ids: NDArray[np.int32]


def verify_chain(
    draft_probs: Any,
    target_probs: Any,
    draft_token_ids: Any,
    uniforms: Any,
    *,
    lengths: Any = None,
    method: str = "standard",
    bonus_token_ids: Any = None,
) -> PlainVerdict:
    """Verify drafted tokens (B, K) with draft (B, K, V), target (B, K+1, V), uniforms (B, K+1)."""
    requests, longest = draft_token_ids.shape
    num_accepted = np.zeros(requests, np.int32)
    token_ids = np.full((requests, longest + 1), -1, np.int32)
    for b in range(requests):
        drafted = [int(token) for token in draft_token_ids[b]]
        if lengths is not None:
            drafted = drafted[: lengths[b]]
        while drafted and drafted[-1] == -1:
            drafted.pop()
        chain = Chain(
            drafted,
            None if draft_probs is None else list(draft_probs[b, : len(drafted)]),
            list(target_probs[b, : len(drafted) + 1]),
            None if bonus_token_ids is None else bonus_token_ids[b],
        )
        if method == "greedy":
            kept, final = greedy(chain)
        else:
            rule = {"standard": standard, "block": block}[method]
            kept, final = rule(chain, [float(u) for u in uniforms[b, : len(drafted) + 1]])
        num_accepted[b] = kept
        token_ids[b, : kept + 1] = [*drafted[:kept], final]
    return PlainVerdict(num_accepted, token_ids)


class Chain(NamedTuple):
    drafted: list[int]
    draft: list[NDArray[Any]] | None
    target: list[NDArray[Any]]
    bonus: int | None

    def pair(self, i: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Give both rows of a position, widened exactly."""
        wide = np.float64 if self.target[i].dtype == np.float64 else np.float32
        target = self.target[i].astype(wide)
        if self.draft is not None:
            return self.draft[i].astype(wide), target
        certain = np.zeros_like(target)
        certain[self.drafted[i]] = 1
        return certain, target

    def drawn_from_target(self, i: int, uniform: float) -> int:
        if i == len(self.drafted) and self.bonus is not None:
            return self.bonus
        return draw(self.target[i].astype(np.float64), uniform)


def standard(chain: Chain, uniforms: list[float]) -> tuple[int, int]:
    last = uniforms[-1]
    for i, token in enumerate(chain.drafted):
        draft, target = chain.pair(i)
        if not uniforms[i] * float(draft[token]) < float(target[token]):
            if chain.draft is None:  # the target without the token
                weights = target.copy()
                weights[token] = 0
            else:
                weights = np.maximum(target - draft, 0)
            return i, drawn_or_target(chain, i, weights.astype(np.float64), last)
    return len(chain.drafted), chain.drawn_from_target(len(chain.drafted), last)


def block(chain: Chain, uniforms: list[float]) -> tuple[int, int]:
    length, last = len(chain.drafted), uniforms[-1]
    joint = [1.0]  # of the first i tokens, capped at each
    for i, token in enumerate(chain.drafted):
        draft, target = chain.pair(i)
        ratio = float(target[token]) / float(draft[token])
        joint.append(min(1.0, joint[i] * ratio) if joint[i] > 0 else 0.0)
    for kept in range(length, 0, -1):
        passes = joint[kept]
        if kept < length:
            excess = mass(scaled_excess(chain, kept, joint[kept]))
            whole = excess + (1.0 - joint[kept])
            passes = excess / whole if whole else 1.0
        if uniforms[kept - 1] < passes:
            break
    else:
        kept = 0
    if kept == length:
        return kept, chain.drawn_from_target(kept, last)
    return kept, drawn_or_target(chain, kept, scaled_excess(chain, kept, joint[kept]), last)


def greedy(chain: Chain) -> tuple[int, int]:
    for i, token in enumerate(chain.drafted):
        best = int(np.argmax(chain.target[i]))  # the lowest id of several
        if token != best:
            return i, best
    length = len(chain.drafted)
    return length, int(np.argmax(chain.target[length])) if chain.bonus is None else chain.bonus


def scaled_excess(chain: Chain, i: int, scale: float) -> Floats:
    draft, target = (row.astype(np.float64) for row in chain.pair(i))
    return np.maximum(scale * target - draft, 0.0)


def drawn_or_target(chain: Chain, i: int, weights: Floats, uniform: float) -> int:
    return draw(weights, uniform) if weights.any() else chain.drawn_from_target(i, uniform)


def draw(weights: Floats, uniform: float) -> int:
    """Draw by inverse CDF: over the sums of the sub-blocks, then entry by entry within one."""
    threshold, before = uniform * mass(weights), 0.0
    for start in range(0, len(weights), SUB_BLOCK):
        entries = weights[start : start + SUB_BLOCK]
        after = before + sub_block_sum(entries)
        if after > threshold:
            return start + within(entries, before, threshold)
        before = after
    # Rounding can leave none: then the last entry of any weight.
    return int(np.flatnonzero(weights)[-1])


def within(entries: Floats, running: float, threshold: float) -> int:
    last = -1
    for i, weight in enumerate(entries.tolist()):
        if weight > 0:
            running, last = running + weight, i
            if running > threshold:
                break
    return last


def mass(weights: Floats) -> float:
    return tree_sum(block_sums(weights))
