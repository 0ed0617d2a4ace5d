"""Ways to verify a drafted token: this library's, and what people write or install instead.

Each prepares calls that are ready to be timed: inputs are arrays of its own, what it compiles is
compiled by the first call, and nothing is converted in between. `_bench` and the benches of pytest
time the same calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftverify import accept_residual, speculative_decode_step
from draftverify._bench_work import Problem, Work, load

Call = Callable[[], Any]


class Contender:
    """The base is this library on NumPy arrays; others say what differs."""

    name = "draftverify"
    about = "its two functions, every entry checked"
    module = "numpy"
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")

    def prepare(self, work: Work, problem: Problem) -> Call | None:
        """Make a call that is ready to be timed; None for a dtype that is not known here."""
        if work.dtype not in self.dtypes:
            return None
        draft, target, token_ids = problem
        if work.rows is None:
            return self.one_row(draft[0], target[0], int(token_ids[0]))
        return self.many_rows(draft, target, token_ids)

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        return lambda: speculative_decode_step(draft, target, token)

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        out = np.empty_like(draft)
        return lambda: accept_residual(draft, target, token_ids, out=out)


class OnTorch(Contender):
    """The library on Torch tensors."""

    name = "draftverify on Torch"
    about = "the same, with Torch tensors in and out"
    module = "torch"

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        return super().one_row(_tensor(draft), _tensor(target), token)

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        draft, target, out = map(_tensor, (draft, target, np.empty_like(draft)))
        return lambda: accept_residual(draft, target, token_ids, out=out)


class NumPy(Contender):
    """The three lines."""

    name = "NumPy"
    about = "max(target - draft, 0) divided by its sum, in three lines"

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        def call() -> Any:
            excess = np.maximum(target - draft, 0)
            mass = excess.sum()
            residual = excess / mass if mass > 0 else excess
            return min(1.0, float(target[token]) / float(draft[token])), residual

        return call

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        out, index = np.empty_like(draft), np.arange(len(draft))

        def call() -> Any:
            np.maximum(np.subtract(target, draft, out=out), 0, out=out)
            mass = out.sum(axis=1, keepdims=True)
            np.divide(out, mass, out=out, where=mass > 0)
            ratio = target[index, token_ids].astype(np.float64) / draft[index, token_ids]
            return np.minimum(ratio, 1.0), out

        return call


class Numba(Contender):
    """Plain loops, compiled with licence to reorder the sum."""

    name = "numba"
    about = "loops, njit(fastmath=True), one thread, sums in the dtype"
    module = "numba"
    dtypes = ("float32", "float64")

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        step = _compiled()[0]
        return lambda: step(draft, target, token)

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        steps, out = _compiled()[1], np.empty_like(draft)
        return lambda: steps(draft, target, token_ids, out)


class Torch(Contender):
    """Torch's own operators, in place where they can."""

    name = "Torch"
    about = "the three lines, eager, in place where they can be"
    module = "torch"

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        drafts, targets = _tensor(draft), _tensor(target)

        def call() -> Any:
            excess = (targets - drafts).clamp_(min=0)
            mass = excess.sum()
            residual = excess.div_(mass) if mass > 0 else excess
            return min(1.0, float(targets[token] / drafts[token])), residual

        return call

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        torch = load("torch")
        drafts, targets, out = map(_tensor, (draft, target, np.empty_like(draft)))
        ids = torch.from_numpy(token_ids)[:, None]

        def call() -> Any:
            torch.sub(targets, drafts, out=out).clamp_(min=0)
            mass = out.sum(dim=1, keepdim=True)
            out.div_(torch.where(mass > 0, mass, 1))
            ratio = targets.gather(1, ids).double() / drafts.gather(1, ids)
            return ratio[:, 0].clamp_(max=1.0), out

        return call


class Jax(Contender):
    """XLA's fusion of the three lines. It cannot write into an array that is there."""

    name = "JAX"
    about = "the three lines under jit; own threads, fresh outputs"
    module = "jax"

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        return self._call(draft[None], target[None], np.array([token]))

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        return self._call(draft, target, token_ids)

    def _call(self, draft: NDArray[Any], target: NDArray[Any], ids: NDArray[np.int64]) -> Call:
        jax = load("jax")
        numpy = jax.numpy

        @jax.jit  # type: ignore[untyped-decorator]
        def answer(draft: Any, target: Any, ids: Any) -> Any:
            excess = numpy.maximum(target - draft, 0)
            mass = excess.sum(axis=1, keepdims=True)
            index = numpy.arange(len(ids))
            ratio = target[index, ids].astype(numpy.float64) / draft[index, ids]
            return numpy.minimum(ratio, 1.0), excess / numpy.where(mass > 0, mass, 1)

        inputs = jax.device_put((draft, target, ids), jax.devices("cpu")[0])
        return lambda: jax.block_until_ready(answer(*inputs))


class Flashspec(Contender):
    """A kernel in assembly, for the residual of one float32 row."""

    name = "flashspec-asm-kernel"
    about = "residual_dist, row by row; the acceptance in Python"
    module = "flashspec_asm_kernel"
    dtypes = ("float32",)

    def one_row(self, draft: NDArray[Any], target: NDArray[Any], token: int) -> Call:
        residual_dist = load(self.module).residual_dist

        def call() -> Any:
            residual = residual_dist(target, draft)
            return min(1.0, float(target[token]) / float(draft[token])), residual

        return call

    def many_rows(
        self, draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64]
    ) -> Call:
        residual_dist = load(self.module).residual_dist
        out, index = np.empty_like(draft), np.arange(len(draft))

        def call() -> Any:
            for row in range(len(draft)):
                residual_dist(target[row], draft[row], out=out[row])
            ratio = target[index, token_ids].astype(np.float64) / draft[index, token_ids]
            return np.minimum(ratio, 1.0), out

        return call


CONTENDERS: tuple[Contender, ...] = (
    Contender(), OnTorch(), NumPy(), Numba(), Torch(), Jax(), Flashspec(),
)  # fmt: skip


def _tensor(array: NDArray[Any]) -> Any:
    """See a NumPy array as a tensor; Torch does not know NumPy's bfloat16."""
    torch = load("torch")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """Decorate numba's loops; they are compiled for a dtype when they first meet it."""
    njit = load("numba").njit(fastmath=True)

    @njit  # type: ignore[untyped-decorator]
    def fill(draft: Any, target: Any, token: int, out: Any) -> float:
        mass = zero = draft.dtype.type(0)
        for entry in range(draft.size):
            excess = target[entry] - draft[entry]
            out[entry] = excess if excess > zero else zero
            mass += out[entry]
        if mass > zero:
            factor = draft.dtype.type(1) / mass
            for entry in range(draft.size):
                out[entry] *= factor
        return min(1.0, float(target[token]) / float(draft[token]))

    @njit  # type: ignore[untyped-decorator]
    def step(draft: Any, target: Any, token: int) -> Any:
        out = np.empty_like(draft)
        return fill(draft, target, token, out), out

    @njit  # type: ignore[untyped-decorator]
    def steps(draft: Any, target: Any, token_ids: Any, out: Any) -> Any:
        accepted = np.empty(token_ids.size)
        for row in range(token_ids.size):
            accepted[row] = fill(draft[row], target[row], token_ids[row], out[row])
        return accepted, out

    return step, steps
