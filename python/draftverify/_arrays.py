"""Rows that belong together: of one library, dtype and device, seen as NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import filterfalse
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from draftverify._device_kinds import DLPACK, exported
from draftverify._elsewhere import Backend, backend_of, backend_of_namespace
from draftverify._kinds import (
    NUMPY,
    TORCH,
    HostKind,
    is_known,
    kind_of,
    memory_of,
    plain_view,
    type_name,
)

_Seen = TypeVar("_Seen")

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Those of native byte order that NumPy has itself.
_NUMPY_DTYPES = {np.dtype(name): name for name in ("float16", "float32", "float64")}


class Rows(NamedTuple):
    """The rows of both models, or of the target alone, which belong together.

    Where there is a backend, `views` are the arrays themselves, and what wraps is no use; without
    views nothing is known of them, and the backend looks at them.
    """

    kind: HostKind
    dtype: str
    device: str
    views: tuple[NDArray[Any], ...]
    backend: Backend | None = None

    @property
    def draft(self) -> NDArray[Any]:
        """The draft's rows, where there are any."""
        return self.views[0]

    @property
    def target(self) -> NDArray[Any]:
        """The target's rows."""
        return self.views[-1]

    @property
    def bfloat16(self) -> bool:
        """Whether 16-bit integers in the views hold the bits of bfloat16."""
        return self.dtype == "bfloat16"


def rows_of(arrays: dict[str, object], function: str | None = None) -> Rows:
    """See one or two arrays, called by their names, as NumPy arrays of one dtype.

    Kinds are checked before dtypes and these before devices. Arrays that are elsewhere stay as they
    are, for a backend to compute with, unless `function` has a kernel for the CPU alone.
    """
    plain = _plain(*arrays.values())
    if plain is not None:
        return plain
    foreign = None if function else backend_of_namespace(filterfalse(is_known, arrays.values()))
    if foreign is not None:
        return Rows(NUMPY, "", "", (), foreign)
    names = " and ".join(arrays)
    kinds = [kind_of(name, array) for name, array in arrays.items()]
    kind = kinds[0]
    if any(other is not kind for other in kinds):
        found = " and ".join(map(type_name, arrays.values()))
        cure = "convert one of them"
        if "list" in {kind.name for kind in kinds}:
            cure = "convert the list to an array of the same dtype"
        message = f"{names}: expected arrays of one library, got {found}; {cure}"
        raise TypeError(message)
    dtypes = [_seen(name, kind.dtype, array) for name, array in arrays.items()]
    expect_dtypes(names, dtypes)
    devices = [kind.device(array) for array in arrays.values()]
    if len(set(devices)) > 1:
        message = f"{names}: expected one device, got {' and '.join(devices)}; move one of them"
        raise ValueError(message)
    if devices[0].partition(":")[0] != "cpu":
        if function is not None:
            message = (
                f"{names}: expected arrays on the CPU, got {devices[0]}, for which {function} has "
                f"no kernel yet; move them with {kind.to_host}"
            )
            raise NotImplementedError(message)
        backend = backend_of(names, devices[0], dtypes[0], kind.to_host)
        # What speaks DLPack alone has no shape to ask for.
        where_they_are: tuple[Any, ...] = tuple(
            exported(array) if kind is DLPACK else array for array in arrays.values()
        )
        return Rows(cast("HostKind", kind), dtypes[0], devices[0], where_they_are, backend)
    host = cast("HostKind", kind)
    views = tuple(_seen(name, host.view, array) for name, array in arrays.items())
    return Rows(host, dtypes[0], devices[0], views)


def expect_dtypes(names: str, dtypes: list[str]) -> None:
    """Expect one dtype, and one of those that probabilities can have."""
    if len(set(dtypes)) == 1 and dtypes[0] in DTYPES:
        return
    both = "both" if len(dtypes) > 1 else "it"
    if len(set(dtypes)) == 1:
        expected, got = f"one of the dtypes {', '.join(DTYPES)}", dtypes[0]
    else:
        expected, got = f"one dtype for both, out of {', '.join(DTYPES)}", " and ".join(dtypes)
    message = f"{names}: expected {expected}, got {got}; convert {both} to one of these"
    raise TypeError(message)


def _seen(name: str, look: Callable[[object], _Seen], array: object) -> _Seen:
    """Look at an array; name it in an error."""
    try:
        return look(array)
    except (TypeError, ValueError) as error:
        message = f"{name}: {error}"
        raise type(error)(message) from None


def pair(draft_probs: object, target_probs: object, function: str | None = None) -> Rows:
    """See the rows of both models as NumPy arrays of one dtype."""
    return rows_of({"draft_probs": draft_probs, "target_probs": target_probs}, function)


def output(out: object, rows: Rows, inputs: dict[str, object]) -> NDArray[Any]:
    """See `out` as a NumPy array that can take the residuals of `rows`; on a GPU, its addresses.

    It may share no memory with the inputs, named as they are.
    """
    library = "NumPy" if rows.kind.name == "list" else rows.kind.name
    kind = kind_of("out", out, f"an array of {library} as the rows are")
    if kind.name != library:
        message = (
            f"out: expected an array of {library} as the rows are, got {type_name(out)}; pass such "
            f"an array"
        )
        raise TypeError(message)
    if kind.dtype(out) != rows.dtype:
        message = (
            f"out: expected dtype {rows.dtype} as the rows have, got {kind.dtype(out)}; pass an "
            f"array of it"
        )
        raise TypeError(message)
    if kind.device(out) != rows.device:
        message = (
            f"out: expected device {rows.device} as the rows are on, got {kind.device(out)}; "
            f"pass one there"
        )
        raise ValueError(message)
    reason = kind.unwritable(out)
    if reason is not None:
        message = f"out: expected an array that may be written to, got {reason}"
        raise (TypeError if kind.immutable else ValueError)(message)
    view = memory_of(out) if rows.backend else cast("HostKind", kind).view(out)
    if view.shape != tuple(rows.draft.shape):
        message = (
            f"out: expected shape {tuple(rows.draft.shape)} as the rows have, got {view.shape}; "
            f"pass an array of it"
        )
        raise ValueError(message)
    if overlaps_itself(view):
        message = "out: expected entries that share no memory, got an expanded array; pass a copy"
        raise ValueError(message)
    for name, array in inputs.items():
        if overlap(view, memory_of(array)):
            message = (
                f"out: expected memory of its own, got an array that overlaps {name}; pass another"
            )
            raise ValueError(message)
    return view


def _plain(first: Any, *others: Any) -> Rows | None:
    """See plain arrays of one library and dtype, in a third of the time that others take.

    None for anything else: then it is looked at more closely.
    """
    cls, numpy = type(first), type(first) is np.ndarray
    view = first if numpy else plain_view(first)
    if view is None:
        return None
    dtype = first.dtype
    name = (_NUMPY_DTYPES if numpy else _torch_dtypes()).get(dtype)
    views = [view]
    for other in others:
        if type(other) is not cls or other.dtype != dtype:
            return None
        view = other if numpy else plain_view(other)
        if view is None:
            return None
        views.append(view)
    return None if name is None else Rows(NUMPY if numpy else TORCH, name, "cpu", tuple(views))


@cache
def _torch_dtypes() -> dict[object, str]:
    return {getattr(sys.modules["torch"], name): name for name in DTYPES}


def overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays share a byte; also where finding out would take too long."""
    try:
        # NumPy's stub knows two special values of `max_work`, its documentation any number.
        return np.shares_memory(one, other, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether two entries of an array may share a byte.

    Going from the shortest stride to the longest, each has to step over all that lies within.
    """
    if array.size == 0:
        return False
    within = array.itemsize
    strides = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, length in sorted(pair for pair in strides if pair[1] > 1):
        if stride < within:
            return True
        within += stride * (length - 1)
    return False
