"""The arithmetic in an array's own library: the bits of the compiled functions."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftverify import _generic, accept_residual, speculative_decode_step
from draftverify._namespaces import is_namespace_array, operations
from kinds import DTYPES, SIZES, assert_same_bits, need, random_rows
from namespaces import HOMES, STRICT_DEVICES, Home, strict, strict_plain

CASES = [(home, dtype) for home in HOMES for dtype in home.dtypes]
RUNS = pytest.mark.parametrize(("home", "dtype"), CASES, ids=str)


def assert_answers(
    home: Home, draft: NDArray[Any], target: NDArray[Any], ids: NDArray[np.int64]
) -> None:
    """Compare rows with the compiled functions' answers, bit by bit."""
    expected = accept_residual(draft, target, ids)
    there = home.array(draft), home.array(target)
    with np.errstate(all="raise"):  # as a caller may have it
        found = _generic.accept_residual(*there, ids, None, True)
        accepted = _generic.accept_probs(*there, ids)
    assert type(found) is type(expected)
    assert_same_bits(home.plain(found.residual), expected.residual)
    if home.float64:
        assert_same_bits(home.plain(found.mass), expected.mass)
        assert_same_bits(home.plain(found.accept_prob), expected.accept_prob)
    else:
        assert_same_bits(home.plain(found.mass), expected.mass.astype(np.float32))
        rounded = home.plain(found.accept_prob)
        assert rounded.dtype == np.float32
        np.testing.assert_allclose(rounded, expected.accept_prob, rtol=2**-24, atol=0)
    assert_same_bits(home.plain(accepted), home.plain(found.accept_prob))
    for array, plain in zip(there, (draft, target), strict=True):
        assert_same_bits(home.plain(array), plain)


@RUNS
@pytest.mark.parametrize("size", SIZES)
def test_rows(home: Home, dtype: str, size: int) -> None:
    assert_answers(home, *random_rows(dtype, (3, size), size))


@RUNS
@pytest.mark.parametrize("shape", [(0, 5), (1, 50257), (300, 3)])
def test_other_shapes(home: Home, dtype: str, shape: tuple[int, int]) -> None:
    assert_answers(home, *random_rows(dtype, shape))


@RUNS
def test_steps(home: Home, dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (4, 700))
    for row in range(4):
        expected = speculative_decode_step(draft[row], target[row], int(ids[row]))
        found = _generic.step(home.array(draft[row]), home.array(target[row]), ids[row])
        assert [*found] == [*expected]
        assert type(found["accept_prob"]) is float
        assert found["accept_prob"] == expected["accept_prob"]
        assert_same_bits(home.plain(found["residual"]), expected["residual"])


@RUNS
def test_zeros_and_equal_rows(home: Home, dtype: str) -> None:
    draft, target = np.zeros((2, 3, 300), DTYPES[dtype])
    draft[:, 0], target[:, 0] = 1, (1, 0.5, 0)
    target[2, 299] = 0.25
    target[:, 5] = -0.0
    assert_answers(home, draft, target, np.zeros(3, np.int64))


SUBNORMAL = [(home, dtype) for home, dtype in CASES if home.name != "jax"]  # it flushes them


@pytest.mark.parametrize(("home", "dtype"), SUBNORMAL, ids=str)
def test_subnormal_numbers(home: Home, dtype: str) -> None:
    tiny = np.array([1, 2, 3, 5], f"u{DTYPES[dtype].itemsize}").view(DTYPES[dtype])
    draft, target = tiny[[[0, 1, 0]]], tiny[[[0, 2, 3]]]
    assert_answers(home, draft, target, np.array([1]))


@pytest.mark.parametrize("device", ["no_float64", "no_x64"])
def test_the_mass_without_float64_is_exact_to_a_rounding(device: str) -> None:
    """Entries which a plain float32 sum would lose, all of them or most of their bits."""
    rng = np.random.default_rng(5)
    for size in (17, 256, 600, 4097):
        target = np.exp2(rng.uniform(-30, 0, (1, size))).astype(np.float32)
        target[0, 0] = 1
        draft = np.zeros_like(target)
        draft[0, 1] = target[0, 1]
        found = _generic.accept_residual(
            strict(draft, device), strict(target, device), [1], None, True
        )
        exact = sum(map(Fraction, (target - draft)[0].astype(float).tolist()), Fraction(0))
        mass = strict_plain(found.mass)
        assert mass[0] == np.float32(float(exact))
        assert size < 600 or mass[0] != (target - draft).cumsum(dtype=np.float32)[-1]


@pytest.mark.filterwarnings("ignore:The 2021.12 version")
@pytest.mark.parametrize("version", ["2021.12", "2022.12", "2023.12", "2024.12", "2025.12"])
def test_versions_of_the_standard(version: str) -> None:
    module = need("array_api_strict")
    rows = random_rows("float32", (3, 600))
    with module.ArrayAPIStrictFlags(api_version=version):
        for home in HOMES[: len(STRICT_DEVICES)]:
            assert_answers(home, *rows)


def test_no_data_dependent_shapes_and_no_masks() -> None:
    module = need("array_api_strict")
    off = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}
    with module.ArrayAPIStrictFlags(**off):
        assert_answers(HOMES[0], *random_rows("float64", (3, 600)))


@pytest.mark.parametrize("device", STRICT_DEVICES)
def test_results_are_on_the_device_of_the_rows(device: str) -> None:
    draft, target, ids = random_rows("float32", (3, 9))
    rows = strict(draft, device), strict(target, device)
    step = _generic.step(rows[0][0, :], rows[1][0, :], int(ids[0]))
    results = [step["residual"], _generic.accept_probs(*rows, ids)]
    for check in (True, False):
        results += _generic.accept_residual(*rows, ids, None, check)
    assert {result.device for result in results} == {rows[0].device}


@pytest.mark.parametrize("name", ["strict", "torch"])
def test_views(name: str) -> None:
    rng = np.random.default_rng(3)
    whole = rng.random((2, 6, 1400)).astype(np.float32)
    home = next(home for home in HOMES if home.name.startswith(name))
    # Torch has no negative strides.
    step = -2 if name == "strict" else 2
    there = [home.array(rows)[1::2, 3::step] for rows in whole]
    here = [rows[1::2, 3::step] for rows in whole]
    ids = np.array([0, 1, 0])
    if name == "torch":
        there.append(there[0][:1].expand(3, -1))
        here.append(np.broadcast_to(here[0][:1], here[0].shape))
        there.append(home.array(whole[0, :3].T.copy()).T[:, : here[0].shape[1]])
        here.append(whole[0, :3, : here[0].shape[1]])
    for draft, target in zip(range(len(here)), range(1, len(here)), strict=False):
        expected = accept_residual(here[draft], here[target], ids)
        found = _generic.accept_residual(there[draft], there[target], ids, None, True)
        for got, want in zip(found, expected, strict=True):
            assert_same_bits(home.plain(got), want)


def test_gradients_and_subclasses_of_tensors() -> None:
    torch = need("torch")
    draft, target, ids = random_rows("float32", (3, 9))
    row = torch.nn.Parameter(torch.from_numpy(draft))
    found = _generic.accept_residual(row, torch.from_numpy(target), ids, None, True)
    assert [type(result) for result in found] == [torch.Tensor] * 3
    assert not any(result.requires_grad for result in found)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("device", STRICT_DEVICES)
def test_ids(device: str, dtype: str) -> None:
    draft, target, _ = random_rows("float32", (3, 200))
    rows = strict(draft + 1, device), strict(target, device)
    expected = strict_plain(_generic.accept_probs(*rows, [0, 7, 120]))
    ids = np.array([0, 7, 120], dtype)
    forms = [ids, need("torch").from_numpy(ids), need("jax.numpy").array(ids)]
    devices = STRICT_DEVICES[:-1] if ids.itemsize == 8 else STRICT_DEVICES
    forms += [strict(ids, other) for other in devices if (device == "no_x64") <= (ids.itemsize < 8)]
    for form in forms:
        found = _generic.accept_probs(*rows, form)
        assert_same_bits(strict_plain(found), expected)


def test_token_ids_of_one_step() -> None:
    draft, target, _ = random_rows("float32", (200,))
    rows = strict(draft + 1, "device1"), strict(target, "device1")
    expected = _generic.step(*rows, 7)
    for token in (np.int8(7), strict(np.array(7, np.uint16), "device2"), need("torch").tensor(7)):
        assert _generic.step(*rows, token)["accept_prob"] == expected["accept_prob"]


def test_which_arrays_are_meant() -> None:
    row = np.ones(2, np.float32)
    assert is_namespace_array(strict(row))
    assert is_namespace_array(strict(row, "no_x64"))
    others = [row, row[0], [0.5], None, "0.5", np.ma.array(row), row.view(np.memmap)]
    others += [need("torch").ones(2), need("jax.numpy").ones(2), type(strict(row))]
    for other in others:
        assert not is_namespace_array(other), type(other)
    of_cupy = type("ndarray", (), {"__module__": "cupy", "__array_namespace__": lambda _: None})
    assert not is_namespace_array(of_cupy())


def test_libraries_whose_dtypes_are_those_of_numpy() -> None:
    """Not all of them have all of the four."""
    names = ("float32", "float64", "int64")
    library = SimpleNamespace(**{name: np.dtype(name) for name in names})
    for name in names:
        array = SimpleNamespace(
            __array_namespace__=lambda: library, device="cpu", dtype=np.dtype(name)
        )
        assert operations(array).dtype(array) == name
