"""What is refused in an array's own library: in the words of the compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftverify import _generic, accept_probs, accept_residual, speculative_decode_step
from kinds import DTYPES, assert_same_bits, limits, need, random_rows, refused
from namespaces import HOMES, Home, strict, strict_plain

CASES = [(home, dtype) for home in HOMES for dtype in home.dtypes]
RUNS = pytest.mark.parametrize(("home", "dtype"), CASES, ids=str)
BOTH = "draft_probs and target_probs: "
step, probs = _generic.step, _generic.accept_probs


def rows(draft: Any, target: Any, ids: Any, out: Any = None, check: bool = True) -> Any:
    return _generic.accept_residual(draft, target, ids, out, check)


def error_of(call: Callable[..., Any], *arguments: Any) -> tuple[type[Exception], str]:
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments)
    return type(caught.value), str(caught.value)


def outcome_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """Take the answer, or the kind and the words of the error."""
    try:
        return call(*arguments)
    except ValueError as error:
        return ValueError, str(error)


def broken_rows(
    dtype: str, flushed: bool = False
) -> list[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
    """Make rows of which some cannot be answered, in each of the ways there are."""
    info = limits(DTYPES[dtype])
    bad = [np.nan, np.inf, -np.inf, -0.5, -1e-5, -3e4]
    if not flushed:  # where subnormal numbers count as 0, such an entry is none below it
        bad.append(-float(info.smallest_subnormal))
    broken = []
    for value in bad:
        for places in ([(0, 2, 5)], [(1, 1, 5)], [(1, 0, 8), (0, 3, 1)], [(1, 1, 8), (0, 1, 9)]):
            both, ids = np.full((2, 4, 300), 0.25, DTYPES[dtype]), np.array([5, 7, 0, 299])
            for which, row, entry in places:
                both[which, row, entry] = value
            broken.append((*both, ids))
    draft, target, ids = (array.copy() for array in broken[0])
    draft[:], target[:] = 0.25, float(info.max)
    if dtype != "float16":  # whose sums float32 has room for
        broken.append((draft, target, ids))
    for place, value in ((1, 0), (2, -0.0)):  # the first is named, and before any entry
        draft, target, ids = (array.copy() for array in broken[0])
        draft[place, ids[place]] = value
        broken.append((draft, target, ids))
    for token in (-1, 300, 2**31 - 1):
        draft, target, ids = (array.copy() for array in broken[0])
        draft[1, ids[1]] = 0
        ids[3] = token
        broken.append((draft, target, ids))
    return broken


@RUNS
def test_bad_rows(home: Home, dtype: str) -> None:
    for draft, target, ids in broken_rows(dtype, home.name == "jax"):
        there = home.array(draft), home.array(target)
        expected = error_of(accept_residual, draft, target, ids)
        assert error_of(rows, *there, ids) == expected
        for row in range(4):
            one = draft[row], target[row], int(ids[row])
            want = outcome_of(speculative_decode_step, *one)
            got = outcome_of(step, home.array(one[0]), home.array(one[1]), one[2])
            if isinstance(want, tuple):
                assert got == want
            else:
                assert_same_bits(home.plain(got["residual"]), want["residual"])
        if not 0 <= ids.min() <= ids.max() < 300:
            assert error_of(probs, *there, ids) == expected
            continue
        want, got = outcome_of(accept_probs, draft, target, ids), outcome_of(probs, *there, ids)
        if isinstance(want, tuple):
            assert got == want
        else:
            np.testing.assert_allclose(home.plain(got), want, rtol=2**-24)


@RUNS
def test_bad_rows_without_checks(home: Home, dtype: str) -> None:
    for draft, target, ids in broken_rows(dtype, home.name == "jax"):
        if not 0 <= ids.min() <= ids.max() < 300:
            assert error_of(rows, home.array(draft), home.array(target), ids)[0] is ValueError
            continue
        expected = accept_residual(draft, target, ids, check=False)
        found = rows(home.array(draft), home.array(target), ids, check=False)
        for got, want in zip(map(home.plain, found), expected, strict=True):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            good = ~np.isnan(want)
            np.testing.assert_allclose(
                got[good].astype(np.float64), want[good].astype(np.float64), rtol=2**-24, atol=0
            )


WAITS = ("__bool__", "__float__", "__int__", "__index__", "__array__", "__dlpack__")


def test_how_often_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target, ids = random_rows("float32", (3, 300))
    there = [strict(array, "device1") for array in (draft, target, ids)]
    waits: list[str] = []
    for name in WAITS:
        original = getattr(type(there[0]), name)

        def counted(array: Any, *arguments: Any, _name: str = name, _call: Any = original) -> Any:
            waits.append(_name)
            return _call(array, *arguments)

        monkeypatch.setattr(type(there[0]), name, counted)
    rows(there[0], there[1], there[2], check=False)
    rows(there[0], there[1], ids, check=False)
    assert waits == []
    rows(*there)
    probs(*there)
    assert waits == ["__bool__"] * 2
    step(there[0][0, :], there[1][0, :], int(ids[0]))
    assert waits == ["__bool__"] * 2 + ["__float__"] * 3


def test_ids_on_a_device_that_are_outside() -> None:
    draft, target, _ = random_rows("float32", (3, 300))
    draft += 1
    ids = np.array([5, 300, -1])
    there = [strict(array, "device1") for array in (draft, target, ids)]
    assert error_of(rows, *there) == error_of(accept_residual, draft, target, ids)
    assert error_of(probs, *there) == error_of(accept_probs, draft, target, ids)
    found = rows(there[0], there[1], there[2], check=False)
    expected = accept_residual(draft, target, [5, 0, 0])
    for got, want in zip(map(strict_plain, found), expected, strict=True):
        assert_same_bits(got[:1], want[:1])
        assert np.isnan(got[1:]).all()
    large = strict(np.array([0, 2**64 - 1, 0], np.uint64), "device1")
    assert error_of(rows, *there[:2], large)[1].startswith(
        "draft_token_ids: expected an id from 0 to 299 (the rows have 300 entries), got "
        "18446744073709551615 in row 1; "
    )


def test_arrays_whose_values_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target, ids = random_rows("float32", (3, 300))
    there = strict(draft), strict(target)

    def unknown(_: object) -> bool:
        raise NotImplementedError("a lazy array has no values")

    monkeypatch.setattr(type(there[0]), "__bool__", unknown)
    refused(TypeError, rows, *there, ids, says=(BOTH, "a lazy array has no values; "))
    expected = accept_residual(draft, target, ids)
    assert_same_bits(
        strict_plain(rows(there[0], there[1], ids, check=False).residual), expected.residual
    )


# Kinds, dtypes, devices, shapes.


class _Masked:
    def __array_namespace__(self) -> Any:
        return need("array_api_strict")

    mask = None


class _Sparse(_Masked):
    nnz = 3

    def __getattribute__(self, name: str) -> Any:
        if name == "mask":
            raise AttributeError(name)
        return object.__getattribute__(self, name)


def test_kinds() -> None:
    row, torch = strict(np.ones((1, 2), np.float32)), need("torch")
    strange: list[tuple[str, Any]] = [
        ("masked", _Masked()),
        ("sparse", _Sparse()),
        ("NoneType", None),
        ("int", 3),
    ]
    strange += [("masked", np.ma.ones((1, 2))), ("str", "0.5"), ("bool", [[True]])]
    strange += [("meta", torch.ones(1, 2, device="meta")), ("layout", torch.ones(1, 2).to_sparse())]
    fake = need("torch._subclasses").FakeTensorMode().from_tensor(torch.ones(1, 2))
    strange.append(("FakeTensor", fake))
    for says, array in strange:
        for call, ids in ((step, 0), (rows, [0]), (probs, [0])):
            refused(TypeError, call, array, row, ids, says=("draft_probs: expected", says))
            refused(TypeError, call, row, array, ids, says=("target_probs: expected", says))
    for other in ([[1.0, 1.0]], np.ones((1, 2), np.float32), torch.ones(1, 2)):
        both = (BOTH + "expected arrays of one library", type(other).__name__)
        refused(TypeError, rows, row, other, [0], says=both)
        refused(TypeError, rows, other, row, [0], says=both)


def test_dtypes() -> None:
    module = need("array_api_strict")
    floats = {"float32", "float64"}
    for one, two in combinations(["float32", "float64", "int64", "bool", "complex64"], 2):
        rows_of = [module.ones((1, 2), dtype=getattr(module, name)) for name in (one, two)]
        says = (f"{BOTH}expected one dtype for both, out of float16, ", f"got {one} and {two}; ")
        refused(TypeError, rows, *rows_of, [0], says=says)
        if one not in floats:
            refused(TypeError, rows, rows_of[0], rows_of[0], [0], says=(BOTH, f"got {one}; "))
    torch = need("torch")
    row = torch.ones(1, 2).to(torch.float8_e5m2)
    refused(TypeError, rows, row, row, [0], says=(BOTH, "got float8_e5m2; "))


def test_devices() -> None:
    row = np.ones((1, 2), np.float32)
    one, two = strict(row, "device1"), strict(row, "no_x64")
    says = (f"{BOTH}expected one device, got {one.device} and {two.device}; ",)
    for call, ids in ((rows, [0]), (probs, [0]), (step, 0)):
        refused(ValueError, call, one, two, ids, says=says)


@pytest.mark.parametrize("one", [(2, 3), (3,), (2, 4), (2, 0), (), (1, 2, 3), (0, 3)])
@pytest.mark.parametrize("two", [(2, 3), (3,), (2, 4), (2, 0), (), (0,)])
def test_shapes(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    plain = np.full(one, 0.5), np.full(two, 0.5)
    calls: list[tuple[Any, Any, Any]] = [(step, speculative_decode_step, 0)]
    calls += [(rows, accept_residual, [0, 0]), (probs, accept_probs, [0, 0])]
    for mine, public, ids in calls:
        ndim = 1 if mine is step else 2
        if one != two or len(one) != ndim or (ndim == 2 and one[0] != 2) or one[-1] == 0:
            there = map(strict, plain)
            assert error_of(mine, *there, ids) == error_of(public, *plain, ids)


@pytest.mark.parametrize(
    "ids", [[0], [0, 1.0], [0, True], np.array([0.0, 1]), np.array([True, False]), 3, [[0], [1]]]
)
def test_ids(ids: Any) -> None:
    plain = np.full((2, 3), 0.5)
    there = strict(plain), strict(plain)
    assert error_of(rows, *there, ids) == error_of(accept_residual, plain, plain, ids)
    assert error_of(probs, *there, ids) == error_of(accept_residual, plain, plain, ids)
    if isinstance(ids, np.ndarray):
        assert error_of(rows, *there, strict(ids)) == error_of(accept_residual, plain, plain, ids)
    assert error_of(rows, *there, strict(np.zeros((2, 1), int)))[0] is ValueError


@pytest.mark.parametrize("token", [1.0, True, [0], np.array([0]), np.float32(1), None, "0", -1, 3])
def test_tokens(token: Any) -> None:
    plain = np.full(3, 0.5)
    there = strict(plain), strict(plain)
    expected = error_of(speculative_decode_step, plain, plain, token)
    assert error_of(step, *there, token) == expected
    if isinstance(token, np.ndarray | np.floating):
        assert error_of(step, *there, strict(np.asarray(token)))[0] is expected[0]
