"""Exact laws of whole generations: each draw goes through all that it can decide, with weights."""

from __future__ import annotations

from typing import Any

import numpy as np


class Everything:
    """Go through all that random draws can decide, and weigh it.

    A run follows the decisions that it is told, takes the first at each draw behind them, and notes
    how many there were: the next run follows the next branch.
    """

    def __init__(self) -> None:
        self.law: dict[tuple[int, ...], float] = {}
        self.verified = 0
        self._told: list[int] = []
        self._at = 0
        self._counts: list[int] = []
        self._weight = 1.0

    def choose(self, weights: Any) -> int:
        """Take one branch out of those with a positive weight; answer its number."""
        open_ = [i for i, weight in enumerate(weights) if weight > 0]
        at, self._at = self._at, self._at + 1
        if at == len(self._told):
            self._told.append(0)
        self._counts.append(len(open_))
        chosen = open_[self._told[at]]
        self._weight *= float(weights[chosen])
        return chosen

    def run(self, once: Any) -> None:
        while True:
            self._at, self._counts, self._weight = 0, [], 1.0
            sequence = tuple(once())
            self.law[sequence] = self.law.get(sequence, 0.0) + self._weight
            while self._told and self._told[-1] + 1 == self._counts[len(self._told) - 1]:
                self._told.pop()
            if not self._told:
                return
            self._told[-1] += 1

    def uniforms(self, candidate: Any, new: Any, ids: Any, method: str) -> list[float]:
        """Choose the cells that the uniforms of one verification are in.

        The thresholds are computed here in float64, as the paper has them: a token is kept below
        the ratio, block by the joint ratios of Sun et al. for one and two tokens.
        """
        self.verified += 1
        draft, target = softmax(candidate[0]), softmax(new[0])
        length = len(ids)
        at = np.arange(length)
        ratios = target[at, ids] / draft[at, ids]
        scale = np.ones(length + 1)
        thresholds = np.minimum(ratios, 1.0)
        if method == "block":
            for i in range(length):
                scale[i + 1] = min(1.0, scale[i] * ratios[i])
            thresholds = scale[1:].copy()
            for i in range(1, length):
                mass = np.maximum(scale[i] * target[i] - draft[i], 0).sum()
                rest = mass + 1 - scale[i]
                thresholds[i - 1] = mass / rest if rest > 0 else 1.0
        passed, numbers = [], []
        for threshold in thresholds:
            keeps = self.choose([threshold, 1.0 - threshold]) == 0
            passed.append(keeps)
            numbers.append(threshold / 2 if keeps else (1.0 + threshold) / 2)
        if method == "standard":
            kept = passed.index(False) if False in passed else length
        else:
            kept = max((i + 1 for i in range(length) if passed[i]), default=0)
        weights = target[kept]
        if kept < length:
            weights = np.maximum(scale[kept] * target[kept] - draft[kept], 0)
        # Entries of rounding errors are no branches.
        weights = np.where(weights > 1e-7, weights, 0.0) / weights.sum()
        final = self.choose(weights)
        numbers.append(float(weights[:final].sum() + weights[final] / 2))
        return numbers


def softmax(rows: Any) -> Any:
    powers = np.exp(rows.double().numpy() - rows.double().numpy().max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
