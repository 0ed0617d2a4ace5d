"""FlashInfer's layout: values by hand, both counters, the law, no copies, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import engines
from draftverify import testing
from draftverify.adapters.flashinfer import chain_speculative_sampling
from engines import CASES, EMITTED, KEPT, tensor
from kinds import need, refused

PASSING = [case.passing for case in CASES]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
@pytest.mark.parametrize("uniforms_dtype", ["float32", "float64"])
def test_values_by_hand(dtype: str, ids_dtype: str, uniforms_dtype: str) -> None:
    torch = need("torch")
    draft, target = engines.rows(dtype)
    token_ids, accepted, emitted = chain_speculative_sampling(
        draft, engines.ids(ids_dtype), target, uniforms=engines.uniforms(uniforms_dtype)
    )
    assert token_ids.tolist() == EMITTED
    assert accepted.tolist() == PASSING
    assert emitted.tolist() == KEPT
    assert token_ids.dtype == accepted.dtype == emitted.dtype == torch.int32


def test_counts_are_added_to_what_is_there() -> None:
    draft, target = engines.rows()
    first, second = tensor([10] * len(CASES), "int32"), tensor([20] * len(CASES), "int32")
    _, accepted, emitted = chain_speculative_sampling(
        draft, engines.ids(), target, first, second, uniforms=engines.uniforms()
    )
    assert accepted is first
    assert emitted is second
    assert first.tolist() == [10 + count for count in PASSING]
    assert second.tolist() == [20 + count for count in KEPT]


def test_a_run_of_minus_one_ends_a_chain() -> None:
    draft, target = engines.rows()
    draft[:, 1:], target[:, 2:] = np.nan, np.nan
    ids = tensor([[0, -1], [-1, -1]], "int64")
    uniforms = tensor([[0.25, 0.625, 9.0], [0.125, 9.0, 9.0]])
    token_ids, accepted, emitted = chain_speculative_sampling(
        draft[:2], ids, target[:2], uniforms=uniforms
    )
    # Behind the end the target's row alone: (0, 1/2, 1/4, 1/4), and (1/4, 1/2, 1/4, 0).
    assert token_ids.tolist() == [[0, 2, -1], [0, -1, -1]]
    assert accepted.tolist() == emitted.tolist() == [1, 0]


def test_no_requests() -> None:
    draft, target = engines.rows()
    found = chain_speculative_sampling(
        draft[:0], engines.ids()[:0], target[:0], uniforms=engines.uniforms()[:0]
    )
    assert [tuple(each.shape) for each in found] == [(0, 3), (0,), (0,)]


def through(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
    token_ids, _, emitted = chain_speculative_sampling(draft, ids, target, uniforms=uniforms)
    return emitted, token_ids


def test_the_law() -> None:
    feed = testing.Feed(convert=need("torch").from_numpy, padding=1)
    testing.assert_lossless(through, feed=feed)


def test_accepted_counts_each_position_for_itself() -> None:
    rng = np.random.default_rng(5)
    draft, target = (rng.dirichlet(np.ones(6), (40, length)) for length in (4, 5))
    ids: NDArray[Any] = rng.integers(0, 6, (40, 4))
    uniforms = rng.random((40, 5))
    tensors = [tensor(each, "float64") for each in (draft, target, uniforms)]
    _, accepted, emitted = chain_speculative_sampling(
        tensors[0], tensor(ids, "int64"), tensors[1], uniforms=tensors[2]
    )
    at = (np.arange(40)[:, None], np.arange(4), ids)
    passes = uniforms[:, :4] * draft[at] < target[:, :4][at]
    assert accepted.tolist() == passes.sum(axis=1).tolist()
    assert emitted.tolist() == np.cumprod(passes, axis=1).sum(axis=1).tolist()
    assert accepted.tolist() != emitted.tolist()


def test_no_copy_of_probabilities() -> None:
    draft = tensor(np.random.default_rng(0).dirichlet(np.ones(1000), (3, 4))).transpose(0, 1)
    target = tensor(np.random.default_rng(1).dirichlet(np.ones(1000), (6, 3))).transpose(0, 1)
    draft = draft.transpose(0, 1).expand(3, 4, 1000)
    target = target[:, 1:]
    ids, uniforms = tensor(np.full((3, 4), 5), "int64"), tensor(np.full((3, 5), 0.9))

    def call() -> object:
        return chain_speculative_sampling(draft, ids, target, uniforms=uniforms)

    assert engines.large_results(call, 1000, draft, target) == []
    assert engines.large_results(draft.double, 1000, draft) != []  # the watch sees copies


def test_what_is_refused() -> None:
    draft, target = engines.rows()
    good: dict[str, Any] = {
        "draft_probs": draft,
        "draft_token_ids": engines.ids(),
        "target_probs": target,
        "uniforms": engines.uniforms(),
    }

    def refuses(error: type[Exception], *says: str, **changes: Any) -> None:
        refused(error, lambda: chain_speculative_sampling(**{**good, **changes}), says=says)

    refuses(TypeError, "draft_probs", "ndarray", draft_probs=draft.numpy())
    refuses(ValueError, "draft_token_ids", "(B, K)", draft_token_ids=engines.ids()[0])
    refuses(ValueError, "target_probs", "(6, 3, 4)", target_probs=target[:, :2])
    refuses(ValueError, "draft_token_ids", draft_token_ids=engines.ids() - 1)
    refuses(ValueError, "uniforms", uniforms=engines.uniforms() * 2)
    name = "maybe_output_accepted_token_num"
    refuses(TypeError, name, "int64", **{name: tensor([0] * 6, "int64")})
    refuses(ValueError, name, "(6,)", "(1,)", **{name: tensor([0], "int32")})
    # A drafted id that the draft cannot have proposed, behind a rejection.
    counter = tensor([0] * 6, "int32")
    impossible = draft.clone()
    impossible[1, 1, 1] = 0.0
    refuses(ValueError, "draft_token_ids", "got 1", draft_probs=impossible, **{name: counter})
    assert counter.tolist() == [0] * 6
