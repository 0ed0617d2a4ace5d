"""Token ids: what counts as an integer, one or many."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT64 = np.iinfo(np.int64)


def as_index(name: str, token: Any, place: str = "") -> int:
    """Take a Python or NumPy integer, or a 0-d integer array of any library, as an int.

    A bool is not an integer here: it is a flag that went into the wrong argument. `place` says
    which of several tokens it is.
    """
    if isinstance(token, np.ma.MaskedArray):
        raise _not_integer(name, "a masked array", place)
    if isinstance(token, bool) or str(getattr(token, "dtype", "")).endswith("bool"):
        raise _not_integer(name, "a bool", place)
    shape = tuple(getattr(token, "shape", ()))
    if shape:
        raise _not_integer(name, f"an array of shape {shape}", place)
    try:
        return operator.index(token)
    except (TypeError, ValueError, RuntimeError):
        raise _not_integer(name, repr(token), place) from None


def as_indices(token_ids: Any, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Take an integer array or list of shape (rows,) as an int64 array."""
    name = "draft_token_ids"
    if isinstance(token_ids, list | tuple):
        tokens = [as_index(name, token, _row(row)) for row, token in enumerate(token_ids)]
        _expect_one_a_row(name, (len(tokens),), rows)
        # One by one: NumPy would make floats of ids on both sides of what an int64 holds.
        checked = [in_int64(name, t, vocabulary, _row(row)) for row, t in enumerate(tokens)]
        return np.array(checked, dtype=np.int64)
    ids = _on_host(token_ids)
    if ids.dtype.kind not in "iu":
        message = f"{name}: expected integers, got dtype {ids.dtype.name}; convert them to int64"
        raise TypeError(message)
    _expect_one_a_row(name, ids.shape, rows)
    if ids.dtype == np.uint64:
        for row, token in enumerate(ids.tolist()):
            in_int64(name, token, vocabulary, _row(row))
    return np.ascontiguousarray(ids, dtype=np.int64)


def in_int64(name: str, token: int, vocabulary: int, place: str = "") -> int:
    """Refuse what the compiled part cannot take; it refuses all else that is out of range."""
    if not _INT64.min <= token <= _INT64.max:
        message = (
            f"{name}: expected an id from 0 to {vocabulary - 1} (the rows have {vocabulary} "
            f"entries), got {token}{place}; check that the ids belong to this vocabulary"
        )
        raise ValueError(message)
    return token


def _row(row: int) -> str:
    return f" in row {row}"


def _expect_one_a_row(name: str, shape: tuple[int, ...], rows: int) -> None:
    if shape != (rows,):
        message = f"{name}: expected shape ({rows},), got {shape}; pass one id a row"
        raise ValueError(message)


def _on_host(token_ids: Any) -> NDArray[Any]:
    """Copy ids of any library to a NumPy array."""
    if isinstance(token_ids, np.ma.MaskedArray):
        message = (
            "draft_token_ids: expected integers, got a masked array; pass .filled(...) or .data"
        )
        raise TypeError(message)
    try:
        for method in ("cpu", "get"):  # Torch; CuPy
            if callable(getattr(token_ids, method, None)):
                token_ids = getattr(token_ids, method)()
                break
        return np.asarray(token_ids)
    except Exception as error:
        message = f"draft_token_ids: expected an integer array or list, got {error}; pass integers"
        raise TypeError(message) from error


def _not_integer(name: str, what: str, place: str) -> TypeError:
    cure = "pass an int, as .item() of an array of one gives, or a 0-d integer array"
    return TypeError(f"{name}: expected an integer, got {what}{place}; {cure}")
