"""What counts as a token: an integer of any make, within the vocabulary, possible for the draft."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftverify import speculative_decode_step
from kinds import Kind, assert_same_bits, need, refused

# Typed as taking anything, since most calls here are wrong on purpose.
step: Callable[..., Any] = speculative_decode_step
DRAFT, TARGET = [0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.0, 0.5]


class Token(int):
    """An integer of a user's own class."""


class Ids(IntEnum):
    END = 1


class Indexable:
    def __index__(self) -> int:
        return 1


NAMES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def tokens(library: str) -> list[Any]:
    """Make the integer 1 in every way."""
    module = need(library)
    if library == "builtins":
        return [1, Token(1), Ids.END, Indexable()]
    if library == "torch":
        return [module.tensor(1, dtype=getattr(module, name)) for name in NAMES]
    if library == "jax.numpy":
        return [module.array(1, name) for name in NAMES if "64" not in name]
    dtypes = [np.dtype(name) for name in NAMES]
    zero_d = [np.array(1, dtype) for dtype in (*dtypes, *(d.newbyteorder() for d in dtypes))]
    return [*zero_d, *(dtype.type(1) for dtype in dtypes)]


def no_tokens(library: str) -> list[Any]:
    module = need(library)
    if library == "builtins":
        plain = [True, False, 1.0, 1j, "1", b"1", None, [1], (1,), {1}, int, ...]
        return [*plain, Fraction(1), Decimal(1), object()]
    if library == "torch":
        arrays = [module.tensor(value) for value in (True, 1.0, 1j, [1], [[1]], [0, 1])]
        return [*arrays, module.tensor(1, device="meta"), module.tensor([1]).to_sparse()]
    if library == "jax.numpy":
        return [module.array(value) for value in (True, 1.0, 1j, [1], [0, 1])]
    arrays = [np.array(value) for value in (True, 1.0, 1j, "1", [1], [[1]], [0, 1])]
    scalars = [np.True_, np.float32(1), np.float16(1), np.str_("1"), np.timedelta64(1, "s")]
    return [*arrays, *scalars, np.array(1, dtype=object), np.array([], int)]


LIBRARIES = pytest.mark.parametrize("library", ["builtins", "numpy", "torch", "jax.numpy"])


@LIBRARIES
def test_integers(kind: Kind, library: str) -> None:
    draft, target = kind.make(DRAFT), kind.make(TARGET)
    expected = kind.plain(step(draft, target, 0)["residual"])
    for token in tokens(library):
        answer = step(draft, target, token)
        assert answer["accept_prob"] == 1.0
        assert type(answer["accept_prob"]) is float
        assert_same_bits(kind.plain(answer["residual"]), expected)


@LIBRARIES
def test_all_else(kind: Kind, library: str) -> None:
    draft, target = kind.make(DRAFT), kind.make(TARGET)
    for token in no_tokens(library):
        refused(TypeError, step, draft, target, token, says=("drafted_token", "an integer"))


def test_a_bool_is_called_a_bool() -> None:
    for token in (True, np.True_, np.array(False)):
        refused(TypeError, step, DRAFT, TARGET, token, says=("drafted_token", "got a bool"))


def test_an_array_is_called_by_its_shape() -> None:
    for token, shape in ((np.array([1]), "(1,)"), (np.array([[1]]), "(1, 1)")):
        refused(TypeError, step, DRAFT, TARGET, token, says=("drafted_token", f"shape {shape}"))


def test_masked_integers() -> None:
    """What lies under a mask is no number, and a mask that is off today may be on tomorrow."""
    masked: list[Any] = [np.ma.masked, np.ma.array(1, mask=True), np.ma.array(1)]
    for token in masked:
        refused(TypeError, step, DRAFT, TARGET, token, says=("drafted_token", "masked"))


@pytest.mark.parametrize(
    "token", [-1, -4, 4, 5, 2**31, 2**32, 2**40, -(2**63), 2**63 - 1, 2**63, 2**64 + 1, -(10**30)]
)
def test_outside_the_vocabulary(kind: Kind, token: int) -> None:
    draft, target = kind.make(DRAFT), kind.make(TARGET)
    says = ("drafted_token", "from 0 to 3", "4 entries", f"got {token};")
    refused(ValueError, step, draft, target, token, says=says)


@pytest.mark.parametrize("library", ["builtins", "numpy", "torch", "jax.numpy"])
def test_outside_the_vocabulary_in_other_dtypes(library: str) -> None:
    module = need(library)
    outside: dict[str, Callable[[], list[Any]]] = {
        "builtins": lambda: [Token(-1), Token(2**63)],
        "numpy": lambda: [np.int8(-1), np.uint64(2**63), np.array(2**64 - 1, np.uint64)],
        "torch": lambda: [module.tensor(-1), module.tensor(2**40), module.tensor(4)],
        "jax.numpy": lambda: [module.array(-1), module.array(4)],
    }
    for token in outside[library]():
        says = ("drafted_token", "from 0 to 3", f"got {int(token)};")
        refused(ValueError, step, DRAFT, TARGET, token, says=says)


def test_what_the_draft_cannot_propose(kind: Kind) -> None:
    draft, target = kind.make(DRAFT), kind.make(TARGET)
    says = ("drafted_token", "got 3", "draft_probs[3] == 0", "4 entries")
    refused(ValueError, step, draft, target, 3, says=says)
