"""The steps on a GPU: the launches of `kernel.cu`, by CuPy, on the caller's current stream.

Imported when the first array on a GPU arrives. Nothing here waits for the GPU but what hands a
number or an error to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from draftverify import _api, _arrays
from draftverify._cuda_arrays import Owner, Spot, ids_for, owner_of, spot
from draftverify._device_kinds import cupy
from draftverify._kinds import kind_of

BLOCK = 256  # threads of a block
CHUNK = 16 * BLOCK  # entries of a row that a block works on
_STORAGE = {
    "float16": "Float16",
    "bfloat16": "Bfloat16",
    "float32": "Float32",
    "float64": "Float64",
}


class _Stream(NamedTuple):
    """What CuPy's launch asks of a stream."""

    ptr: int


@cache
def missing(dtype: str) -> str | None:
    """Say what keeps the kernels for a dtype from running here, if anything does.

    That CuPy can be imported says nothing about driver, device and compiler: the kernels are built.
    """
    try:
        _kernels(dtype)
    except Exception as error:  # some are RuntimeError, some OSError, some neither
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0]
    return None


@cache
def _kernels(dtype: str) -> tuple[Callable[..., None], ...]:
    """Compile `excess_sums`, `residuals` and `accept_entries`. CuPy keeps them for each device."""
    module = cupy().RawModule(code=source(dtype), options=("-std=c++17",))
    names = ("excess_sums", "residuals", "accept_entries")
    return tuple(module.get_function(name) for name in names)


def source(dtype: str, block: int = BLOCK) -> str:
    """Put together the text of the kernels for rows of a dtype."""
    text = resources.files("draftverify").joinpath("kernel.cu").read_text("utf-8")
    return f"#define STORAGE {_STORAGE[dtype]}\n#define BLOCK {block}\n{text}"


def step(draft: Any, target: Any, token: int) -> dict[str, Any]:
    """Answer one row. The one wait is for its accept probability."""
    owner = owner_of(draft)
    rows = (owner.taken(draft), owner.taken(target))
    (vocabulary,) = rows[0].shape
    chunks = -(-vocabulary // CHUNK)
    with owner.on(rows[0]):
        residual = owner.empty(rows[0], (vocabulary,))
        # The sums of the chunks, whether the id is good, the accept probability, the mass.
        numbers = owner.empty(rows[0], (chunks + 3,), "float64")
        address = owner.address(numbers)
        answers = [address + 8 * (chunks + place) for place in range(3)]
        _launch(
            _Work(kind_of("draft_probs", draft).dtype(draft), owner.stream(rows[0]), 1, vocabulary),
            (spot(owner, rows[0]), spot(owner, rows[1]), spot(owner, residual)),
            (0, token, address, *answers),
            check=True,
        )
        accept_prob = float(numbers[chunks + 1].item())
        if np.isnan(accept_prob):
            _refuse(_api.step, owner, rows, token)
        return {"accept_prob": accept_prob, "residual": owner.handed(residual)}


def accept_residual(
    draft: Any, target: Any, ids: Any, out: Any, check: bool
) -> tuple[Any, Any, Any]:
    """Answer many rows. With `check` the one wait is for their accept probabilities."""
    owner = owner_of(draft)
    kind = kind_of("draft_probs", draft)
    rows = (owner.taken(draft), owner.taken(target))
    count, vocabulary = rows[0].shape
    chunks = -(-vocabulary // CHUNK)
    with owner.on(rows[0]):
        tokens = ids_for(owner, ids, rows[0], check=check)
        if out is not None:
            inputs = {"draft_probs": draft, "target_probs": target, "draft_token_ids": ids}
            _arrays.output(out, _arrays.pair(draft, target), inputs)
        residual = owner.empty(rows[0], (count, vocabulary)) if out is None else out
        accept_prob, mass = (owner.empty(rows[0], (count,), "float64") for _ in range(2))
        sums = owner.empty(rows[0], (count * chunks + 1,), "float64")
        places = (owner.address(tokens), 0, owner.address(sums))
        answers = (
            owner.address(sums) + 8 * count * chunks,
            owner.address(accept_prob),
            owner.address(mass),
        )
        _launch(
            _Work(kind.dtype(draft), owner.stream(rows[0]), count, vocabulary),
            (spot(owner, rows[0]), spot(owner, rows[1]), spot(owner, residual)),
            (*places, *answers),
            check=check,
        )
        if out is not None:
            kind.written(out)
        if check and np.isnan(np.asarray(owner.on_host(accept_prob))).any():
            _refuse(_api.accept_residual, owner, rows, owner.on_host(tokens))
        given = owner.handed(residual) if out is None else out
        return owner.handed(accept_prob), given, owner.handed(mass)


def accept_probs(draft: Any, target: Any, ids: Any) -> Any:
    """Answer the accept probabilities of many rows, and wait for them once."""
    owner = owner_of(draft)
    rows = (owner.taken(draft), owner.taken(target))
    count, vocabulary = rows[0].shape
    with owner.on(rows[0]):
        tokens = ids_for(owner, ids, rows[0], check=True)
        accept_prob = owner.empty(rows[0], (count,), "float64")
        work = _Work(
            kind_of("draft_probs", draft).dtype(draft), owner.stream(rows[0]), count, vocabulary
        )
        arguments = (
            *spot(owner, rows[0]),
            *spot(owner, rows[1]),
            *(count, vocabulary, owner.address(tokens), owner.address(accept_prob)),
        )
        if count:
            accept_entries = _kernels(work.dtype)[2]
            accept_entries((-(-count // BLOCK),), (BLOCK,), arguments, stream=_Stream(work.stream))
        if np.isnan(np.asarray(owner.on_host(accept_prob))).any():
            _refuse(_api.accept_probs, owner, rows, owner.on_host(tokens))
        return owner.handed(accept_prob)


class _Work(NamedTuple):
    """What is launched where, on how much."""

    dtype: str
    stream: int
    rows: int
    vocabulary: int


def _launch(
    work: _Work, spots: tuple[Spot, Spot, Spot], places: tuple[int, ...], *, check: bool
) -> None:
    """Queue both kernels. CuPy hands every Python int over as 8 bytes, as they expect."""
    if work.rows == 0:
        return  # CuPy would make a block of no blocks
    excess_sums, residuals, _ = _kernels(work.dtype)
    draft, target, out = spots
    tokens, token, sums, ids_good, accept_prob, mass = places
    grid = (work.rows * -(-work.vocabulary // CHUNK),)
    stream = _Stream(work.stream)
    first = (*draft, *target, work.rows, work.vocabulary, tokens, token, sums, ids_good)
    excess_sums(grid, (BLOCK,), first, stream=stream)
    answers = (sums, ids_good, int(check), accept_prob, mass)
    second = (*draft, *target, *out, work.vocabulary, tokens, token, *answers)
    residuals(grid, (BLOCK,), second, stream=stream)


def _refuse(function: Callable[..., object], owner: Owner, rows: tuple[Any, Any], ids: Any) -> None:
    """Let the CPU find what is wrong: the same error, in the same order and words."""
    function(*map(owner.on_host, rows), ids)
    message = (
        "draft_probs and target_probs: expected rows that nobody writes to during the call, got "
        "some that were; wait for what makes them"
    )
    raise ValueError(message)
