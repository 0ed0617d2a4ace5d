"""Token ids: what counts as an integer, one or many."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT64 = np.iinfo(np.int64)


def as_index(name: str, token: Any) -> int:
    """Take a Python or NumPy integer, or a 0-d integer array of any library, as an int.

    A bool is not an integer here: it is a flag that went into the wrong argument.
    """
    if isinstance(token, bool) or str(getattr(token, "dtype", "")).endswith("bool"):
        raise _not_integer(name, "a bool")
    shape = tuple(getattr(token, "shape", ()))
    if shape:
        raise _not_integer(name, f"an array of shape {shape}")
    try:
        return operator.index(token)
    except (TypeError, ValueError, RuntimeError):
        raise _not_integer(name, repr(token)) from None


def as_indices(token_ids: Any, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Take an integer array or list of shape (rows,) as an int64 array."""
    name = "draft_token_ids"
    if isinstance(token_ids, list | tuple):
        token_ids = np.array([as_index(name, token) for token in token_ids] or np.empty(0, np.int64))
    ids = _on_host(token_ids)
    if ids.dtype == object and ids.ndim == 1 and all(isinstance(token, int) for token in ids):
        _refuse_beyond_int64(name, ids, vocabulary)
    if ids.dtype.kind not in "iu":
        message = f"{name}: expected integers, got dtype {ids.dtype.name}; convert them with int()"
        raise TypeError(message)
    if ids.shape != (rows,):
        message = f"{name}: expected shape ({rows},), one id a row, got {ids.shape}"
        raise ValueError(message)
    _refuse_beyond_int64(name, ids, vocabulary)
    return np.ascontiguousarray(ids, dtype=np.int64)


def in_int64(name: str, token: int, vocabulary: int) -> int:
    """Refuse what the compiled part cannot take; it refuses all else that is out of range."""
    if not _INT64.min <= token <= _INT64.max:
        message = (
            f"{name}: expected an id from 0 to {vocabulary - 1} (the rows have {vocabulary} "
            f"entries), got {token}; check that the ids belong to this vocabulary"
        )
        raise ValueError(message)
    return token


def _refuse_beyond_int64(name: str, ids: NDArray[Any], vocabulary: int) -> None:
    if ids.dtype == np.uint64 or ids.dtype == object:
        for row, token in enumerate(ids.tolist()):
            in_int64(f"{name}[{row}]", token, vocabulary)


def _on_host(token_ids: Any) -> NDArray[Any]:
    """Copy ids of any library to a NumPy array."""
    if isinstance(token_ids, np.ma.MaskedArray):
        message = "draft_token_ids: expected integers, got a masked array; pass .filled(...) or .data"
        raise TypeError(message)
    for method in ("cpu", "get"):  # Torch; CuPy
        if callable(getattr(token_ids, method, None)):
            token_ids = getattr(token_ids, method)()
            break
    try:
        return np.asarray(token_ids)
    except Exception as error:
        message = f"draft_token_ids: expected an integer array or list, got {error}"
        raise TypeError(message) from error


def _not_integer(name: str, what: str) -> TypeError:
    return TypeError(f"{name}: expected an integer, got {what}; pass an int or a 0-d integer array")
