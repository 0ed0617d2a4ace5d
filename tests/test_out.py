"""The `out` of `accept_residual`: filled and returned, or refused and left alone.

Its layouts are tested beside those of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from draftverify import accept_residual
from kinds import DTYPES, Kind, assert_same_bits, elsewhere, need, random_rows

# Typed as taking anything, since many calls here are wrong on purpose.
residuals: Callable[..., Any] = accept_residual
DRAFT = [[0.5, 0.25, 0.25, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]]
TARGET = [[0.25, 0.25, 0.0, 0.5], [0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]]
IDS = [0, 2, 3]


def pair(dtype: Any = np.float32) -> tuple[Any, Any]:
    return np.array(DRAFT).astype(dtype), np.array(TARGET).astype(dtype)


def test_out_is_filled_and_returned(kind: Kind) -> None:
    draft, target = kind.make(DRAFT), kind.make(TARGET)
    expected = residuals(draft, target, IDS)
    nines = np.full((3, 4), 9.0, DTYPES[kind.dtype])
    if kind.library.name == "jax":
        refuses_out(TypeError, (draft, target), kind.make(nines), "immutable")
        return
    out = kind.make(nines) if kind.library.name == "torch" else nines
    found = residuals(draft, target, IDS, out=out)
    assert found.residual is out
    assert_same_bits(kind.plain(out), kind.plain(expected.residual))


def test_out_of_no_rows() -> None:
    none = np.empty((0, 5), np.float32)
    outs = [
        np.empty((0, 5), np.float32),
        np.empty((5, 0), np.float32).T,
        np.ones((3, 5), np.float32)[:0],
    ]
    for out in outs:
        assert residuals(none, none, [], out=out).residual is out


def test_out_of_one_row_and_one_column() -> None:
    """A step that is never taken overlaps nothing."""
    for strides in ((0, 0), (1, 1)):
        out = as_strided(np.full(1, 9.0, np.float32), (1, 1), strides)
        one = np.ones((1, 1), np.float32)
        assert residuals(one, one.copy(), [0], out=out).residual is out
        assert out.tolist() == [[0.0]]


def test_out_may_lie_between_the_rows(dtype: str) -> None:
    """Memory that is interleaved is not shared."""
    draft, target, ids = random_rows(dtype, (3, 200))
    memory = np.zeros((3, 400), DTYPES[dtype])
    memory[:, ::2] = draft
    found = residuals(memory[:, ::2], target, ids, out=memory[:, 1::2])
    assert_same_bits(np.ascontiguousarray(memory[:, ::2]), draft)
    assert_same_bits(memory[:, 1::2], residuals(draft, target, ids).residual)
    assert found.residual.base is memory


def refuses_out(error: type[Exception], rows: tuple[Any, Any], out: Any, *says: str) -> None:
    with pytest.raises(error) as caught:
        residuals(*rows, IDS, out=out)
    message = str(caught.value)
    assert type(caught.value) is error
    assert message.startswith("out: expected ")
    for part in (*says, ", got ", "; "):
        assert part in message, f"{part!r} is not in: {message}"


def test_bad_outs() -> None:
    rows = pair()
    good = np.full((3, 4), 9.0, np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    refuses_out(TypeError, rows, good.tolist(), "NumPy", "list")
    refuses_out(TypeError, rows, np.ma.array(good), "masked")
    refuses_out(TypeError, rows, "out", "str")
    for dtype in (np.float64, np.float16, np.int32, object):
        refuses_out(TypeError, rows, good.astype(dtype), "float32", np.dtype(dtype).name)
    for shape in ((4, 3), (3, 3), (12,), (1, 3, 4), (0, 4)):
        refuses_out(ValueError, rows, np.full(shape, 9.0, np.float32), "(3, 4)", str(shape))
    refuses_out(ValueError, rows, frozen, "written to", "read-only")
    refuses_out(ValueError, rows, np.broadcast_to(good[:1], (3, 4)))
    one_row, sliding = (as_strided(good, (3, 4), (stride, 4)) for stride in (0, 4))
    for shared in (one_row, sliding):
        refuses_out(ValueError, rows, shared, "share")
    assert (good == 9.0).all()


@pytest.mark.parametrize(
    ("library", "says"), [("torch", "torch.Tensor"), ("jax.numpy", "jaxlib"), ("ctypes", "c_float")]
)
def test_outs_of_other_libraries(library: str, says: str) -> None:
    module = need(library)
    out = (module.c_float * 12)() if library == "ctypes" else module.zeros((3, 4))
    refuses_out(TypeError, pair(), out, "NumPy", says)


def test_outs_that_overlap_an_input(dtype: str) -> None:
    for argument in (0, 1):
        rows = [*pair(DTYPES[dtype])]
        memory = np.zeros((5, 4), DTYPES[dtype])
        memory[:3] = rows[argument]
        rows[argument] = memory[:3]
        name = ("draft_probs", "target_probs")[argument]
        before = memory.copy()
        for out in (memory[:3], memory[2:], memory[:3, ::-1], memory[::2]):
            refuses_out(ValueError, (rows[0], rows[1]), out, "overlaps", name)
        assert_same_bits(memory, before)


def test_bad_outs_of_torch() -> None:
    torch = need("torch")
    rows = torch.tensor(DRAFT), torch.tensor(TARGET)
    good = torch.full((3, 4), 9.0)
    refuses_out(TypeError, rows, good.numpy(), "Torch", "numpy.ndarray")
    refuses_out(TypeError, rows, good.tolist(), "Torch", "list")
    refuses_out(TypeError, rows, good.double(), "float32", "float64")
    refuses_out(TypeError, rows, good.to_sparse(), "layout")
    refuses_out(TypeError, rows, good.to("meta"), "meta")
    refuses_out(ValueError, rows, elsewhere(good), "cpu", "cuda:1")
    refuses_out(ValueError, rows, good[:2], "(3, 4)", "(2, 4)")
    refuses_out(ValueError, rows, good.clone().requires_grad_(), "gradients")
    refuses_out(ValueError, rows, torch.nn.Parameter(good.clone()), "gradients")
    refuses_out(ValueError, rows, torch._neg_view(good), "written to")
    refuses_out(ValueError, rows, good[:1].expand(3, 4), "share")
    refuses_out(ValueError, rows, rows[0], "overlaps", "draft_probs")
    refuses_out(ValueError, rows, rows[1], "overlaps", "target_probs")
    assert (good == 9.0).all()
    assert rows[0].tolist() == DRAFT


def test_an_error_leaves_out_alone() -> None:
    """Shapes, dtypes and ids are checked before anything is written."""
    draft, target = pair()
    out = np.full((3, 4), 9.0, np.float32)
    wrong: list[tuple[type[Exception], tuple[Any, Any, Any]]] = [
        (TypeError, (draft, target.astype(np.float64), IDS)),
        (ValueError, (draft, target[:, :3], IDS)),
        (ValueError, (draft, target, [0, 2])),
        (TypeError, (draft, target, [0, 2, 1.5])),
        (ValueError, (draft, target, [0, 2, -1])),
        (ValueError, (draft, target, [0, 2, 4])),
        (ValueError, (draft, target, [0, 0, 3])),
    ]
    for error, arguments in wrong:
        with pytest.raises(error):
            residuals(*arguments, out=out)
        assert (out == 9.0).all()
        assert_same_bits(draft, pair()[0])
