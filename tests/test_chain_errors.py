"""What is refused of chains, and how it is said: nothing partial comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chains import batch
from draftverify import ChainVerdict, verify_chain, verify_chain_logits
from kinds import elsewhere, need, refused

METHODS = ("standard", "block")


def refuses(error: type[Exception], *says: str, **changes: Any) -> None:
    """Expect this error of a good call with some arguments changed."""
    found = batch("float32", 3, 4, 8, seed=1)
    arguments: dict[str, Any] = {
        "draft_probs": np.nan_to_num(found.draft, nan=0.125),
        "target_probs": np.nan_to_num(found.target, neginf=0.125),
        "draft_token_ids": np.clip(found.ids, 0, 7),
        "uniforms": np.where(found.uniforms < 1, found.uniforms, 0.5),
        "lengths": [4, 3, 2],
    }
    arguments["draft_probs"][:] = 0.125
    verify_chain(**arguments)
    for name, change in changes.items():
        old = arguments.get(name)
        arguments[name] = change(old.copy()) if callable(change) and old is not None else change
    before = {name: str(value) for name, value in arguments.items()}
    refused(error, lambda: verify_chain(**arguments), says=says)
    assert {name: str(value) for name, value in arguments.items()} == before


def put(*place: int, value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("draft_probs", lambda rows: rows[:2], ("(3, 4, 8)", "(2, 4, 8)")),
        ("draft_probs", lambda rows: rows[:, :3], ("(3, 4, 8)", "(3, 3, 8)")),
        ("draft_probs", lambda rows: rows[..., :7], ("(3, 4, 8)", "(3, 4, 7)")),
        ("draft_probs", lambda rows: rows[0], ("(3, 4, 8)", "(4, 8)")),
        ("target_probs", lambda rows: rows[:, :4], ("(3, 5, 8)", "(3, 4, 8)", "bonus_token_ids")),
        ("target_probs", lambda rows: rows[0], ("(B, K, V)", "(5, 8)", "indptr")),
        ("target_probs", lambda rows: rows[..., :0], ("V from 1", "(3, 5, 0)")),
        ("draft_token_ids", lambda ids: ids[0], ("(B, K)", "(4,)", "indptr")),
        ("draft_token_ids", lambda ids: ids[None], ("(B, K)", "(1, 3, 4)")),
        ("uniforms", lambda uniforms: uniforms[:, :4], ("(3, 5)", "(3, 4)", "one more")),
        ("uniforms", np.ravel, ("(3, 5)", "(15,)")),
        ("lengths", [4, 3], ("(3,)", "(2,)")),
        ("lengths", 4, ("(3,)", "()")),
        ("lengths", [4, 3, 5], ("from 0 to 4", "5 of request 2")),
        ("lengths", [4, -1, 2], ("from 0 to 4", "-1 of request 1")),
        ("bonus_token_ids", [1, 2], ("target_probs", "(3, 4, 8)", "(3, 5, 8)")),
    ],
)
def test_shapes(name: str, change: Any, says: tuple[str, ...]) -> None:
    if not says[0].endswith("_probs"):
        says = (name, *says)
    refuses(ValueError, *says, **{name: change})


@pytest.mark.parametrize(
    ("indptr", "says"),
    [
        ([0, 3, 5], "5 drafted"),
        ([1, 3, 4], "[1, 3, 4]"),
        ([0, 3, 2, 4], "[0, 3, 2, 4]"),
        ([], "(B + 1,)"),
        ([[0, 4]], "(B + 1,)"),
        (4, "(B + 1,)"),
        ([0, 2**62, -(2**62), -(2**62) * 2 + 5, 4], "(B + 1,)"),
        (list(range(0, 40, 2)), "shape (20,)"),
    ],
)
def test_indptr(indptr: Any, says: str) -> None:
    tokens = 5 if says.startswith("5") else 4
    flat = {
        "draft_probs": np.full((tokens, 8), 0.125),
        "target_probs": np.full((6, 8), 0.125),
        "draft_token_ids": np.zeros(tokens, int),
        "uniforms": np.zeros(6),
        "lengths": None,
    }
    if says.startswith("5"):
        indptr = [0, 3, 4]
    refuses(ValueError, "indptr", says, indptr=indptr, **flat)


def test_layouts_are_not_mixed() -> None:
    refuses(ValueError, "lengths and indptr", "both", indptr=[0, 4])
    refuses(ValueError, "draft_token_ids", "(T,)", indptr=[0, 4], lengths=None)
    refuses(
        ValueError,
        "target_probs",
        "(T, V)",
        "leave indptr out",
        indptr=[0, 4],
        lengths=None,
        draft_token_ids=lambda ids: ids[0],
    )


@pytest.mark.parametrize("method", ["", "Standard", "typical"])
def test_methods(method: Any) -> None:
    refuses(ValueError, "method", "standard, block, greedy", method=method)


def test_kinds_and_dtypes() -> None:
    torch, jax = need("torch"), need("jax.numpy")
    refuses(TypeError, "draft_probs and target_probs", "Tensor", draft_probs=torch.tensor)
    refuses(
        TypeError, "draft_probs and target_probs", "list", draft_probs=lambda rows: rows.tolist()
    )
    refuses(TypeError, "draft_probs and target_probs", "jax", target_probs=jax.asarray)
    refuses(TypeError, "draft_probs and target_probs", "float64", draft_probs=np.float64)
    refuses(TypeError, "draft_probs and target_probs", "int64", "float32", draft_probs=np.int64)
    refuses(TypeError, "target_probs", "int64", draft_probs=None, target_probs=np.int64)
    refuses(TypeError, "draft_probs", "masked", draft_probs=np.ma.array)
    refuses(TypeError, "target_probs", "masked", target_probs=np.ma.array, draft_probs=None)
    refuses(TypeError, "target_probs", "NoneType", target_probs=None)
    refuses(TypeError, "draft_token_ids", "float64", draft_token_ids=np.float64)
    refuses(TypeError, "draft_token_ids", "bool", draft_token_ids=np.bool)
    refuses(TypeError, "draft_token_ids", "masked", draft_token_ids=np.ma.array)
    refuses(TypeError, "lengths", "a bool", lengths=[True, 3, 2])
    refuses(TypeError, "lengths", "2.0 at index 2", lengths=[4, 3, 2.0])
    refuses(TypeError, "uniforms", "float16", uniforms=np.float16)
    refuses(TypeError, "uniforms", "int64", uniforms=np.int64)
    refuses(TypeError, "uniforms", "masked", uniforms=np.ma.array)
    refuses(TypeError, "uniforms", "None", uniforms=None)
    refuses(TypeError, "uniforms", "object", uniforms=object())
    refuses(ValueError, "draft_token_ids", "one length", draft_token_ids=[[1, 2], [3], [4]])
    refuses(ValueError, "draft_token_ids", "64 bits", draft_token_ids=[[2**63] * 4] * 3)


def test_other_devices_are_named() -> None:
    torch = need("torch")
    rows = torch.full((3, 5, 8), 0.125)
    refuses(
        NotImplementedError,
        "target_probs",
        "cuda:1",
        "verify_chain",
        ".cpu()",
        draft_probs=None,
        target_probs=elsewhere(rows),
    )
    refuses(
        ValueError,
        "draft_probs and target_probs",
        "cuda:1",
        draft_probs=elsewhere(rows[:, :4]),
        target_probs=rows,
    )


@pytest.mark.parametrize("method", METHODS)
def test_numbers(method: Any) -> None:
    where = "at position 2 of request 1"
    for token in (-1, 8, 2**40):
        says: tuple[str, ...] = ("draft_token_ids", f"got {token} {where}", "from 0 to 7")
        refuses(ValueError, *says, draft_token_ids=put(1, 2, value=token), method=method)
    for uniform in (1.0, -0.25, np.inf, np.nan):
        says = ("uniforms", f"got {uniform!r} {where}")
        refuses(ValueError, *says, uniforms=put(1, 2, value=uniform), method=method)
    refuses(ValueError, "uniforms", "1 - u", uniforms=put(1, 2, value=1.0), method=method)
    where = "position 3 of request 1"
    refuses(ValueError, "uniforms", where, uniforms=put(1, 3, value=2.0), method=method)
    for token in (-1, 2**31):
        says = ("bonus_token_ids", f"{token} of request 1", "32 bits")
        changes: dict[str, Any] = {"target_probs": lambda rows: rows[:, :4], "method": method}
        refuses(ValueError, *says, bonus_token_ids=[0, token, 0], **changes)


def test_padding_by_minus_one() -> None:
    says: tuple[str, ...] = (
        "draft_token_ids",
        "-1 at position 1 of request 2",
        "pass lengths",
    )
    refuses(ValueError, *says, draft_token_ids=put(2, 1, value=-1), lengths=None)
    says = ("draft_token_ids", "got -2 at position 3 of request 2")
    refuses(ValueError, *says, draft_token_ids=put(2, 3, value=-2), lengths=None)


@pytest.mark.parametrize("method", METHODS)
def test_values_that_are_read(method: Any) -> None:
    def bad(value: float) -> Callable[[Any], Any]:
        def change(rows: Any) -> Any:
            rows[1, 0, :] = value
            return rows

        return change

    # The first token of the second request is the first that meets such a row.
    where = "at position 0 of request 1"
    for value in (np.nan, -0.5, np.inf):
        if value != np.inf:
            refuses(ValueError, "draft_probs", where, draft_probs=bad(value), method=method)
        refuses(ValueError, "target_probs", where, target_probs=bad(value), method=method)
    says = ("draft_token_ids", "can propose", where, "== 0")
    refuses(ValueError, *says, draft_probs=bad(0.0), method=method)


def test_the_lowest_request_is_named() -> None:
    def bad(rows: Any) -> Any:
        rows[1:, 0, :] = np.nan
        return rows

    for _ in range(5):
        refuses(ValueError, "target_probs", "request 1", target_probs=bad)


@pytest.mark.parametrize(
    "rows", [np.ones((7, 9)), np.full((1, 1, 4), np.nan), np.ones((1, 1, 4), np.float16), "rows"]
)
def test_what_greedy_does_not_read_may_be_anything(rows: Any) -> None:
    target = np.eye(4)[None, :2]
    for given in (None, "uniforms", np.full((1, 2), 9.0), [[0, 0]]):
        verdict: ChainVerdict[Any] = verify_chain(rows, target, [[0]], given, method="greedy")
        assert verdict.token_ids.tolist() == [[0, 1]]
        verdict = verify_chain_logits(rows, target, [[1]], given, method="greedy")
        assert verdict.token_ids.tolist() == [[0, -1]]


@pytest.mark.parametrize("function", [verify_chain, verify_chain_logits])
@pytest.mark.parametrize(
    "uniforms",
    [
        [[0, 0]],
        np.array([[0, 0]]),
        [[2**70, 0]],
        [[np.float16(0.5), np.float16(0.5)]],
        np.zeros((1, 2), np.float16),
    ],
    ids=["ints", "int64", "large", "floats16", "float16"],
)
def test_uniforms_are_floats_in_lists_as_in_arrays(function: Any, uniforms: Any) -> None:
    refused(
        TypeError,
        lambda: function(None, np.full((1, 2, 4), 0.25), [[0]], uniforms),
        says=("uniforms: expected float32 or float64 numbers",),
    )


def test_lists_of_floats_may_have_ints_among_them() -> None:
    target = np.full((1, 2, 4), 0.25)
    found: Any = verify_chain(None, target, [[0]], [[0, 0.5]])
    assert found.token_ids.tolist() == [[0, 2]]
    assert (
        verify_chain(None, target[:0], np.zeros((0, 1), int), np.zeros((0, 2))).token_ids.size == 0
    )
