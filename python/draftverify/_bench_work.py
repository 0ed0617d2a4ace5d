"""What the bench has done: the rows, the threads, and whether two answers agree."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify import get_num_threads, set_num_threads


class Work(NamedTuple):
    """What is to be done: one row, or with `rows` many of them into the same output each time."""

    vocabulary_size: int
    dtype: str = "float32"
    rows: int | None = None

    def __str__(self) -> str:
        count = "one row" if self.rows is None else f"{self.rows} rows"
        same = "" if self.rows is None else ", the same output each time"
        return f"{count} of {self.vocabulary_size:,} {self.dtype} entries{same}"


class Problem(NamedTuple):
    """Draft rows, target rows and the likeliest token of each draft row, as NumPy arrays."""

    draft: NDArray[Any]
    target: NDArray[Any]
    token_ids: NDArray[np.int64]


def pose(work: Work) -> Problem:
    """Make rows as a target and a good draft give them, the same in every run.

    The softmax of logits from N(0, 3), the draft's logits off by N(0, 0.7).
    """
    dtype = np.dtype(load("ml_dtypes").bfloat16 if work.dtype == "bfloat16" else work.dtype)
    rng = np.random.default_rng(0)
    shape = (work.rows or 1, work.vocabulary_size)
    target_logits = 3 * rng.standard_normal(shape)
    draft_logits = target_logits + 0.7 * rng.standard_normal(shape)
    draft, target = (_softmax(logits).astype(dtype) for logits in (draft_logits, target_logits))
    token_ids = draft.argmax(axis=1).astype(np.int64)
    return Problem(draft, target, token_ids)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def load(module: str) -> Any:
    """Import what the bench can do without."""
    if module == "jax":
        jax = importlib.import_module(module)
        jax.config.update("jax_enable_x64", True)  # or float64 rows would become float32
        return jax
    return importlib.import_module(module)


@contextlib.contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let this library and Torch use so many threads, and Torch record no gradients."""
    before = get_num_threads()
    set_num_threads(threads)
    torch = sys.modules.get("torch")
    try:
        if torch is None:
            yield
            return
        torch_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.no_grad():
                yield
        finally:
            torch.set_num_threads(torch_before)
    finally:
        set_num_threads(before)


class Difference(NamedTuple):
    """How far an answer is from this library's."""

    accept_prob: float
    residual: float

    def is_small(self, dtype: str) -> bool:
        """Whether rounding explains it, also that of sums in the dtype itself."""
        limit = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}[dtype]
        return self.accept_prob <= limit and self.residual <= limit


def difference(answer: Any, expected: Any) -> Difference:
    """Compare two answers: the largest difference of accept probabilities and of whole residuals.

    Residuals differ by the sum of the absolute differences of their entries.
    """
    (accept_prob, residual), (accept_expected, residual_expected) = map(_plain, (answer, expected))
    return Difference(
        float(np.abs(accept_prob - accept_expected).max()),
        float(np.abs(residual - residual_expected).sum(axis=-1).max()),
    )


def _plain(answer: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    accept_prob, residual = tuple(answer.values() if isinstance(answer, dict) else answer)[:2]
    if hasattr(residual, "double"):
        residual = residual.double()
    rows = np.atleast_2d(np.asarray(residual).astype(np.float64))
    return np.atleast_1d(np.asarray(accept_prob, np.float64)), rows
