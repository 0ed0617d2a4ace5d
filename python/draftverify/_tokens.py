"""Token ids: what counts as an integer, one or many."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftverify._device_kinds import CUPY
from draftverify._kinds import LIST, TORCH, kind_of, plain_view

_INT64 = np.iinfo(np.int64)
_LONG = 1024
# Not longdouble, which float64 would round.
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_NARROW = {
    "int2",
    "int4",
    "uint2",
    "uint4",
}  # ml_dtypes' integers, which NumPy does not know as such


def as_index(name: str, token: Any, place: str = "") -> int:
    """Take a Python or NumPy integer, or a 0-d integer array of any library, as an int.

    A bool is not an integer here: it is a flag that went into the wrong argument. `place` says
    which of several tokens it is.
    """
    if isinstance(token, np.ma.MaskedArray):
        raise _not_integer(name, "a masked array", place)
    if isinstance(token, bool) or str(getattr(token, "dtype", "")).endswith("bool"):
        raise _not_integer(name, "a bool", place)
    shape = getattr(token, "shape", ())
    if isinstance(shape, tuple) and shape:
        raise _not_integer(name, f"an array of shape {tuple(shape)}", place)
    if CUPY.owns(token) and token.dtype.kind in "iu":
        token = token.item()  # CuPy's arrays are no integers to Python
    try:
        return int.__index__(operator.index(token))  # an int proper, also of a subclass
    except (TypeError, ValueError, RuntimeError):
        raise _not_integer(name, repr(token), place) from None


def as_indices(token_ids: Any, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Take an integer array or list of shape (rows,) as an int64 array."""
    name = "draft_token_ids"
    if isinstance(token_ids, list | tuple):
        tokens = [as_index(name, token, _row(row)) for row, token in enumerate(token_ids)]
        _expect_one_a_row(name, (len(tokens),), rows)
        return _within_int64(name, tokens, vocabulary)
    ids = _integers(name, token_ids)
    _expect_one_a_row(name, ids.shape, rows)
    if ids.dtype == np.uint64:
        return _within_int64(name, ids.tolist(), vocabulary)
    return np.ascontiguousarray(ids, dtype=np.int64)


def as_integers(name: str, numbers: Any) -> NDArray[np.int64]:
    """Take an integer array, or a list of integers or of such lists, as a packed int64 array."""
    if type(numbers) is np.ndarray and numbers.dtype.char in "ilq":
        return np.asarray(numbers, np.int64, order="C")
    if isinstance(numbers, list | tuple):
        if numbers and all(isinstance(row, list | tuple) for row in numbers):
            rows = [as_integers(name, row) for row in numbers]
            if len({row.shape for row in rows}) > 1:
                message = f"{name}: expected lists of one length, got others; fill up with -1"
                raise ValueError(message)
            return np.stack(rows)
        numbers = [as_index(name, number, f" at index {at}") for at, number in enumerate(numbers)]
    else:
        numbers = _integers(name, numbers)
    values = numbers.tolist() if getattr(numbers, "dtype", None) == np.uint64 else numbers
    try:
        return np.array(values, dtype=np.int64, order="C")
    except OverflowError:
        message = (
            f"{name}: expected integers of at most 64 bits, got others; check where they are from"
        )
        raise ValueError(message) from None


def as_numbers(name: str, numbers: Any) -> NDArray[np.float64]:
    """Take a number, a float or integer array of any library, or a list, as a float64 array."""
    if type(numbers) is float or (type(numbers) is np.ndarray and numbers.dtype.char in "fd"):
        return np.asarray(numbers, np.float64, order="C")
    expected = "numbers"
    if isinstance(numbers, list | tuple):
        kind_of(name, numbers, f"an array or a list of {expected}")
        return LIST.view(numbers)
    array = _on_host(name, numbers, expected)
    if array.dtype.kind not in "iu" and array.dtype.name not in FLOATS:
        message = f"{name}: expected {expected}, got dtype {array.dtype.name}; pass floats"
        raise TypeError(message)
    return np.array(array, dtype=np.float64, order="C")


def as_uniforms(numbers: Any) -> NDArray[np.float64]:
    """Copy uniform numbers of any library, or a list of floats, to a float64 array."""
    name, expected = "uniforms", "float32 or float64 numbers"
    if type(numbers) is np.ndarray and numbers.dtype.char in "fd":
        return np.asarray(numbers, np.float64, order="C")
    if not isinstance(numbers, list | tuple):
        numbers = _on_host(name, numbers, expected)
        if numbers.dtype.kind != "f" or numbers.dtype.itemsize not in {4, 8}:
            message = (
                f"{name}: expected {expected}, got dtype {numbers.dtype.name}; draw them as float32"
            )
            raise TypeError(message)
    return as_numbers(name, numbers)


def as_possible(token_ids: Any, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Take ids as `as_indices` does, and refuse those outside the vocabulary.

    For where the compiled part, which does so too, does not see them.
    """
    ids = as_indices(token_ids, rows, vocabulary)
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if wrong.size:
        row = int(wrong[0])
        raise _outside("draft_token_ids", int(ids[row]), vocabulary, _row(row))
    return ids


def within(name: str, token: int, vocabulary: int) -> int:
    """Refuse an id outside the vocabulary, where the compiled part does not see it."""
    if not 0 <= token < vocabulary:
        raise _outside(name, token, vocabulary, "")
    return token


def expect_integers(name: str, dtype: str, shape: tuple[int, ...], rows: int) -> None:
    """Check an array of ids that is not on the CPU by what is known of it there."""
    if not dtype.startswith(("int", "uint")):
        raise _not_integers(name, dtype)
    _expect_one_a_row(name, shape, rows)


def in_int64(name: str, token: int, vocabulary: int, place: str = "") -> int:
    """Refuse what the compiled part cannot take; it refuses all else that is out of range."""
    if not _INT64.min <= token <= _INT64.max:
        raise _outside(name, token, vocabulary, place)
    return token


def _within_int64(name: str, tokens: list[int], vocabulary: int) -> NDArray[np.int64]:
    """Make an array of ids. NumPy would make floats of some that are too large."""
    if all(_INT64.min <= token <= _INT64.max for token in tokens):
        return np.array(tokens, dtype=np.int64)
    row = next(row for row, token in enumerate(tokens) if not 0 <= token < vocabulary)
    raise _outside(name, tokens[row], vocabulary, _row(row))


def _outside(name: str, token: int, vocabulary: int, place: str) -> ValueError:
    # Python refuses to write out integers of thousands of digits.
    shown = str(token) if token.bit_length() < _LONG else f"one of {token.bit_length()} bits"
    cure = "ids do not wrap: leave padding out"
    if token > 0:
        cure = "check that the ids belong to this vocabulary"
    return ValueError(
        f"{name}: expected an id from 0 to {vocabulary - 1} (the rows have {vocabulary} entries), "
        f"got {shown}{place}; {cure}"
    )


def _row(row: int) -> str:
    return f" in row {row}"


def _expect_one_a_row(name: str, shape: tuple[int, ...], rows: int) -> None:
    if shape != (rows,):
        message = f"{name}: expected shape ({rows},), got {shape}; pass one id a row"
        raise ValueError(message)


def _integers(name: str, numbers: Any) -> NDArray[Any]:
    """See an integer array of any library as a NumPy array."""
    array = _on_host(name, numbers, "integers")
    if array.dtype.kind in "iu":
        return array
    if array.dtype.name in _NARROW:
        return array.astype(np.int64)
    raise _not_integers(name, array.dtype.name)


def _on_host(name: str, numbers: Any, expected: str) -> NDArray[Any]:
    """Copy numbers of any library to a NumPy array."""
    if isinstance(numbers, np.ma.MaskedArray):
        message = f"{name}: expected {expected}, got a masked array; pass .filled(...) or .data"
        raise TypeError(message)
    view = plain_view(numbers)
    if view is not None and numbers.dtype is not sys.modules["torch"].bfloat16:
        return view
    if TORCH.owns(numbers):
        reason = TORCH.refusal(numbers)
        if reason is not None:
            message = f"{name}: expected {expected}, got {reason}"
            raise TypeError(message)
        return TORCH.view(numbers.cpu())
    try:
        if callable(getattr(numbers, "get", None)):  # CuPy
            numbers = numbers.get()
        return np.asarray(numbers)
    except Exception as error:
        message = f"{name}: expected an array or list of {expected}, got {error}; pass {expected}"
        raise TypeError(message) from error


def _not_integers(name: str, dtype: str) -> TypeError:
    return TypeError(f"{name}: expected integers, got dtype {dtype}; convert them to int64")


def _not_integer(name: str, what: str, place: str) -> TypeError:
    cure = "pass an int, as .item() of an array of one gives, or a 0-d integer array"
    return TypeError(f"{name}: expected an integer, got {what}{place}; {cure}")
