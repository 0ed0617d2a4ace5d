"""SGLang's layout: values by hand at places of the engine's, the law, no copies, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engines
from draftverify import testing
from draftverify.adapters.sglang import chain_speculative_sampling
from engines import CASES, KEPT, tensor
from kinds import need, refused


def arguments(dtype: str = "float32") -> dict[str, Any]:
    """Make up a call of the engine: a root before the drafted tokens, outputs to be written."""
    torch = need("torch")
    draft, target = engines.rows(dtype)
    number = len(CASES)
    root = torch.full((number, 1), 3)
    return {
        "predicts": torch.full((3 * number,), -7, dtype=torch.int32),
        "accept_index": torch.full((number, 3), -1, dtype=torch.int32),
        "accept_token_num": torch.full((number,), -7, dtype=torch.int32),
        "candidates": torch.cat([root, engines.ids("int64")], dim=1),
        "retrive_index": torch.arange(3 * number).view(number, 3),
        "retrive_next_token": None,
        "retrive_next_sibling": None,
        "uniform_samples": torch.cat([engines.uniforms()[:, :2], torch.full((number, 1), 9.0)], 1),
        "uniform_samples_for_final_sampling": engines.uniforms()[:, 2],
        "target_probs": target,
        "draft_probs": draft,
        "threshold_single": 1.0,
        "threshold_acc": 1.0,
        "deterministic": True,
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_by_hand(dtype: str) -> None:
    given = arguments(dtype)
    chain_speculative_sampling(*given.values())
    # At the place of the root what follows it, and so on; places behind are left alone.
    expected = [[*case.emitted, -7, -7][:3] for case in CASES]
    assert given["predicts"].view(-1, 3).tolist() == expected
    places = [[3 * b + i if i <= kept else -1 for i in range(3)] for b, kept in enumerate(KEPT)]
    assert given["accept_index"].tolist() == places
    assert given["accept_token_num"].tolist() == KEPT


def test_places_are_those_of_the_engine() -> None:
    torch = need("torch")
    given = arguments()
    given["retrive_index"] = torch.tensor([[40, 7, 19]] * len(CASES))[:1]
    for name in ("candidates", "uniform_samples", "uniform_samples_for_final_sampling"):
        given[name] = given[name][:1]
    for name in ("accept_index", "accept_token_num", "target_probs", "draft_probs"):
        given[name] = given[name][:1]
    given["predicts"] = torch.full((41,), -7, dtype=torch.int32)
    given["accept_index"] = torch.full((1, 5), -1, dtype=torch.int32)  # deeper than the chain
    chain_speculative_sampling(**given)
    assert given["accept_index"].tolist() == [[40, 7, 19, -1, -1]]
    assert given["predicts"][[40, 7, 19]].tolist() == CASES[0].emitted
    assert (given["predicts"] != -7).sum() == 3


def test_without_draft_probs_proposals_are_certain() -> None:
    given = arguments()
    given["draft_probs"] = None
    given["uniform_samples"] = tensor([[0.125, 0.625, 9.0]] * len(CASES))
    given["uniform_samples_for_final_sampling"] = tensor([0.5] * len(CASES))
    chain_speculative_sampling(**given)
    # 0 < 1/8 < 1/4 keeps the 0; 5/8 rejects 1 at 1/2, and leaves (0, 0, 1/4, 1/4): 3 from half on.
    assert given["predicts"][:3].tolist() == [0, 3, -7]
    # 1/8 < 1/4 keeps the 2, 5/8 rejects it at 1/4, and leaves (0, 1/2, 0, 1/4): 3/8 is below 1/2.
    assert given["predicts"][12:15].tolist() == [2, 1, -7]


def test_block_verification_keeps_one_where_tokens_alone_keep_none() -> None:
    torch = need("torch")
    # T2 of Sun et al.: the target (1/3, 2/3), the draft (2/3, 1/3). Drafted 0 and 1: the joint
    # ratios are 1/2 and min(1, 1/2 * 2) = 1, so both are kept whatever the second uniform is,
    # while the first token alone is rejected at 3/4 >= 1/2.
    for block, kept in ((True, 2), (False, 0)):
        predicts = torch.full((3,), -7, dtype=torch.int32)
        accept_index = torch.full((1, 3), -1, dtype=torch.int32)
        count = torch.zeros(1, dtype=torch.int32)
        chain_speculative_sampling(
            predicts,
            accept_index,
            count,
            torch.tensor([[0, 0, 1]]),
            torch.tensor([[0, 1, 2]]),
            None,
            None,
            tensor([[0.75, 0.9375, 0.0]], "float64"),
            tensor([0.5], "float64"),
            tensor([[[1 / 3, 2 / 3]] * 3], "float64"),
            tensor([[[2 / 3, 1 / 3]] * 2], "float64"),
            block_verification=block,
        )
        assert count.tolist() == [kept]
        assert predicts.tolist() == ([0, 1, 1] if block else [1, -7, -7])


def through(draft: Any, target: Any, ids: Any, uniforms: Any, **options: Any) -> Any:
    torch = need("torch")
    requests, drafted = ids.shape
    predicts = torch.full((requests * (drafted + 1),), -1, dtype=torch.int32)
    accept_index = torch.full((requests, drafted + 1), -1, dtype=torch.int32)
    kept = torch.empty(requests, dtype=torch.int32)
    chain_speculative_sampling(
        predicts,
        accept_index,
        kept,
        torch.cat([torch.zeros((requests, 1), dtype=torch.int64), ids], dim=1),
        torch.arange(requests * (drafted + 1)).view(requests, -1),
        None,
        None,
        torch.cat([uniforms[:, :-1], uniforms[:, :1]], dim=1),
        uniforms[:, -1],
        target,
        draft,
        **options,
    )
    return kept, predicts.view(requests, -1)


@pytest.mark.parametrize("method", ["standard", "block"])
def test_the_law(method: str) -> None:
    feed = testing.Feed(convert=need("torch").from_numpy)

    def verify(*arrays: Any) -> Any:
        return through(*arrays, block_verification=method == "block")

    testing.assert_lossless(verify, method=method, feed=feed)
    testing.assert_lossless(
        verify, method=method, feed=testing.Feed(one_hot=True, convert=feed.convert)
    )


def test_no_copy_of_probabilities() -> None:
    given = arguments()
    rng = np.random.default_rng(0)
    wide = tensor(rng.dirichlet(np.ones(1000), (12, 3)))
    given["target_probs"] = wide[::2]
    given["draft_probs"] = tensor(rng.dirichlet(np.ones(1000), (3, 6))).transpose(0, 1)[:, :2]
    inputs = (given["target_probs"], given["draft_probs"])
    call = lambda: chain_speculative_sampling(**given)  # noqa: E731
    assert engines.large_results(call, 1000, *inputs) == []


@pytest.mark.parametrize(
    ("error", "name", "change", "says"),
    [
        (TypeError, "predicts", lambda old: old.numpy(), "ndarray"),
        (TypeError, "target_probs", lambda old: old.numpy(), "ndarray"),
        (ValueError, "predicts", lambda old: old.view(-1, 3), "(T,)"),
        (ValueError, "candidates", lambda old: old[0], "(B, K)"),
        (ValueError, "retrive_index", lambda old: old[:, :2], "(6, 3)"),
        (ValueError, "retrive_index", lambda old: old + 1, "0 to 17"),
        (ValueError, "retrive_index", lambda old: old - 1, "0 to 17"),
        (ValueError, "uniform_samples", lambda old: old[:, :2], "(6, 3)"),
        (ValueError, "uniform_samples_for_final_sampling", lambda old: old[:5], "(6,)"),
        (ValueError, "accept_index", lambda old: old[:, :2], "(6, 3)"),
        (ValueError, "accept_token_num", lambda old: old[:5], "(6,)"),
        (ValueError, "draft_probs", lambda old: old[..., :3], "(6, 2, 4)"),
    ],
)
def test_what_is_refused(error: type[Exception], name: str, change: Any, says: str) -> None:
    given = arguments()
    before = given["predicts"].clone()
    given[name] = change(given[name])
    refused(error, lambda: chain_speculative_sampling(**given), says=(name, says))
    if name != "predicts":
        assert given["predicts"].equal(before)


@pytest.mark.parametrize("name", ["uniform_samples", "uniform_samples_for_final_sampling"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64"])
def test_uniforms_of_few_bits_are_refused_beside_good_ones(name: str, dtype: str) -> None:
    torch = need("torch")
    given = arguments()
    given[name] = torch.zeros_like(given[name], dtype=getattr(torch, dtype))
    refused(
        TypeError,
        chain_speculative_sampling,
        *given.values(),
        says=(name, f"got dtype torch.{dtype}"),
    )
    assert given["predicts"].unique().tolist() == [-7]


def test_there_is_no_padding_in_candidates() -> None:
    given = arguments()
    given["candidates"][2, 2] = -1
    refused(
        ValueError,
        lambda: chain_speculative_sampling(**given),
        says=("candidates", "-1"),
    )


OUTPUTS = ["predicts", "accept_index", "accept_token_num"]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    ("error", "change", "says"),
    [
        (TypeError, lambda old: old.long(), "got torch.int64"),
        (TypeError, lambda old: old.float(), "got torch.float32"),
        (TypeError, lambda old: old.to("meta"), "meta tensor"),
        (ValueError, lambda old: old[0].clone().flatten()[:1].expand(old.shape), "expanded"),
        (ValueError, lambda old: old[None], "(1, "),
    ],
    ids=["int64", "float32", "meta", "expanded", "shape"],
)
def test_outputs_are_looked_at_before_anything_is_written(
    name: str, error: type[Exception], change: Any, says: str
) -> None:
    given = arguments()
    before = {other: given[other].clone() for other in OUTPUTS}
    given[name] = change(given[name])
    refused(error, lambda: chain_speculative_sampling(**given), says=(name, says))
    assert all(given[other].equal(before[other]) for other in OUTPUTS if other != name)


def test_outputs_that_share_memory_are_refused() -> None:
    given = arguments()
    given["accept_token_num"] = given["predicts"][2:8]
    refused(
        ValueError,
        lambda: chain_speculative_sampling(**given),
        says=("accept_token_num", "overlaps predicts"),
    )
    assert given["predicts"].unique().tolist() == [-7]


def test_outputs_made_in_inference_mode() -> None:
    torch = need("torch")
    with torch.inference_mode():
        given = arguments()

    def call() -> None:
        chain_speculative_sampling(**given)

    refused(ValueError, call, says=("predicts", "inference mode"))
    assert given["predicts"].unique().tolist() == [-7]
    with torch.inference_mode():
        call()
    assert given["accept_token_num"].tolist() == KEPT


def test_a_root_is_expected() -> None:
    given = arguments()
    given["candidates"] = given["candidates"][:, :0]
    refused(ValueError, lambda: chain_speculative_sampling(**given), says=("candidates", "root"))
