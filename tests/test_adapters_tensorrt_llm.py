"""TensorRT-LLM's two layouts: values by hand, the law, no copies, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engines
from draftverify import testing
from draftverify.adapters.tensorrt_llm import (
    get_rejected_indices,
    rejection_sampling_one_model,
    verify_two_model,
)
from draftverify.adapters.vocabulary import in_target_vocabulary
from engines import CASES, DRAFT, EMITTED, KEPT, TARGET, tensor
from kinds import need, refused


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_model_by_hand(dtype: str) -> None:
    torch = need("torch")
    draft, target = engines.rows(dtype)
    token_ids, emitted = rejection_sampling_one_model(
        draft, engines.ids(), target, uniforms=engines.uniforms()
    )
    assert token_ids.tolist() == EMITTED
    assert emitted.tolist() == [kept + 1 for kept in KEPT]
    assert token_ids.dtype == emitted.dtype == torch.int32


def test_one_model_with_the_padding_of_the_engine() -> None:
    # A request with one drafted token in two places: 0 is certain in the other, for both models,
    # and in the row behind it. The engine caps the count at what there was to verify.
    draft, target = engines.rows()
    certain = tensor([1.0, 0.0, 0.0, 0.0])
    draft, target = draft[:2].clone(), target[:2].clone()
    target[:, 1] = tensor([0.0, 0.0, 0.5, 0.5])
    draft[0, 1], target[0, 2] = certain, certain
    ids = tensor([[0, 0], [0, 2]], "int32")
    padded = target.clone()
    padded[0, 1] = certain
    token_ids, emitted = rejection_sampling_one_model(
        draft, ids, padded, uniforms=tensor([[0.25, 0.875, 0.875], [0.25, 0.5, 0.875]])
    )
    assert token_ids[0].tolist() == [0, 0, 0]
    assert min(int(emitted[0]), 2) == 2
    # With -1 no such rows are needed, and the bonus token is drawn from the row of the request.
    ids[0, 1], draft[0, 1], target[0, 2] = -1, float("nan"), float("nan")
    token_ids, emitted = rejection_sampling_one_model(
        draft, ids, target, uniforms=tensor([[0.25, 0.875, 9.0], [0.25, 0.5, 0.875]])
    )
    assert token_ids.tolist() == [[0, 3, -1], [0, 2, 3]]
    assert emitted.tolist() == [2, 3]


def test_one_model_with_a_reduced_vocabulary() -> None:
    # The draft knows 0, 1 and 2, which are 1, 1 and 3 of the target: two of them are one.
    small = tensor([[[0.25, 0.25, 0.5]]])
    draft = in_target_vocabulary(small, 4, d2t=tensor([1, 0, 1], "int64"))
    assert draft.tolist() == [[[0.0, 0.5, 0.0, 0.5]]]
    target = tensor([[[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]]])
    found = []
    for uniform in (0.25, 0.75):  # 1 is kept below 1/2; with one of its two drafts always
        token_ids, _ = rejection_sampling_one_model(
            draft, tensor([[1]], "int32"), target, uniforms=tensor([[uniform, 0.75]])
        )
        found.append(token_ids.tolist())
    assert found == [[[1, 2]], [[2, -1]]]  # what is left is (1/4, 0, 1/4, 0)


def through_one(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
    token_ids, emitted = rejection_sampling_one_model(draft, ids, target, uniforms=uniforms)
    return emitted - 1, token_ids


def test_the_law_of_one_model() -> None:
    feed = testing.Feed(convert=need("torch").from_numpy, padding=2)
    testing.assert_lossless(through_one, feed=feed)


@pytest.mark.parametrize("leading", [False, True])
def test_rejected_indices_by_hand(leading: bool) -> None:
    torch = need("torch")
    draft, target = tensor(DRAFT), tensor([TARGET] if leading else TARGET)
    for case in CASES:
        found = get_rejected_indices(draft, target, tensor(case.uniforms[:2]), case.ids)
        passes = [case.uniforms[0] < 0.5 or case.ids[0] > 0, case.ids[1] > 0]
        assert sum(passes) == case.passing
        assert found.tolist() == [[i] for i, each in enumerate(passes) if not each]
        assert found.dtype == torch.int64
        assert found.shape[1] == 1
    # Ids behind the rows of the draft are not tested.
    assert get_rejected_indices(draft, target, tensor([0.75, 0.5]), [0, 0, 99]).tolist() == [
        [0],
        [1],
    ]


def test_nan_is_not_kept() -> None:
    target = tensor(TARGET)
    target[0, 0] = float("nan")
    call = lambda: get_rejected_indices(tensor(DRAFT), target, tensor([0.5, 0.5]), [0, 1])  # noqa: E731
    refused(ValueError, call, says=("target_probs", "nan"))


@pytest.mark.parametrize("leading", [False, True])
def test_two_models_by_hand(leading: bool) -> None:
    draft, target = tensor(DRAFT), tensor([TARGET] if leading else TARGET)
    target[..., 2, :] = float("nan")  # the bonus token comes from elsewhere
    for case in CASES:
        kept, token_ids = verify_two_model(
            draft, target, case.ids, tensor(case.uniforms), new_token=9
        )
        assert kept == len(case.emitted) - 1
        assert token_ids == (case.emitted if kept < 2 else [*case.ids, 9])
        assert type(kept) is int


def test_the_law_of_two_models() -> None:
    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        kept, emitted = np.zeros(len(ids), int), np.full(uniforms.shape, -1)
        for b in range(len(ids)):
            running = np.cumsum(target[b, -1])
            bonus = int(np.searchsorted(running, uniforms[b, -1] * running[-1], "right"))
            kept[b], token_ids = verify_two_model(
                tensor(draft[b], "float64"),
                tensor(target[b], "float64"),
                ids[b].tolist(),
                tensor(uniforms[b], "float64"),
                new_token=bonus,
            )
            emitted[b, : kept[b] + 1] = token_ids
        return kept, emitted

    need("torch")
    testing.assert_lossless(verify, instances=[testing.t3(2), testing.random_models(1)])


def test_no_copy_of_probabilities() -> None:
    rng = np.random.default_rng(0)
    draft = tensor(rng.dirichlet(np.ones(1000), (5, 6)))[:3, :4]
    target = tensor(rng.dirichlet(np.ones(1000), (3, 7)))[:, 1:6]
    ids, uniforms = tensor(np.full((3, 4), 5), "int64"), tensor(np.full((3, 5), 0.9))
    calls: list[Any] = [
        lambda: rejection_sampling_one_model(draft, ids, target, uniforms=uniforms),
        lambda: get_rejected_indices(draft[0], target[:1], uniforms[0, :4], [5] * 4),
        lambda: verify_two_model(draft[0], target[:1], [5] * 4, uniforms[0], new_token=1),
    ]
    for call in calls:
        assert engines.large_results(call, 1000, draft, target) == []


def test_what_is_refused() -> None:
    draft, target, uniforms = tensor(DRAFT), tensor(TARGET), tensor([0.5, 0.5, 0.5])
    cases: list[tuple[type[Exception], Any, tuple[str, ...]]] = [
        (
            TypeError,
            lambda: rejection_sampling_one_model(draft, [[0]], target, uniforms=uniforms),
            ("draft_token_ids", "list"),
        ),
        (
            ValueError,
            lambda: get_rejected_indices(draft, target, uniforms, [0, 1]),
            ("uniforms", "(2,)", "(3,)"),
        ),
        (
            ValueError,
            lambda: get_rejected_indices(draft, target, uniforms[:2], [0]),
            ("draft_tokens", "(2,)", "(1,)"),
        ),
        (
            ValueError,
            lambda: verify_two_model(draft[0], target, [0], uniforms, new_token=0),
            ("draft_probs", "(K, V)", "(4,)"),
        ),
        (
            ValueError,
            lambda: verify_two_model(draft, target, [0, 1], uniforms[:2], new_token=0),
            ("uniforms", "(3,)"),
        ),
        (
            ValueError,
            lambda: verify_two_model(draft, target, [0, 1], uniforms, new_token=-1),
            ("new_token", "-1"),
        ),
    ]
    for error, call, says in cases:
        refused(error, call, says=says)
