"""Arrays whose memory is not what it seems, and arguments whose code moves it during the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftverify import accept_probs, accept_residual, speculative_decode_step
from kinds import need

DRAFT, TARGET = np.array([0.5, 0.5]), np.array([0.25, 0.75])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("left", [0, 4])
def test_tensors_whose_storage_is_gone(dtype: str, offset: int, left: int) -> None:
    torch = need("torch")
    whole = torch.ones(64, dtype=getattr(torch, dtype))
    draft = torch.ones(1026, dtype=getattr(torch, dtype))[offset:]
    draft_row = draft[None]
    draft.untyped_storage().resize_(left)
    good = whole[:1].expand(len(draft))
    good_row = good[None]
    for pair in ((draft, good), (good, draft)):
        with pytest.raises(TypeError, match="without memory"):
            speculative_decode_step(*pair, 0)
    for rows in ((draft_row, good_row), (good_row, draft_row)):
        with pytest.raises(TypeError, match="without memory"):
            accept_residual(*rows, [0])
    with pytest.raises(TypeError, match=r"out: .*without memory"):
        accept_residual(good_row, good_row, [0], out=draft_row)


def test_ids_whose_storage_is_gone() -> None:
    torch = need("torch")
    ids = torch.zeros(10, dtype=torch.int64)[8:]
    ids.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"draft_token_ids: .*without memory"):
        accept_probs(np.full((2, 2), 0.5), np.full((2, 2), 0.5), ids)


def test_a_token_that_moves_the_rows() -> None:
    torch = need("torch")
    draft, target = torch.full((1 << 16,), 0.5), torch.full((1 << 16,), 0.25)

    class Token:
        def __index__(self) -> int:
            draft.share_memory_()
            target.share_memory_()
            return 0

    assert speculative_decode_step(draft, target, Token())["accept_prob"] == 0.5


def test_a_flag_that_would_move_the_output_is_refused() -> None:
    out = np.zeros((2, 2))

    class Flag:
        def __bool__(self) -> bool:
            out.shape = (4,)
            return True

    rows = np.stack([DRAFT, DRAFT])
    flag: Any = Flag()
    with pytest.raises(TypeError, match="check: expected True or False"):
        accept_residual(rows, rows, [0, 0], out=out, check=flag)
    assert out.shape == (2, 2)


def test_out_over_the_ids() -> None:
    ids = np.zeros(4, np.int64)
    rows = np.full((4, 1), 0.5)
    with pytest.raises(ValueError, match="overlaps draft_token_ids"):
        accept_residual(rows, rows, ids, out=ids.view(np.float64).reshape(4, 1))
    assert not ids.any()


def test_an_overlap_that_is_too_hard_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_hard(*_: object, **__: object) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", too_hard)
    rows = np.stack([DRAFT, DRAFT])
    with pytest.raises(ValueError, match="overlaps draft_probs"):
        accept_residual(rows, rows, [0, 0], out=np.empty((2, 2)))


def test_out_under_a_negated_input() -> None:
    torch = need("torch")
    under = -torch.tensor([[0.5, 0.5]])
    with pytest.raises(ValueError, match="overlaps draft_probs"):
        accept_residual(torch._neg_view(under), torch.tensor([[0.25, 0.75]]), [0], out=under)
    assert under.tolist() == [[-0.5, -0.5]]


def test_autograd_learns_of_the_write() -> None:
    torch = need("torch")
    weight = torch.ones(1, 2, requires_grad=True)
    out = torch.ones(1, 2)
    loss = (weight * out).sum()
    accept_residual(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]]), [0], out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_lowest_row_is_named_among_huge_ids() -> None:
    rows = np.full((2, 2), 0.5)
    for ids in ([5, 2**70], np.array([5, 2**64 - 1], np.uint64)):
        with pytest.raises(ValueError, match="got 5 in row 0;"):
            accept_probs(rows, rows, ids)


def test_integers_too_long_to_write_out() -> None:
    for token in (10**5000, -(10**5000)):
        with pytest.raises(ValueError, match=r"drafted_token: .*got one of 16610 bits;"):
            speculative_decode_step(DRAFT, TARGET, token)


@pytest.mark.parametrize(
    "entry", [np.timedelta64(1, "s"), np.longdouble(0.5), "0.5"], ids=["time", "longdouble", "str"]
)
def test_list_entries_that_are_no_floats_or_ints(entry: Any) -> None:
    with pytest.raises(TypeError, match="draft_probs: "):
        speculative_decode_step([entry, 0.5], [0.5, 0.5], 1)


def test_types_that_call_themselves_a_float() -> None:
    for name, size in (("bfloat16", 2), ("float32", 4)):
        scalar = type(name, (np.void,), {})
        array = np.zeros(2, np.dtype((scalar, size)))
        with pytest.raises(TypeError, match="expected one of the dtypes"):
            speculative_decode_step(array, array, 0)


def test_long_rows_of_subnormal_mass() -> None:
    draft, target = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    draft[0] = target[0] = 1
    target[100] = 1e-40
    residual = speculative_decode_step(draft, target, 0)["residual"]
    assert np.flatnonzero(residual).tolist() == [100]
    assert residual[100] == 1
