"""Numbers, one or many, as arguments: what counts as one, which are in range, what comes back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from draftverify._kinds import NUMPY, TORCH, HostKind, Kind, kind_of, type_name

_KNOWN = "a number, a NumPy array, a Torch or JAX array on the CPU, or a list of numbers"
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NUMBERS = _INTEGERS | {"float16", "bfloat16", "float32", "float64"}
# From here on float64 skips integers.
LARGEST = 2**53

Floats = NDArray[np.float64]


class Numbers:
    """The numeric arguments of one call, and the library that its answer belongs to."""

    def __init__(self) -> None:
        """Begin without arguments."""
        self._named: list[tuple[str, Floats]] = []
        self._library: tuple[str, object, Kind] | None = None

    def rates(self, name: str, value: object) -> Floats:
        """Take probabilities of keeping a token."""
        rates = self._taken(name, value, _NUMBERS, "numbers")
        bad = ~((rates >= 0) & (rates <= 1))
        if bad.any():
            found, index = _first(rates, bad)
            cure = "pass a probability; check what it was computed from"
            if 1 < found < 1.01:  # noqa: PLR2004 - where rounding, and no percentage, can have led
                cure = "rows that sum to more than one have such rates: pass numpy.minimum(rate, 1)"
            message = f"{name}: expected rates from 0 to 1, got {found}{index}; {cure}"
            raise ValueError(message)
        return rates

    def finite(self, name: str, value: object, cure: str) -> Floats:
        """Take finite numbers that are not negative."""
        numbers = self._taken(name, value, _NUMBERS, "numbers")
        bad = ~((numbers >= 0) & np.isfinite(numbers))
        if bad.any():
            found, index = _first(numbers, bad)
            message = f"{name}: expected finite numbers >= 0, got {found}{index}; {cure}"
            raise ValueError(message)
        return numbers

    def lengths(self, name: str, value: object) -> Floats:
        """Take integers that are not negative. They come as float64, which has them exactly."""
        lengths = self._taken(name, value, _INTEGERS, "integers")
        bad = ~((lengths >= 0) & (lengths < LARGEST))
        if bad.any():
            found, index = _first(lengths, bad)
            shown = int(found) if np.isfinite(found) else "one beyond float64"
            message = (
                f"{name}: expected integers >= 0 and < 2**53, got {shown}{index}; pass how many "
                f"tokens are drafted"
            )
            raise ValueError(message)
        return lengths

    def together(self) -> list[Floats]:
        """Broadcast all arguments against each other."""
        try:
            return list(np.broadcast_arrays(*(values for _, values in self._named)))
        except ValueError:
            names = " and ".join(name for name, _ in self._named)
            shapes = " and ".join(str(values.shape) for _, values in self._named)
            message = (
                f"{names}: expected shapes that broadcast together, got {shapes}; pass arrays of "
                f"one shape, or numbers"
            )
            raise ValueError(message) from None

    def answer(self, result: NDArray[Any]) -> Any:
        """Hand a result to the caller: a Python number, or an array of the caller's library."""
        if result.ndim == 0:
            return result.item()
        kind: HostKind = NUMPY
        device = "cpu"
        if self._library is not None:
            _, array, found = self._library
            kind = cast("HostKind", found)  # the arrays were seen on the CPU
            device = kind.device(array)
        return kind.wrap(np.ascontiguousarray(result), result.dtype.name, device)

    def _taken(self, name: str, value: object, dtypes: set[str], what: str) -> Floats:
        found = _scalar(value)
        if found is None:
            kind = kind_of(name, value, _KNOWN)
            self._expect_one_library(name, value, kind)
            found = _array(name, value, kind)
        numbers, dtype = found
        if dtype not in dtypes:
            cure = "int64" if dtypes is _INTEGERS else "float64"
            message = f"{name}: expected {what}, got {dtype}; convert to {cure}"
            raise TypeError(message)
        floats = numbers.astype(np.float64)
        self._named.append((name, floats))
        return floats

    def _expect_one_library(self, name: str, value: object, kind: Kind) -> None:
        if kind.name == "list":
            return
        first = self._library
        if first is not None and first[2] is not kind:
            message = (
                f"{first[0]} and {name}: expected arrays of one library, got "
                f"{type_name(first[1])} and {type_name(value)}; convert one of them"
            )
            raise TypeError(message)
        self._library = (name, value, kind)


def _scalar(value: object) -> tuple[NDArray[Any], str] | None:
    """See a number that is no array as one, and name its dtype."""
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < LARGEST:
            return np.asarray(int(value)), "int64"
        try:
            return np.asarray(float(value)), "int64"
        except OverflowError:
            return np.asarray(np.inf if value > 0 else -np.inf), "int64"
    if isinstance(value, bool | float | np.generic):
        number = np.asarray(value)
        return number, number.dtype.name
    return None


def _array(name: str, value: Any, kind: Kind) -> tuple[NDArray[Any], str]:
    """See an array as NumPy's, and name its dtype."""
    if kind.name == "list":
        try:
            array = np.array(value)
        except ValueError:
            message = f"{name}: expected lists of numbers, all of one length, got others; pass one"
            raise ValueError(message) from None
        # An empty list holds no float.
        return (array, array.dtype.name) if array.size else (array, "int64")
    dtype, device = kind.dtype(value), kind.device(value)
    if device.partition(":")[0] != "cpu":
        message = f"{name}: expected an array on the CPU, got {device}; move it with {kind.to_host}"
        raise NotImplementedError(message)
    if kind is TORCH and dtype == "bfloat16":
        value = value.double()
    return cast("HostKind", kind).view(value), dtype


def _first(values: Floats, bad: NDArray[np.bool_]) -> tuple[float, str]:
    """Find the first bad number, and say where it is."""
    index = tuple(int(each) for each in np.argwhere(bad)[0])
    where = f" at index {index[0] if len(index) == 1 else index}" if index else ""
    return float(values[index]), where
