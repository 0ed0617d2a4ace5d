"""Token ids: what counts as an integer, one or many."""

from __future__ import annotations

import operator
import sys
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftverify._device_kinds import CUPY
from draftverify._kinds import JAX, LIST, TORCH, kind_of, plain_view, type_name

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

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
        if TORCH.owns(token) and (reason := TORCH.refusal(token)) is not None:
            message = f"{name}: expected an integer, got {reason}"
            raise TypeError(message) from None
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
    return _packed(ids, np.int64)


def as_integers(name: str, numbers: Any, expected: str = "integers") -> NDArray[np.int64]:
    """Take an integer array, or a list of integers or of such lists, as a packed int64 array."""
    view = _plain(numbers)
    if view is not None and view.dtype.char in "ilq":
        return _packed(view, np.int64)
    if isinstance(numbers, list | tuple):
        if numbers and all(isinstance(row, list | tuple) for row in numbers):
            if len({len(row) for row in numbers}) > 1:
                message = f"{name}: expected lists of one length, got others; fill up with -1"
                raise ValueError(message)
            return np.stack([_listed(name, row, f"{at}, ") for at, row in enumerate(numbers)])
        return _listed(name, numbers, "")
    if isinstance(numbers, int) and not isinstance(numbers, bool):
        return np.array(_in_64_bits(name, as_index(name, numbers), ""), np.int64)
    array = _integers(name, numbers, expected)
    if array.dtype == np.uint64 and array.size and array.max() > _INT64.max:
        index = np.unravel_index(np.argmax(array > _INT64.max), array.shape)
        place = f" at index {', '.join(map(str, index))}" if index else ""
        _in_64_bits(name, int(array[index]), place)
    return _packed(array, np.int64)


def as_numbers(name: str, numbers: Any, expected: str = "numbers") -> NDArray[np.float64]:
    """Take a number, a float or integer array of any library, or a list, as a float64 array."""
    if type(numbers) is float or (type(numbers) is np.ndarray and numbers.dtype.char in "fd"):
        return _packed(numbers, np.float64)
    if isinstance(numbers, list | tuple):
        kind_of(name, numbers, f"{expected} in an array or a list")
        try:
            return LIST.view(numbers)
        except ValueError as error:
            message = f"{name}: {error}"
            raise ValueError(message) from None
    if isinstance(numbers, int) and not isinstance(numbers, bool):
        numbers = _in_float64(name, as_index(name, numbers))
    array, dtype = _on_host(name, numbers, expected)
    if array.dtype.kind not in "iu" and dtype not in FLOATS:
        message = f"{name}: expected {expected}, got dtype {dtype}; pass floats"
        raise TypeError(message)
    return _packed(array, np.float64)


def as_flag(name: str, flag: object) -> bool:
    """Take a bool, Python's or NumPy's."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag)
    message = f"{name}: expected True or False, got {type_name(flag)}; pass a bool"
    raise TypeError(message)


def as_uniforms(numbers: Any) -> NDArray[np.float32] | NDArray[np.float64]:
    """Take uniform numbers of any library, or a list of floats, as a packed array.

    float32 stays so: the compiled part widens it, whatever this thread does with small numbers.
    """
    name, expected = "uniforms", "float32 or float64 numbers"
    view = _plain(numbers)
    if view is not None and view.dtype.char in "fd":
        return _packed(view, view.dtype.type)
    if isinstance(numbers, list | tuple):
        listed = as_numbers(name, numbers, expected)
        # As NumPy sees the list: one of ints alone, or of float16, is refused as such an array is.
        found = np.array(numbers).dtype
        if listed.size and found.name not in {"float32", "float64"}:
            integers = found.kind in "iuO"
            entries = "ints alone" if integers else found.name
            cure = "write 0 as 0.0" if integers else "draw them as float32"
            message = f"{name}: expected {expected}, got a list of {entries}; {cure}"
            raise TypeError(message)
        return listed
    array, dtype = _on_host(name, numbers, expected)
    if dtype not in {"float32", "float64"}:
        message = f"{name}: expected {expected}, got dtype {dtype}; draw them as float32"
        raise TypeError(message)
    return _packed(array, array.dtype.type)


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


def within(name: str, token: int, vocabulary: int) -> None:
    """Refuse an id outside the vocabulary, where the compiled part does not see it."""
    if not 0 <= token < vocabulary:
        raise _outside(name, token, vocabulary, "")


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


def _plain(numbers: Any) -> NDArray[Any] | None:
    """See a plain array as one of NumPy's; Torch's bfloat16 is seen as 16-bit integers."""
    return numbers if type(numbers) is np.ndarray else plain_view(numbers)


def _packed(numbers: NDArray[Any] | float, dtype: type[_ScalarT]) -> NDArray[_ScalarT]:
    """See or copy numbers as an array that the compiled part can read."""
    packed = np.asarray(numbers, dtype, order="C")
    return packed if packed.flags.aligned else packed.copy()


def _listed(name: str, numbers: Any, row: str) -> NDArray[np.int64]:
    """Take a list of integers."""
    integers = []
    for at, number in enumerate(numbers):
        place = f" at index {row}{at}"
        integers.append(_in_64_bits(name, as_index(name, number, place), place))
    return np.array(integers, np.int64)


def _in_64_bits(name: str, number: int, place: str) -> int:
    if _INT64.min <= number <= _INT64.max:
        return number
    message = (
        f"{name}: expected integers of at most 64 bits, got {_shown(number)}{place}; check where "
        f"they are from"
    )
    raise ValueError(message)


def _in_float64(name: str, number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        message = f"{name}: expected a number, got {_shown(number)}; pass a float"
        raise ValueError(message) from None


def _shown(number: int) -> str:
    # Python refuses to write out integers of thousands of digits.
    return str(number) if number.bit_length() < _LONG else f"one of {number.bit_length()} bits"


def _within_int64(name: str, tokens: list[int], vocabulary: int) -> NDArray[np.int64]:
    """Make an array of ids. NumPy would make floats of some that are too large."""
    if all(_INT64.min <= token <= _INT64.max for token in tokens):
        return np.array(tokens, dtype=np.int64)
    row = next(row for row, token in enumerate(tokens) if not 0 <= token < vocabulary)
    raise _outside(name, tokens[row], vocabulary, _row(row))


def _outside(name: str, token: int, vocabulary: int, place: str) -> ValueError:
    cure = "ids do not wrap: leave padding out"
    if token > 0:
        cure = "check that the ids belong to this vocabulary"
    return ValueError(
        f"{name}: expected an id from 0 to {vocabulary - 1} (the rows have {vocabulary} entries), "
        f"got {_shown(token)}{place}; {cure}"
    )


def _row(row: int) -> str:
    return f" in row {row}"


def _expect_one_a_row(name: str, shape: tuple[int, ...], rows: int) -> None:
    if shape != (rows,):
        message = f"{name}: expected shape ({rows},), got {shape}; pass one id a row"
        raise ValueError(message)


def _integers(name: str, numbers: Any, expected: str = "integers") -> NDArray[Any]:
    """See an integer array of any library as a NumPy array."""
    array, dtype = _on_host(name, numbers, expected)
    if array.dtype.kind in "iu":
        return array
    if dtype in _NARROW:
        return array.astype(np.int64)
    raise _not_integers(name, dtype)


@lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    # NumPy puts the name together anew each time, in several microseconds.
    return dtype.name


def _on_host(name: str, numbers: Any, expected: str) -> tuple[NDArray[Any], str]:
    """See numbers of any library as a NumPy array, and name the dtype that they have there.

    Torch's bfloat16, which NumPy has not got, comes as float32.
    """
    if isinstance(numbers, np.ma.MaskedArray):
        message = f"{name}: expected {expected}, got a masked array; pass .filled(...) or .data"
        raise TypeError(message)
    view = plain_view(numbers)
    if view is not None and numbers.dtype is not sys.modules["torch"].bfloat16:
        return view, _name(view.dtype)
    for kind in (TORCH, JAX):
        if kind.owns(numbers) and (reason := kind.refusal(numbers)) is not None:
            message = f"{name}: expected {expected}, got {reason}"
            raise TypeError(message)
    try:
        if TORCH.owns(numbers):
            dtype, numbers = TORCH.dtype(numbers), numbers.cpu()
            return TORCH.view(numbers.float() if dtype == "bfloat16" else numbers), dtype
        if CUPY.owns(numbers):
            numbers = numbers.get()
        array = np.asarray(numbers)
    except Exception as error:
        message = f"{name}: expected {expected}, got {error}; pass an array or a list"
        raise TypeError(message) from error
    if array.dtype.kind in "OSU" and not hasattr(numbers, "dtype"):
        message = f"{name}: expected {expected}, got {type_name(numbers)}; pass numbers"
        raise TypeError(message)
    return array, _name(array.dtype)


def _not_integers(name: str, dtype: str) -> TypeError:
    return TypeError(f"{name}: expected integers, got dtype {dtype}; convert them to int64")


def _not_integer(name: str, what: str, place: str) -> TypeError:
    cure = "pass an int, as .item() of an array of one gives, or a 0-d integer array"
    return TypeError(f"{name}: expected an integer, got {what}{place}; {cure}")
