"""What `_generic` asks of its arguments, in the words of the other routes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify import _api, _arrays, _tokens
from draftverify._kinds import JAX, NUMPY, TORCH, type_name
from draftverify._namespaces import Operations, is_namespace_array, library, operations

_BOTH = "draft_probs and target_probs"
_IDS = "draft_token_ids"


class Pair(NamedTuple):
    """Rows of both models, of one library, dtype, device and shape."""

    library: str
    lib: Operations
    dtype: str
    draft: Any
    target: Any

    @property
    def wide(self) -> str:
        """The type of differences and quotients."""
        return "float64" if self.dtype == "float64" else "float32"


class Ids(NamedTuple):
    """One id a row, on the device of the rows."""

    # Within the vocabulary; 0 in place of one that is not.
    places: Any
    # Which are not, where that is not known on the host.
    outside: Any
    # As they were given.
    given: Any


def pair(draft_probs: Any, target_probs: Any, expected: str, ndim: int) -> Pair:
    """Look at the rows of both models: their kinds, dtypes, devices and shapes."""
    both = {"draft_probs": draft_probs, "target_probs": target_probs}
    libraries = [library(name, array) for name, array in both.items()]
    if libraries[0] != libraries[1] or "list" in libraries:
        cure = "convert one of them"
        if "list" in libraries:
            cure = "convert the list to an array of the same dtype"
        found = " and ".join(map(type_name, both.values()))
        message = f"{_BOTH}: expected arrays of one library, got {found}; {cure}"
        raise TypeError(message)
    libs = [operations(array) for array in both.values()]
    dtypes = [lib.dtype(array) for lib, array in zip(libs, both.values(), strict=True)]
    _arrays.expect_dtypes(_BOTH, dtypes)
    lib = libs[0]
    if lib.device != libs[1].device:
        message = (
            f"{_BOTH}: expected one device, got {lib.device} and {libs[1].device}; move one of them"
        )
        raise ValueError(message)
    shapes = tuple(np.broadcast_to(False, tuple(array.shape)) for array in both.values())
    # The same words as on the CPU: only the shapes are looked at.
    _api.expect_shapes(_arrays.Rows(NUMPY, dtypes[0], lib.device, shapes), expected, ndim)
    return Pair(libraries[0], lib, dtypes[0], *map(lib.plain, both.values()))


def token(drafted_token: Any, vocabulary: int) -> int:
    """Take the id of a single step."""
    index = _tokens.as_index("drafted_token", drafted_token)
    _tokens.within("drafted_token", index, vocabulary)
    return index


def ids(rows: Pair, token_ids: Any) -> Ids:
    """Take one id a row. Those that are on a device of the rows' library are not looked at."""
    lib, (count, vocabulary) = rows.lib, rows.draft.shape
    if _away(rows, token_ids):
        theirs = library(_IDS, token_ids)
        there = operations(token_ids)
        _tokens.expect_integers(_IDS, there.dtype(token_ids), tuple(token_ids.shape), count)
        if theirs == rows.library:
            places = lib.cast(lib.move(token_ids), lib.index)
            outside = (places < 0) | (places >= vocabulary)
            places = lib.where(outside, lib.fill((), 0, lib.index), places)
            return Ids(places, outside, token_ids)
        token_ids = there.host(token_ids)
    host = _tokens.as_indices(token_ids, count, vocabulary)
    within_vocabulary(rows, Ids(None, None, host))
    return Ids(lib.indices(host), None, host)


def _away(rows: Pair, token_ids: Any) -> bool:
    """Whether NumPy may not be able to see the ids."""
    if TORCH.owns(token_ids):
        elsewhere: bool = token_ids.device.type != "cpu"
        return elsewhere and rows.library == TORCH.name and TORCH.refusal(token_ids) is None
    return is_namespace_array(token_ids) or (rows.library == JAX.name and JAX.owns(token_ids))


def within_vocabulary(rows: Pair, given: Ids) -> NDArray[np.int64]:
    """Copy the ids to the host; refuse the first that is outside the vocabulary."""
    count, vocabulary = rows.draft.shape
    on_host = isinstance(given.given, np.ndarray)
    host = given.given if on_host else rows.lib.host(given.given)
    return _tokens.as_possible(host, count, vocabulary)


def output(rows: Pair, out: Any, inputs: dict[str, Any]) -> None:
    """Look at whether `out` can take the residuals of `rows`."""
    if library("out", out) != rows.library:
        message = (
            f"out: expected an array of {rows.library} as the rows are, got {type_name(out)}; pass "
            f"such an array"
        )
        raise TypeError(message)
    lib = operations(out)
    if lib.dtype(out) != rows.dtype:
        message = (
            f"out: expected dtype {rows.dtype} as the rows have, got {lib.dtype(out)}; pass an "
            f"array of it"
        )
        raise TypeError(message)
    if lib.device != rows.lib.device:
        message = (
            f"out: expected device {rows.lib.device} as the rows are on, got {lib.device}; pass "
            f"one there"
        )
        raise ValueError(message)
    for kind in (TORCH, JAX):
        reason = kind.unwritable(out) if kind.owns(out) else None
        if reason is not None:
            message = f"out: expected an array that may be written to, got {reason}"
            raise (TypeError if kind.immutable else ValueError)(message)
    if tuple(out.shape) != tuple(rows.draft.shape):
        message = (
            f"out: expected shape {tuple(rows.draft.shape)} as the rows have, got "
            f"{tuple(out.shape)}; pass an array of it"
        )
        raise ValueError(message)
    if _overlaps_itself(out):
        message = "out: expected entries that share no memory, got an expanded array; pass a copy"
        raise ValueError(message)
    for name, array in inputs.items():
        if out is array or _share(out, array):
            message = (
                f"out: expected memory of its own, got an array that overlaps {name}; pass another"
            )
            raise ValueError(message)


# The arrays that `_places` makes of tensors have no memory that could be read, as a debugger or a
# traceback with values would. They stay in these two functions, which raise nothing.


def _overlaps_itself(out: Any) -> bool:
    """Whether two entries share memory, as far as that can be seen."""
    written = _places(out)
    return written is not None and _arrays.overlaps_itself(written)


def _share(out: Any, array: Any) -> bool:
    """Whether an array shares memory with `out`, as far as that can be seen."""
    if TORCH.owns(out):
        if not TORCH.owns(array) or _storage(out) != _storage(array) or not _storage(out)[1]:
            return False  # an address of 0 is none, as that of an empty tensor
    elif TORCH.owns(array):
        return False
    written, read = _places(out), _places(array)
    return written is not None and read is not None and _arrays.overlap(written, read)


def _storage(tensor: Any) -> tuple[object, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


class _Addresses:
    """Where a Torch tensor's entries are in its storage, to be compared and not read."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            # NumPy takes address 0 for none.
            "data": (1 + tensor.storage_offset() * size, False),
        }


def _places(array: Any) -> NDArray[Any] | None:
    """See where the entries of an array are, if that can be told without a copy."""
    if TORCH.owns(array):
        return np.asarray(_Addresses(array))
    if isinstance(array, np.ndarray):
        return array
    try:
        return np.from_dlpack(array) if array.__dlpack_device__() == (1, 0) else None
    except Exception:  # of any library: it has no such memory
        return None
