"""The drafted tokens of several requests: how they lie in memory, and what goes with them."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify import _tokens
from draftverify._arrays import Rows
from draftverify._kinds import type_name

METHODS = ("standard", "block", "greedy")
_LARGEST_ID = np.iinfo(np.int32).max


class Numbers(NamedTuple):
    """The arguments that are numbers, as packed arrays of known dtypes, their shapes unchecked."""

    token_ids: NDArray[np.int64]
    uniforms: NDArray[np.float32] | NDArray[np.float64] | None
    lengths: NDArray[np.int64] | None
    indptr: NDArray[np.int64] | None
    bonus_token_ids: NDArray[np.int64] | None


class Requests(NamedTuple):
    """Flat arrays, and how many drafted tokens of each request are in them.

    With a `width` every request has as many places, and what is behind its tokens is not read;
    without one the requests follow each other. Without `lengths` the tokens end where -1 begins.
    """

    number: int
    width: int | None
    lengths: NDArray[np.int64] | None
    token_ids: NDArray[np.int64]
    uniforms: NDArray[np.float32] | NDArray[np.float64] | None
    bonus_token_ids: NDArray[np.int64] | None


_PLAIN = {np.ndarray, int, float, str, bool, type(None)}


def are_plain(*arguments: object) -> bool:
    """Whether looking at these arguments runs no code of the caller's."""
    others = set(map(type, arguments)) - _PLAIN
    torch = sys.modules.get("torch")
    return not others or (torch is not None and others == {torch.Tensor})


def method_of(method: object) -> str:
    """Take the name of a method. Nothing of a subclass of str runs."""
    if not issubclass(type(method), str):
        message = (
            f"method: expected one of {', '.join(METHODS)}, got {type_name(method)}; pass its name"
        )
        raise TypeError(message)
    name = str.__str__(method)
    if name not in METHODS:
        message = f"method: expected one of {', '.join(METHODS)}, got {name!r}; pass one of them"
        raise ValueError(message)
    return name


def numbers_of(  # noqa: PLR0913, PLR0917 - the arguments of the public functions
    method: str,
    draft_token_ids: Any,
    uniforms: Any,
    lengths: Any,
    indptr: Any,
    bonus_token_ids: Any,
    *,
    greedy: bool = False,
) -> Numbers:
    """Take the arguments that are numbers. `greedy` says that no request needs uniforms."""
    if lengths is not None and indptr is not None:
        message = (
            "lengths and indptr: expected one of them, got both; pass lengths with padded rows "
            "(B, K, V), indptr with flat rows (T, V)"
        )
        raise ValueError(message)
    if uniforms is None and not greedy:
        message = f'uniforms: expected numbers for method="{method}", got None; pass an array'
        raise TypeError(message)
    return Numbers(
        _tokens.as_integers("draft_token_ids", draft_token_ids),
        None if uniforms is None else _tokens.as_uniforms(uniforms),
        None if lengths is None else _tokens.as_integers("lengths", lengths),
        None if indptr is None else _tokens.as_integers("indptr", indptr),
        None
        if bonus_token_ids is None
        else _tokens.as_integers("bonus_token_ids", bonus_token_ids),
    )


def requests_of(numbers: Numbers, rows: Rows, names: tuple[str, ...]) -> Requests:
    """Check that all shapes fit, and find where each request's tokens are.

    `names` are those of the rows' arguments, the target's last.
    """
    padded = numbers.indptr is None
    ids = numbers.token_ids
    more = numbers.bonus_token_ids is None
    expected_ndim = 2 if padded else 1
    if ids.ndim != expected_ndim:
        layout = "(B, K) of padded rows" if padded else "(T,) of flat rows"
        cure = "pass indptr with ids of shape (T,)" if padded else "leave indptr out, or reshape"
        message = f"draft_token_ids: expected shape {layout}, got {ids.shape}; {cure}"
        raise ValueError(message)
    vocabulary = _vocabulary(names[-1], rows.views[-1], expected_ndim + 1)
    if numbers.indptr is None:
        requests, width = ids.shape
        leading: tuple[int, ...] = (requests, width)
        extended: tuple[int, ...] = (requests, width + 1)
        lengths = None
    else:
        lengths = _lengths_of(numbers.indptr, ids.shape[0])
        requests = lengths.shape[0]
        width = None
        leading, extended = ids.shape, (ids.shape[0] + requests,)
    _expect_shape(names[-1], rows.views[-1], (*(extended if more else leading), vocabulary))
    if len(names) > 1:
        _expect_shape(names[0], rows.views[0], (*leading, vocabulary))
    if numbers.uniforms is not None:
        _expect_shape("uniforms", numbers.uniforms, extended)
    if numbers.lengths is not None:
        lengths, longest = numbers.lengths, ids.shape[1]
        _expect_shape("lengths", lengths, (requests,))
        expected = f"numbers from 0 to {longest}, as draft_token_ids is wide"
        _expect_up_to("lengths", lengths, longest, expected, "count the drafted tokens")
    bonus = numbers.bonus_token_ids
    if bonus is not None:
        _expect_shape("bonus_token_ids", bonus, (requests,))
        expected, cure = "ids >= 0 of 32 bits", "pass the id that is to be emitted"
        _expect_up_to("bonus_token_ids", bonus, _LARGEST_ID, expected, cure)
    uniforms = None if numbers.uniforms is None else numbers.uniforms.reshape(-1)
    return Requests(requests, width, lengths, ids.reshape(-1), uniforms, bonus)


def _vocabulary(name: str, target: NDArray[Any], ndim: int) -> int:
    """Answer the number of entries of a row."""
    if target.ndim != ndim or not 0 < target.shape[-1] <= _LARGEST_ID:
        layout = "(B, K, V)" if ndim > 2 else "(T, V)"  # noqa: PLR2004 - as it says
        cure = "leave indptr out for padded rows" if ndim == 2 else "pass indptr for flat rows"  # noqa: PLR2004
        if target.ndim == ndim:
            cure = "pass rows over a vocabulary whose ids are int32"
        message = (
            f"{name}: expected rows like {layout} with V from 1 to {_LARGEST_ID}, got "
            f"{target.shape}; {cure}"
        )
        raise ValueError(message)
    return int(target.shape[-1])


def _expect_shape(name: str, array: NDArray[Any], expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        message = (
            f"{name}: expected shape {expected}, as draft_token_ids and the other arguments say, "
            f"got {array.shape}; {_cure(name)}"
        )
        raise ValueError(message)


def _cure(name: str) -> str:
    if name == "uniforms":
        return "pass one number for each drafted token and one more for each request"
    if name.startswith("target"):
        return (
            "pass a row for each drafted token and one for the bonus token, or bonus_token_ids and "
            "none for it"
        )
    return "pass one for each drafted token" if name.startswith("draft") else "pass one a request"


def _lengths_of(indptr: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    """Tell how many tokens each request has."""
    good = indptr.ndim == 1 and indptr.size > 0
    lengths: NDArray[np.int64] = np.diff(indptr) if good else indptr
    falls = good and (indptr[1:] < indptr[:-1]).any()
    if not good or indptr[0] != 0 or indptr[-1] != tokens or falls:
        shown = indptr.tolist() if indptr.size <= 8 else f"shape {indptr.shape}"  # noqa: PLR2004
        message = (
            f"indptr: expected shape (B + 1,), from 0 and never falling to the {tokens} drafted "
            f"tokens, got {shown}; put a 0 in front of running totals"
        )
        raise ValueError(message)
    return lengths


def _expect_up_to(
    name: str, numbers: NDArray[np.int64], largest: int, expected: str, cure: str
) -> None:
    """Expect a number from 0 to `largest` for every request."""
    for request, number in enumerate(numbers.tolist()):
        if not 0 <= number <= largest:
            message = f"{name}: expected {expected}, got {number} of request {request}; {cure}"
            raise ValueError(message)
