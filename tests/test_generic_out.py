"""`out=` in an array's own library, and Torch on a device that is none of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftverify import _generic, accept_residual
from kinds import assert_same_bits, need, random_rows, refused
from namespaces import HOMES, Home, strict, strict_plain

CASES = [(home, dtype) for home in HOMES for dtype in home.dtypes if home.name != "jax"]


def rows(draft: Any, target: Any, ids: Any, out: Any = None, check: bool = True) -> Any:
    return _generic.accept_residual(draft, target, ids, out, check)


@pytest.mark.parametrize(("home", "dtype"), CASES, ids=str)
def test_residuals_go_into_out(home: Home, dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (3, 300))
    room = home.array(np.ones((6, 600), draft.dtype))
    step = -2 if home.name.startswith("strict") else 2
    for out in (home.array(np.ones_like(draft)), room[::2, ::step]):
        found = rows(home.array(draft), home.array(target), ids, out=out)
        assert found.residual is out
        assert_same_bits(home.plain(out), accept_residual(draft, target, ids).residual)
    untouched = home.plain(room)
    assert (untouched[1::2] == 1).all()


def test_out_that_does_not_fit() -> None:
    module, torch = need("array_api_strict"), need("torch")
    draft, target, ids = random_rows("float32", (3, 9))
    rows_of = strict(draft, "device1"), strict(target, "device1")
    wrong: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "got numpy.ndarray", np.ones_like(draft)),
        (TypeError, "got list", draft.tolist()),
        (TypeError, "got torch.Tensor", torch.ones(3, 9)),
        (TypeError, "got float64", strict(draft.astype(np.float64), "device1")),
        (ValueError, "got array_api_strict.Device('device2')", strict(draft, "device2")),
        (ValueError, "got (3, 8)", strict(draft[:, 1:], "device1")),
        (ValueError, "overlaps draft_probs", rows_of[0]),
        (ValueError, "overlaps target_probs", rows_of[1][:, ::-1]),
        (ValueError, "expanded", module.broadcast_to(rows_of[0][:1, :] + 1, (3, 9))),
    ]
    for error, says, out in wrong:
        before = np.array(strict_plain(out)) if hasattr(out, "_array") else None
        refused(error, rows, *rows_of, ids, out, says=("out: expected", says))
        assert before is None or (strict_plain(out) == before).all()


def test_out_that_may_not_be_written() -> None:
    draft, target, ids = random_rows("float32", (3, 9))
    locked = draft.copy()
    locked.flags.writeable = False
    out = need("array_api_strict").asarray(locked, copy=False)
    arguments = strict(draft), strict(target), ids, out
    refused(ValueError, rows, *arguments, says=("out: expected", "may not"))
    jnp = need("jax.numpy")
    arguments = jnp.array(draft), jnp.array(target), ids, jnp.array(draft)
    refused(TypeError, rows, *arguments, says=("out: expected", "immutable"))


def test_tensors_as_out() -> None:
    torch = need("torch")
    draft, target, ids = random_rows("float32", (3, 9))
    rows_of = torch.from_numpy(draft), torch.from_numpy(target)
    whole = torch.ones(3, 40)
    for says, out in (
        ("overlaps draft_probs", rows_of[0].view(9, 3).view(3, 9)),
        ("records gradients", torch.ones(3, 9, requires_grad=True)),
        ("expanded", torch.ones(1, 9).expand(3, 9)),
        ("negated", torch.ones(3, 9)._neg_view()),
    ):
        refused(ValueError, rows, *rows_of, ids, out, says=("out: expected", says))
    # Neighbours in one storage are not the same memory.
    one, two, out = whole[:, :9], whole[:, 9:18], whole[:, 20:29]
    one.copy_(rows_of[0])
    two.copy_(rows_of[1])
    version = out._version
    rows(one, two, ids, out=out)
    assert_same_bits(out.numpy().copy(), accept_residual(draft, target, ids).residual)
    assert out._version > version
    with torch.inference_mode():
        out = torch.ones(3, 9)
    assert rows(*rows_of, ids, out=out).residual is out
    assert_same_bits(out.numpy(), accept_residual(draft, target, ids).residual)
