"""Draft probabilities at the ids of the target: both kinds of map, ids that meet, padding."""

from __future__ import annotations

from typing import Any

import pytest

from draftverify.adapters.vocabulary import in_target_vocabulary
from engines import tensor
from kinds import need, refused


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
def test_differences_and_ids_say_the_same(dtype: str, ids_dtype: str) -> None:
    rows = tensor([[[0.5, 0.25, 0.25]], [[0.125, 0.75, 0.125]]], dtype)
    expected = [[[0.0, 0.5, 0.25, 0.0, 0.25]], [[0.0, 0.125, 0.75, 0.0, 0.125]]]
    for maps in ({"d2t": [1, 1, 2]}, {"target_ids": [1, 2, 4]}):
        given: dict[str, Any] = {name: tensor(ids, ids_dtype) for name, ids in maps.items()}
        found = in_target_vocabulary(rows, 5, **given)
        assert found.dtype == rows.dtype
        assert found.tolist() == expected
    assert rows.tolist()[0] == [[0.5, 0.25, 0.25]]


def test_drafts_of_one_id_are_added() -> None:
    rows = tensor([[0.125, 0.25, 0.125, 0.5]])
    assert in_target_vocabulary(rows, 3, d2t=tensor([2, 1, -2, -2], "int64")).tolist() == [
        [0.125, 0.5, 0.375]
    ]
    assert in_target_vocabulary(rows, 3, target_ids=tensor([2, 2, 2, 2], "int64")).tolist() == [
        [0.0, 0.0, 1.0]
    ]


def test_without_a_map_the_first_ids_are_the_same() -> None:
    rows = tensor([[0.25, 0.75]])
    assert in_target_vocabulary(rows, 4).tolist() == [[0.25, 0.75, 0.0, 0.0]]
    assert in_target_vocabulary(rows, 2).tolist() == rows.tolist()


def test_out_is_used_again() -> None:
    out = tensor([[[7.0] * 4] * 2])
    view = out[:, :1]
    rows = tensor([[[0.25, 0.75]]])
    for ids, expected in (([3, 0], [0.75, 0.0, 0.0, 0.25]), ([1, 2], [0.0, 0.25, 0.75, 0.0])):
        found = in_target_vocabulary(rows, 4, target_ids=tensor(ids, "int64"), out=view)
        assert found is view
        assert out.tolist() == [[expected, [7.0] * 4]]


def test_what_is_refused() -> None:
    torch = need("torch")
    rows = tensor([[0.25, 0.75]])

    def refuses(
        error: type[Exception], *says: str, size: int = 4, given: Any = rows, **o: Any
    ) -> None:
        refused(error, lambda: in_target_vocabulary(given, size, **o), says=says)

    refuses(TypeError, "draft_probs", "list", given=[[0.25, 0.75]])
    refuses(ValueError, "draft_probs", "()", given=torch.tensor(0.5))
    refuses(ValueError, "draft_probs", "at most 1", "2", size=1)
    refuses(ValueError, "d2t", "(2,)", "(3,)", d2t=tensor([0, 1, 2], "int64"))
    refuses(ValueError, "d2t", "0 to 3", "got 4", d2t=tensor([0, 3], "int64"))
    refuses(ValueError, "d2t", "0 to 3", "got -1", d2t=tensor([-1, 0], "int64"))
    refuses(ValueError, "target_ids", "0 to 3", "got 4", target_ids=tensor([0, 4], "int64"))
    refuses(TypeError, "target_ids", "float32", target_ids=tensor([0, 1]))
    refuses(TypeError, "d2t", "bool", d2t=tensor([0, 1], "bool"))
    both = tensor([0, 1], "int64")
    refuses(ValueError, "d2t and target_ids", d2t=both, target_ids=both)
    refuses(ValueError, "out", "(1, 4)", "(1, 5)", out=tensor([[0.0] * 5]))
    refuses(TypeError, "out", "float64", out=tensor([[0.0] * 4], "float64"))
