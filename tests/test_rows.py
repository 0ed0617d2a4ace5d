"""`accept_residual` and `accept_probs`: rows, ids, `check`, and which row the errors name.

That every row has the bits of the single call is shown beside the order of the sum; `out` has a
file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from draftverify import AcceptResidual, accept_probs, accept_residual, verify_chain
from kinds import DTYPES, Kind, assert_same_bits, limits, need, random_rows, refused

# Typed as taking anything, since many calls here are wrong on purpose.
residuals: Callable[..., Any] = accept_residual
probs: Callable[..., Any] = accept_probs
CALLS = pytest.mark.parametrize("call", [residuals, probs], ids=["accept_residual", "accept_probs"])
LIBRARIES = pytest.mark.parametrize("library", ["builtins", "numpy", "torch", "jax.numpy"])
BOTH = "draft_probs and target_probs"
DRAFT = [[0.5, 0.25, 0.25, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]]
TARGET = [[0.25, 0.25, 0.0, 0.5], [0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]]
IDS = [0, 2, 3]


def pair(kind: Kind | None = None) -> tuple[Any, Any]:
    if kind is None:
        return np.array(DRAFT, np.float32), np.array(TARGET, np.float32)
    return kind.make(DRAFT), kind.make(TARGET)


# What is answered.


def test_the_result(kind: Kind) -> None:
    draft, target = pair(kind)
    before = [kind.library.contents(rows) for rows in (draft, target)]
    found = residuals(draft, target, IDS)
    again = residuals(draft_probs=draft, target_probs=target, draft_token_ids=IDS)

    assert type(found) is AcceptResidual
    assert found._fields == ("accept_prob", "residual", "mass")
    accept_prob, residual, mass = found
    assert residual is found.residual
    numbers = [kind.library.plain(part) for part in (accept_prob, mass, probs(draft, target, IDS))]
    for part, expected in zip(numbers, ([0.5, 1, 0], [0.5, 0, 0.5], [0.5, 1, 0]), strict=True):
        assert part.dtype == np.float64
        assert part.tolist() == expected
        assert part.flags.c_contiguous
        assert part.flags.writeable
    plain = kind.plain(residual)
    assert plain.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0.5, 0.5, 0]]
    assert plain.flags.c_contiguous
    assert plain.flags.writeable
    plain[:] = 7.0
    assert kind.plain(again.residual).max() == 1.0
    assert [kind.library.contents(rows) for rows in (draft, target)] == before


def test_no_rows(kind: Kind) -> None:
    if kind.library.name == "list":
        # There is no way to write down the vocabulary of no lists.
        refused(ValueError, residuals, [], [], [], says=(BOTH, "(N, V)", "(0,) and (0,)"))
        return
    none = kind.make(np.empty((0, 5)))
    no_ids: list[Any] = [[], np.empty(0, np.int32), np.empty(0, np.uint64)]
    for ids in no_ids:
        found = residuals(none, none, ids)
        assert kind.plain(found.residual).shape == (0, 5)
        for part in (found.accept_prob, found.mass, probs(none, none, ids)):
            assert kind.library.plain(part).shape == (0,)


def test_one_row_of_one_entry(kind: Kind) -> None:
    one = kind.make([[1.0]])
    found = residuals(one, one, [0])
    assert kind.plain(found.residual).tolist() == [[0.0]]
    parts = (found.accept_prob, found.mass, probs(one, one, [0]))
    assert [kind.library.plain(part).tolist() for part in parts] == [[1.0], [0.0], [1.0]]


def test_options_are_keywords_only() -> None:
    draft, target = pair()
    for options in ((draft.copy(),), (None, True)):
        with pytest.raises(TypeError, match="positional"):
            residuals(draft, target, IDS, *options)


def test_accept_probs_reads_two_entries_a_row(kind: Kind) -> None:
    draft, target = np.full((2, 3, 4), np.nan)
    for row, token in enumerate(IDS):
        draft[row, token], target[row, token] = DRAFT[row][token], TARGET[row][token]
    found = probs(kind.make(draft), kind.make(target), IDS)
    assert kind.library.plain(found).tolist() == [0.5, 1.0, 0.0]


# Ids.


@LIBRARIES
def test_ids_of_any_integer_type(kind: Kind, library: str) -> None:
    module = need(library)
    names = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    ids: list[Any]
    if library == "builtins":
        ids = [IDS, tuple(IDS), [np.int8(0), np.uint64(2), np.array(3)]]
    elif library == "torch":
        ids = [module.tensor(IDS, dtype=getattr(module, name)) for name in names]
        ids += [module.tensor([IDS, IDS]).T[:, 0], [*module.tensor(IDS)]]
    elif library == "jax.numpy":
        ids = [module.array(IDS, name) for name in names if "64" not in name]
    else:
        ids = [np.array(IDS, name) for name in names]
        ids += [np.array(IDS, np.dtype(name).newbyteorder()) for name in names]
        ids += [np.array(IDS[::-1])[::-1], np.repeat(IDS, 3)[::3]]
        ids[0].flags.writeable = False
    expected = residuals(*pair(kind), IDS)
    for one in ids:
        before = repr(one)
        found = residuals(*pair(kind), one)
        assert_same_bits(kind.plain(found.residual), kind.plain(expected.residual))
        assert kind.library.plain(found.accept_prob).tolist() == [0.5, 1.0, 0.0]
        assert kind.library.plain(probs(*pair(kind), one)).tolist() == [0.5, 1.0, 0.0]
        assert repr(one) == before


def no_ids(library: str) -> list[Any]:
    """Make what cannot stand for several integers."""
    module = need(library)
    if library == "builtins":
        return [None, "023", 0.5, {0, 2, 3}, [0, 2, 3.0], b"023"]
    if library == "numpy":
        masked = np.ma.array(np.array(IDS), mask=np.array([False, False, True]))
        return [np.array(IDS, dtype) for dtype in (bool, float, complex, "U1")] + [masked]
    integers = module.tensor(IDS) if library == "torch" else module.array(IDS)
    others = [integers > 1, integers / 1]
    return others + ([integers.to_sparse(), integers.to("meta")] if library == "torch" else [])


@CALLS
@LIBRARIES
def test_ids_that_are_no_integers(call: Callable[..., Any], library: str) -> None:
    for ids in no_ids(library):
        refused(TypeError, call, *pair(), ids, says=("draft_token_ids",))


@CALLS
@pytest.mark.parametrize(
    "bad",
    [True, np.True_, 1.0, "1", None, [1], np.array([1]), np.ma.array(1)],
    ids=lambda bad: type(bad).__name__,
)
def test_entries_of_lists_that_are_no_integers(call: Callable[..., Any], bad: object) -> None:
    refused(TypeError, call, *pair(), [0, bad, 3], says=("draft_token_ids", "in row 1"))


@CALLS
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (1, 3), (0,)], ids=str)
def test_shapes_of_ids(call: Callable[..., Any], shape: tuple[int, ...]) -> None:
    says = ("draft_token_ids", "(3,)", f"got {shape}")
    refused(ValueError, call, *pair(), np.zeros(shape, np.int64), says=says)
    if len(shape) == 1:
        refused(ValueError, call, *pair(), [0] * shape[0], says=says)


@CALLS
@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63), 2**63, 2**64 - 1, 2**64, -(10**30)])
def test_ids_outside_the_vocabulary(call: Callable[..., Any], bad: int) -> None:
    says = ("draft_token_ids", "from 0 to 3", "4 entries", f"got {bad} in row 1;")
    # Of two bad ids the first is named. NumPy would make floats of the second list.
    refused(ValueError, call, *pair(), [0, bad, bad], says=says)
    refused(ValueError, call, *pair(), [0, bad, -1], says=says)
    if -(2**63) <= bad < 2**64:
        ids = np.array([0, bad, 3], np.uint64 if bad >= 2**63 else np.int64)
        refused(ValueError, call, *pair(), ids, says=says)


# Errors name the row: the lowest one, all ids before any entries.


@CALLS
def test_rows_in_errors(call: Callable[..., Any], dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (40, 1000))
    wrong = ids.copy()
    wrong[[17, 23]] = -1, 1000
    refused(ValueError, call, draft, target, wrong, says=("draft_token_ids", "got -1 in row 17;"))
    target[5, ids[5]] = np.nan
    refused(ValueError, call, draft, target, wrong, says=("draft_token_ids", "got -1 in row 17;"))
    spoiled = draft.copy()
    spoiled[30, ids[30]] = 0.0
    impossible = f"got {ids[30]} in row 30 with draft_probs[{ids[30]}] == 0"
    refused(ValueError, call, spoiled, target, ids, says=("draft_token_ids", impossible))
    draft[9, ids[9]] = -1.0
    nan = f"got nan at index {ids[5]} in row 5;"
    refused(ValueError, call, draft, target, ids, says=("target_probs", nan))
    draft[5, ids[5]] = np.inf
    inf = f"got inf at index {ids[5]} in row 5;"
    refused(ValueError, call, draft, target, ids, says=("draft_probs", inf))


@CALLS
def test_shapes_of_rows(call: Callable[..., Any], kind: Kind) -> None:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]
    shapes = [((3, 4), (3, 5)), ((3, 4), (2, 4)), ((4,), (4,)), ((3, 0), (3, 0)), ((1, 4), (3, 4))]
    if kind.library.name != "list":  # in which a third level would be entries that are no numbers
        shapes.append(((2, 3, 4), (2, 3, 4)))
    for first, second in shapes:
        rows = kind.make(np.full(first, 0.25)), kind.make(np.full(second, 0.25))
        says = (BOTH, "(N, V)", f"got {first} and {second};")
        refused(ValueError, call, *rows, [0] * first[0], says=says)


# `check=False`.


def test_unchecked_bad_rows_answer_nan(dtype: str) -> None:
    """Whatever is wrong with a row, its neighbours are as they were."""
    size = 3000
    good = random_rows(dtype, (40, size))
    expected = residuals(*good)
    draft, target, ids = (part.copy() for part in good)
    largest = limits(DTYPES[dtype]).max
    bad = {1: (draft, 0, np.nan), 2: (target, size - 1, np.nan), 5: (draft, 99, -1.0)}
    bad |= {8: (target, 256, np.inf), 13: (draft, ids[13], np.nan), 21: (target, 7, -np.inf)}
    bad |= {38: (draft, ids[38], 0.0)}
    for row, (rows, index, value) in bad.items():
        rows[row, index] = value
    if dtype != "float16":
        bad[39] = (target, 0, largest)
        target[39, :3] = largest  # a mass that overflows
    found = residuals(draft, target, ids, check=False)
    out = residuals(draft, target, ids, check=False, out=np.zeros_like(draft)).residual
    for row in range(40):
        if row in bad:
            assert np.isnan(found.residual[row]).all()
            assert np.isnan(out[row]).all()
            assert np.isnan([found.accept_prob[row], found.mass[row]]).all()
        else:
            assert_same_bits(found.residual[row], expected.residual[row])
            assert_same_bits(out[row], expected.residual[row])
            assert found.accept_prob[row] == expected.accept_prob[row]
            assert found.mass[row] == expected.mass[row]
    with pytest.raises(ValueError, match=r"draft_token_ids.* in row 38 "):
        residuals(draft, target, ids, check=True)


def test_unchecked_ids_are_checked(kind: Kind) -> None:
    for bad in (-1, 4, 2**63):
        with pytest.raises(ValueError, match=rf"draft_token_ids.*{bad}"):
            residuals(*pair(kind), [0, bad, 3], check=False)
    with pytest.raises(TypeError, match="draft_token_ids"):
        residuals(*pair(kind), [0, True, 3], check=False)
    found = residuals(*pair(kind), [3, 2, 3], check=False)  # the draft cannot propose the first
    assert np.isnan(kind.library.plain(found.accept_prob)).tolist() == [True, False, False]


def test_more_entries_than_32_bits_count() -> None:
    """Rows that share their memory: 2^33 entries, every row the same but for its token."""
    rows, vocabulary = 2**17, 2**16
    draft = np.linspace(1.0, 2.0, vocabulary, dtype=np.float32)
    target = draft[::-1].copy()
    ids = np.arange(rows) * 40_503 % vocabulary
    shape = rows, vocabulary
    accepted = accept_probs(np.broadcast_to(draft, shape), np.broadcast_to(target, shape), ids)
    quotients = target[ids].astype(np.float64) / draft[ids].astype(np.float64)
    np.testing.assert_array_equal(accepted, np.minimum(1.0, quotients))


@pytest.mark.parametrize("flat", [False, True])
def test_a_chain_of_more_entries_than_32_bits_count(flat: bool) -> None:
    length, vocabulary = 1100, 2**22
    row = np.zeros(vocabulary, np.float32)
    row[[7, vocabulary - 1]] = 0.5
    draft, target = (np.broadcast_to(row, (length + more, vocabulary)) for more in (0, 1))
    ids, uniforms = np.full(length, vocabulary - 1), np.full(length + 1, 0.75)
    if flat:
        verdict = verify_chain(draft, target, ids, uniforms, indptr=[0, length])
    else:
        verdict = verify_chain(draft[None], target[None], ids[None], uniforms[None])
    assert verdict.num_accepted.tolist() == [length]
    assert verdict.token_ids[0, -1] == vocabulary - 1


@pytest.mark.parametrize("listed", [False, True])
def test_bad_entries_are_refused_however_the_ids_come(listed: bool) -> None:
    draft, target, ids = random_rows("float32", (3, 20))
    target[1, 7] = np.nan
    call: Any = ids.tolist() if listed else ids
    for checked in (residuals, partial(residuals, check=True)):
        refused(ValueError, checked, draft, target, call, says=("target_probs", "nan", "row 1"))
    assert np.isnan(residuals(draft, target, call, check=False).mass).tolist() == [0, 1, 0]
