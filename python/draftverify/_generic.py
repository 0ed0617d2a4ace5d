"""The arithmetic of a step in an array's own library, on its own device.

For arrays of the array API standard and for Torch tensors on devices without a kernel. Differences
and quotients are rounded as the contract in DESIGN.md says, and the mass is added in the same
order: where the library rounds as IEEE 754 asks and keeps subnormal numbers, every bit is that of
the compiled functions.

Where a device has no float64, the mass and `accept_prob` of rows are float32. The mass is then
added with compensation, in two float32 that together hold 48 bits, and rounded once: it is the
float32 nearest to the compiled functions' mass, except where that lies within some 2^-43 of it of
the middle of two, and the residual has the same bits wherever the mass has. `accept_prob` is the
quotient rounded to float32, one part in 2^24. A single step answers `accept_prob` in float64
everywhere.

Nothing is fetched from the device but a flag that says whether all went well, and of a single step
the two entries of the token: one wait. With ``check=False`` there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from draftverify import _api, _core, _generic_checks
from draftverify._generic_checks import Ids, Pair
from draftverify._namespaces import Operations

_LANES, _SUB_BLOCK = 16, 256


class _Excess(NamedTuple):
    """What is known of rows after they were read once."""

    # max(target - draft, 0) in the type that it is divided in, shape (N, V).
    differences: Any
    # Their sums, shape (N,).
    mass: Any
    # The sums in the type of the differences, or 1 where they are 0.
    divisor: Any
    # Whether a row has an entry that is no probability, or a mass beyond its type.
    bad: Any


def step(draft_probs: Any, target_probs: Any, drafted_token: Any) -> dict[str, Any]:
    """Answer a `speculative_decode_step`."""
    pair = _generic_checks.pair(draft_probs, target_probs, "(V,)", 1)
    vocabulary = pair.draft.shape[0]
    token = _generic_checks.token(drafted_token, vocabulary)
    lib = pair.lib
    rows = pair._replace(draft=pair.draft[None, :], target=pair.target[None, :])
    # Errors are told by the flag, not by NumPy's warnings, where NumPy is what works underneath.
    with np.errstate(all="ignore"):
        excess = _excess(rows)
        wide = rows.wide
        bad, draft, target = lib.numbers(
            lib.cast(excess.bad, wide)[0],
            lib.cast(pair.draft[token], wide),
            lib.cast(pair.target[token], wide),
        )
        if bad or draft == 0:
            _refuse(rows, 0, token, _as_step)
        residual = lib.cast(lib.divide(excess.differences, excess.divisor), pair.dtype)
    return {
        "accept_prob": target / draft if target < draft else 1.0,
        "residual": residual[0, :],
    }


def accept_residual(
    draft_probs: Any, target_probs: Any, draft_token_ids: Any, out: Any, check: bool
) -> _api.AcceptResidual[Any, Any]:
    """Answer an `accept_residual`.

    With ``check=False``, ids that are on a device are not looked at: one outside the vocabulary
    makes its row NaN.
    """
    pair = _generic_checks.pair(draft_probs, target_probs, "(N, V)", 2)
    lib = pair.lib
    ids = _generic_checks.ids(pair, draft_token_ids)
    if out is not None:
        inputs = {"draft_probs": draft_probs, "target_probs": target_probs}
        _generic_checks.output(pair, out, inputs | {"draft_token_ids": draft_token_ids})
    with np.errstate(all="ignore"):
        excess = _excess(pair)
        draft, target = (lib.gather(rows, ids.places) for rows in (pair.draft, pair.target))
        bad = excess.bad | (draft == 0)
        if ids.outside is not None:
            bad = bad | ids.outside
        accept_prob, mass, divisor = _ratio(pair, draft, target), excess.mass, excess.divisor
        if not check:
            accept_prob, mass, divisor = (
                lib.where(bad, lib.fill((), np.nan, lib.dtype(numbers)), numbers)
                for numbers in (accept_prob, mass, divisor)
            )
        elif lib.any(bad):
            _refuse_rows(pair, ids, [draft == 0, excess.bad], _as_row)
        residual = lib.cast(lib.divide(excess.differences, divisor), pair.dtype)
        if out is not None:
            lib.write(out, residual)
    return _api.AcceptResidual(accept_prob, residual if out is None else out, mass)


def accept_probs(draft_probs: Any, target_probs: Any, draft_token_ids: Any) -> Any:
    """Answer an `accept_probs`."""
    pair = _generic_checks.pair(draft_probs, target_probs, "(N, V)", 2)
    lib = pair.lib
    ids = _generic_checks.ids(pair, draft_token_ids)
    with np.errstate(all="ignore"):
        draft, target = (lib.gather(rows, ids.places) for rows in (pair.draft, pair.target))
        wrong = ~_probable(draft, draft) | ~_probable(target, target)
        bad = wrong | (draft == 0)
        if ids.outside is not None:
            bad = bad | ids.outside
        if lib.any(bad):
            _refuse_rows(pair, ids, [draft == 0, wrong], _as_entries)
        return _ratio(pair, draft, target)


def _excess(pair: Pair) -> _Excess:
    lib, wide = pair.lib, pair.wide
    bad = ~_probable(*lib.extremes(pair.draft)) | ~_probable(*lib.extremes(pair.target))
    differences = lib.cast(pair.target, wide) - lib.cast(pair.draft, wide)
    differences = lib.where(differences > 0, differences, lib.fill((), 0, wide))
    mass = _mass(lib, differences)
    divisor = lib.cast(mass, wide)
    divisor = lib.where(divisor == 0, lib.fill((), 1, wide), divisor)
    return _Excess(differences, mass, divisor, bad | ~(divisor < np.inf))


def _probable(least: Any, largest: Any) -> Any:
    """Whether all that lies between is finite and not negative. No comparison holds for NaN."""
    return (least >= 0) & (largest < np.inf)


def _ratio(pair: Pair, draft: Any, target: Any) -> Any:
    """min(1, target / draft), without dividing by zeros."""
    lib = pair.lib
    one = lib.fill((), 1, lib.float64)
    draft, target = lib.cast(draft, lib.float64), lib.cast(target, lib.float64)
    less = target < draft
    return lib.where(less, target, one) / lib.where(less, draft, one)


# A sum on its way: one float64, or two float32 of which the second holds what the first lost.
_Sum = tuple[Any, ...]
_Add = Callable[[_Sum, _Sum], _Sum]


def _mass(lib: Operations, differences: Any) -> Any:
    """Add up rows in the order of the contract: lanes, folds, tree."""
    rows, vocabulary = differences.shape
    blocks = -(-vocabulary // _SUB_BLOCK)
    missing = blocks * _SUB_BLOCK - vocabulary
    if missing:
        zeros = lib.fill((rows, missing), 0, lib.dtype(differences))
        differences = lib.concat([differences, zeros], axis=1)
    turns = lib.reshape(differences, (rows, blocks, _SUB_BLOCK // _LANES, _LANES))

    if lib.float64 == "float64":
        add: _Add = _add
        total: _Sum = (lib.cast(turns[:, :, 0, :], "float64"),)
    else:
        zeros = lib.fill((rows, blocks, _LANES), 0, "float32")
        add, total = _add_compensated, (turns[:, :, 0, :], zeros)
    for turn in range(1, _SUB_BLOCK // _LANES):
        total = add(total, (turns[:, :, turn, :], None))
    for width in (8, 4, 2, 1):
        total = add(_at(total, slice(width)), _at(total, slice(width, 2 * width)))
    total = _at(total, 0)

    while blocks > 1:
        if blocks % 2:
            zero = lib.fill((rows, 1), 0, lib.float64)
            total = tuple(lib.concat([part, zero], axis=1) for part in total)
        total = add(_at(total, slice(None, None, 2)), _at(total, slice(1, None, 2)))
        blocks = (blocks + 1) // 2
    total = _at(total, 0)
    return total[0] if len(total) == 1 else total[0] + total[1]


def _at(total: _Sum, key: object) -> _Sum:
    return tuple(part[..., key] for part in total)


def _add(one: _Sum, other: _Sum) -> _Sum:
    return (one[0] + other[0],)


def _add_compensated(one: _Sum, other: _Sum) -> _Sum:
    """Add, and keep what rounding took: Knuth's two-sum, which needs no comparison."""
    total = one[0] + other[0]
    of_other = total - one[0]
    lost = (one[0] - (total - of_other)) + (other[0] - of_other)
    before = one[1] if other[1] is None else one[1] + other[1]
    return total, before + lost


_Compiled = Callable[[NDArray[Any], NDArray[Any], int, bool], object]


def _as_step(draft: NDArray[Any], target: NDArray[Any], token: int, bfloat16: bool) -> None:
    _core.accept_vectors(draft, target, token, bfloat16)


def _as_row(draft: NDArray[Any], target: NDArray[Any], token: int, bfloat16: bool) -> None:
    ids, residual = np.array([token], np.int64), np.empty_like(draft[None])
    _core.accept_rows(draft[None], target[None], ids, residual, True, bfloat16)


def _as_entries(draft: NDArray[Any], target: NDArray[Any], token: int, bfloat16: bool) -> None:
    _core.accept_entries(draft[None], target[None], np.array([token], np.int64), bfloat16)


def _refuse_rows(pair: Pair, ids: Ids, faults: list[Any], compiled: _Compiled) -> NoReturn:
    """Raise the error of the first row that has the first of the faults that there are."""
    tokens = _generic_checks.within_vocabulary(pair, ids)
    row = next(pair.lib.first(fault) for fault in faults if pair.lib.any(fault))
    try:
        _refuse(pair, row, int(tokens[row]), compiled)
    except ValueError as error:
        # The compiled function was shown one row.
        raise ValueError(str(error).replace(" in row 0", f" in row {row}")) from None


def _refuse(pair: Pair, row: int, token: int, compiled: _Compiled) -> NoReturn:
    """Let the compiled function say what is wrong with a row."""
    draft, target = (pair.lib.host(rows[row, :]) for rows in (pair.draft, pair.target))
    compiled(draft, target, token, pair.dtype == "bfloat16")
    message = (
        f"draft_probs and target_probs: expected rows that {pair.lib.device} can compute with, got "
        f"entries that it takes for others, in row {row}; move them to the CPU"
    )
    raise ValueError(message)
