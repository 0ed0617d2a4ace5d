"""Rows that break the contract: the exception, and what its message says.

Wrong tokens have a file of their own, and so has the order in which faults are reported.
"""

from __future__ import annotations

import array
import warnings
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from draftverify import accept_probs, accept_residual, speculative_decode_step, verify_chain
from kinds import DTYPES, Kind, elsewhere, limits, need, refused

# Typed as taking anything, since most calls here are wrong on purpose.
step: Callable[..., Any] = speculative_decode_step
NUMBERS = ([0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.0, 0.5])
ROW = np.array(NUMBERS[0], np.float32)
BOTH = "draft_probs and target_probs"


# Entries that are no probabilities.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.5])
@pytest.mark.parametrize("argument", ["draft_probs", "target_probs"])
def test_bad_values(kind: Kind, argument: str, value: float) -> None:
    for index in range(4):
        numbers = {"draft_probs": [*NUMBERS[0]], "target_probs": [*NUMBERS[1]]}
        numbers[argument][index] = value
        numbers[argument][3] = value  # of two bad entries the first is named
        pair = [kind.make(row) for row in numbers.values()]
        before = [kind.library.contents(row) for row in pair]
        says = (argument, ">= 0", f"got {value} at index {index};")
        refused(ValueError, step, *pair, 0, says=says)
        assert [kind.library.contents(row) for row in pair] == before


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "-tiny"])
def test_bad_values_are_found_at_every_index(dtype: str, bad: str) -> None:
    tiny = float(limits(DTYPES[dtype]).smallest_subnormal)
    value = -tiny if bad == "-tiny" else float(bad)
    for place in range(530):
        rows = np.ones((2, 530), DTYPES[dtype])
        rows[place % 2, place] = value
        argument = ("draft_probs", "target_probs")[place % 2]
        with pytest.raises(ValueError, match=f"^{argument}: .* at index {place};"):
            step(rows[0], rows[1], 7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_16_bits(dtype: str) -> None:
    """A row is answered if and only if its entry is a finite number >= 0, or -0.0."""
    entries = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])
    with np.errstate(invalid="ignore"):  # some of the patterns are signalling NaNs
        values = entries.astype(np.float64)
    good = (values >= 0) & np.isfinite(values)
    plain, spoiled = np.zeros((2, 2**16, 2), DTYPES[dtype])
    plain[:, 1] = spoiled[:, 1] = 1.0
    spoiled[:, 0] = entries
    ids = np.ones(2**16, np.int64)
    for pair in ((plain, spoiled), (spoiled, plain)):
        found = accept_residual(*pair, ids, check=False)
        np.testing.assert_array_equal(np.isnan(found.mass), ~good)
        np.testing.assert_array_equal(np.isnan(found.accept_prob), ~good)


# Kinds of arrays.


def strange_arrays(library: str) -> list[tuple[str, Any]]:
    """Make what is taken for no array, each with what the message has to say about it."""
    module = need(library)
    if library == "builtins":
        strange = [0.5, None, "0.5", b"0.5", {0: 0.5}, {0.5}, range(4), iter(NUMBERS[0]), ROW[0]]
        strange += [array.array("f", NUMBERS[0]), memoryview(b"0.5")]
        return [(type(one).__name__, one) for one in strange]
    if library == "numpy":
        masks = (False, [False, True, False, False])
        return [("masked", np.ma.array(ROW, mask=mask)) for mask in masks]
    if library == "scipy.sparse":
        return [("csr_array", module.csr_array(ROW[None])), ("coo_array", module.coo_array(ROW))]
    if library == "jax.numpy":
        deleted = module.array(ROW)
        deleted.delete()
        return [("deleted", deleted)]
    tensor = module.tensor(NUMBERS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these are deprecated, or not yet stable
        return [
            ("quantised", module.quantize_per_tensor(tensor, 0.25, 0, module.quint8)),
            ("NestedTensor", module.nested.nested_tensor([tensor], layout=module.jagged)),
            ("to_dense", tensor[None].to_sparse_csr()),
            ("to_dense", tensor.to_sparse()),
            ("to_dense", tensor.to_mkldnn()),
            ("meta", tensor.to("meta")),
            ("FakeTensor", need("torch._subclasses").FakeTensorMode().from_tensor(tensor)),
        ]


@pytest.mark.parametrize("library", ["builtins", "numpy", "scipy.sparse", "torch", "jax.numpy"])
def test_kinds_of_arrays(library: str) -> None:
    good = need("torch").tensor(NUMBERS[0]) if library == "torch" else ROW
    for says, strange in strange_arrays(library):
        refused(TypeError, step, strange, good, 0, says=("draft_probs: ", says))
        refused(TypeError, step, good, strange, 0, says=("target_probs: ", says))
        refused(TypeError, step, strange, strange, 0, says=("draft_probs: ", says))
        refused(TypeError, accept_residual, strange, good, [0], says=("draft_probs: ", says))
        refused(TypeError, accept_probs, good, strange, [0], says=("target_probs: ", says))


@pytest.mark.parametrize("transform", ["vmap", "grad", "functionalize"])
def test_tensors_within_transforms_of_torch(transform: str) -> None:
    """Their memory is elsewhere, or not theirs: what is read from it would be wrong numbers."""
    torch = need("torch")
    row = torch.tensor(NUMBERS[0])
    caught: list[Exception] = []

    def inner(wrapped: Any) -> Any:
        try:
            step(row, wrapped, 0)
        except Exception as error:
            caught.append(error)
        return wrapped.sum()

    getattr(torch.func, transform)(inner)(row[None] if transform == "vmap" else row)
    assert [type(error) for error in caught] == [TypeError]
    message = str(caught[0])
    assert message.startswith("target_probs: expected ")
    if transform == "vmap":
        assert "torch.vmap, which is not supported outside of torch.compile; pass the" in message
    elif transform == "grad":
        assert "a transform of torch.func, as grad, which is not supported" in message


def test_other_arguments_within_vmap() -> None:
    torch = need("torch")
    rows, ids = torch.tensor([NUMBERS[0]]), torch.zeros(2, 1, dtype=torch.int64)
    calls: dict[str, Any] = {
        "draft_token_ids": lambda ids: accept_residual(rows, rows, ids),
        "drafted_token": lambda ids: step(rows[0], rows[0], ids[0]),
        "uniforms": lambda ids: verify_chain(None, rows[None], np.zeros((1, 0), int), ids[None]),
    }
    for name, call in calls.items():
        refused(TypeError, torch.vmap(call), ids, says=(name, "torch.vmap, which is not supported"))


def test_chains_are_sent_to_verify_chain() -> None:
    chains = np.full((2, 3, 4), 0.25)
    for function in (step, accept_residual, accept_probs):
        says = (BOTH, "got (2, 3, 4) and (2, 4, 4); call verify_chain for chains (B, K, V)")
        refused(ValueError, function, chains, np.full((2, 4, 4), 0.25), [0, 0], says=says)


def test_rows_of_none() -> None:
    for function in (step, accept_residual, accept_probs):
        refused(
            TypeError,
            function,
            *(None, ROW, 0),
            says=("draft_probs: ", "NoneType", "is for verify_chain alone"),
        )
        refused(TypeError, function, *(ROW, None, 0), says=("target_probs: ", "NoneType; pass one"))


@pytest.mark.parametrize("value", [1, 0, None, "no", np.ones(1, bool), [True]])
def test_flags_are_bools(value: Any) -> None:
    rows = np.array([[0.5, 0.5]])
    refused(
        TypeError,
        lambda: accept_residual(rows, rows, [0], check=value),
        says=("check: ", "True or False"),
    )
    flags: list[Any] = [True, False, np.True_, np.False_]
    for flag in flags:
        assert accept_residual(rows, rows, [0], check=flag).mass == 0
    rows[0, 1] = np.nan
    for flag in flags[1::2]:
        assert np.isnan(accept_residual(rows, rows, [0], check=flag).mass)
    for flag in flags[::2]:
        call = lambda: accept_residual(rows, rows, [0], check=flag)  # noqa: B023, E731
        refused(ValueError, call, says=("draft_probs: ", "nan"))


def test_arrays_within_transforms_of_jax() -> None:
    jax = need("jax")
    row = jax.numpy.array(ROW)
    for transform in (jax.jit, jax.grad, lambda function: jax.vmap(function, 0)):
        with pytest.raises(TypeError, match=r"^draft_probs: expected .*traced.*pure_callback"):
            transform(lambda traced: step(traced, row, 0)["residual"].sum())(row)


@pytest.mark.parametrize(
    ("draft", "target"), [*permutations(["numpy.ndarray", "torch.Tensor", "list"], 2)]
)
def test_mixed_libraries(draft: str, target: str) -> None:
    def row_of(name: str) -> Any:
        if name == "torch.Tensor":
            return need("torch").tensor(NUMBERS[0])
        return ROW if name == "numpy.ndarray" else NUMBERS[0]

    for call, token in ((step, 0), (accept_residual, [0]), (accept_probs, [0])):
        says = (BOTH, f"{draft} and {target}")
        refused(TypeError, call, row_of(draft), row_of(target), token, says=says)


# Dtypes, devices, shapes.

NARROW = ["int64", "int16", "uint16", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]


def rows_by_dtype(library: str) -> list[tuple[str, Any]]:
    """Make a row of every dtype, with the name of the dtype."""
    if library == "torch":
        torch = need("torch")
        row = torch.tensor(NUMBERS[0])
        return [(name, row.to(getattr(torch, name))) for name in [*NARROW, *DTYPES]]
    dtypes = [getattr(ml_dtypes, name, name) for name in NARROW] + list(DTYPES.values())
    dtypes += [object, np.dtype([("one", np.float32)]), np.str_, "m8[s]"]
    if np.finfo(np.longdouble).nmant > np.finfo(np.float64).nmant:
        dtypes.append(np.longdouble)
    rows = [ROW.astype(dtype) for dtype in dtypes]
    return [(row.dtype.name, row) for row in rows]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_dtypes(library: str) -> None:
    for (name, one), (other_name, other) in product(rows_by_dtype(library), repeat=2):
        if name in DTYPES and name == other_name:
            continue
        got = f"{name} and {other_name}" if name != other_name else name
        expected = "one dtype for both" if name != other_name else "one of the dtypes"
        says = (BOTH, f"got {got};", f"expected {expected}", *DTYPES)
        refused(TypeError, step, one, other, 0, says=says)
        refused(TypeError, accept_residual, one[None], other[None], [0], says=says)
        refused(TypeError, accept_probs, one[None], other[None], [0], says=says)


def test_devices() -> None:
    torch = need("torch")
    draft, target = torch.tensor(NUMBERS[0]), torch.tensor(NUMBERS[1])
    away, farther = elsewhere(draft), elsewhere(target, "cuda:2")
    refused(ValueError, step, away, target, 0, says=(BOTH, "got cuda:1 and cpu;"))
    refused(ValueError, step, draft, farther, 0, says=(BOTH, "got cpu and cuda:2;"))
    refused(ValueError, step, away, farther, 0, says=(BOTH, "got cuda:1 and cuda:2;"))


Shape = tuple[int, ...]
SHAPES = [((3,), (4,)), ((1,), (4,)), ((0,), (0,)), ((0,), (3,)), ((2, 2), (2, 2)), ((2,), (1, 2))]


@pytest.mark.parametrize(("draft_shape", "target_shape"), SHAPES)
def test_shapes(kind: Kind, draft_shape: Shape, target_shape: Shape) -> None:
    pair = kind.make(np.full(draft_shape, 0.5)), kind.make(np.full(target_shape, 0.5))
    says = (BOTH, f"got {draft_shape} and {target_shape};", "(V,)")
    refused(ValueError, step, *pair, 0, says=says)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_without_an_axis(library: str) -> None:
    number = np.array(0.5) if library == "numpy" else need("torch").tensor(0.5)
    refused(ValueError, step, number, number, 0, says=(BOTH, "got () and ();"))


# Lists.

Wrong = Callable[[Any], tuple[Any, Any]]


@pytest.fixture(params=["draft_probs", "target_probs"])
def wrong(request: pytest.FixtureRequest) -> tuple[str, Wrong]:
    """Name an argument, and put a list in its place beside a good one."""
    good = [0.5, 0.5]
    if request.param == "draft_probs":
        return request.param, lambda bad: (bad, good)
    return request.param, lambda bad: (good, bad)


@pytest.mark.parametrize(
    "entry",
    [True, np.True_, "0.5", None, 0.5j, Fraction(1, 2), np.array(0.5), np.array([0.5]), [0.5], {}],
    ids=repr,
)
def test_lists_of_other_things(wrong: tuple[str, Wrong], entry: object) -> None:
    argument, beside = wrong
    says = (f"{argument}: ", type(entry).__name__)
    refused(TypeError, step, *beside([0.5, entry]), 0, says=says)


def test_lists_of_numbers_beyond_float64(wrong: tuple[str, Wrong]) -> None:
    argument, beside = wrong
    refused(ValueError, step, *beside([10**400, 0]), 0, says=(f"{argument}: ", "float64"))


def test_lists_of_bad_values(wrong: tuple[str, Wrong]) -> None:
    argument, beside = wrong
    refused(ValueError, step, *beside((0.5, -1)), 0, says=(f"{argument}: ", "got -1.0 at index 1;"))


def test_lists_of_lists(wrong: tuple[str, Wrong]) -> None:
    argument, beside = wrong
    refused(ValueError, step, *beside([[0.5, 0.5]]), 0, says=(BOTH, "(1, 2)", "(2,)"))
    ragged, good = [[0.5, 0.5], [1.0]], [[0.5, 0.5]] * 2
    pair = (ragged, good) if argument == "draft_probs" else (good, ragged)
    refused(ValueError, accept_residual, *pair, [0, 0], says=(f"{argument}: ", "one length"))
