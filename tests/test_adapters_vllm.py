"""vLLM's two layouts: values by hand, placeholders, slots, the law, no copies, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import engines
from draftverify import testing
from draftverify.adapters.vllm import rejection_sample_v1, rejection_sample_v2
from engines import CASES, DRAFT, KEPT, TARGET, tensor
from kinds import need, refused

NUMBER = len(CASES)
LATER = object()  # a tensor, made where Torch is known to be there
BONUS = [[90 + b] for b in range(NUMBER)]


def logits(probs: Any) -> Any:
    return tensor(probs, "float64").log().float()


def random(temperature: list[float]) -> Any:
    """Make up vLLM's metadata of requests with these temperatures."""
    return SimpleNamespace(all_greedy=False, temperature=tensor(temperature))


def v1(**changes: Any) -> dict[str, Any]:
    """Make up a call of the V1 sampler with all cases."""
    given: dict[str, Any] = {
        "draft_token_ids": engines.ids().view(-1),
        "num_draft_tokens": [2] * NUMBER,
        "max_spec_len": 2,
        "cu_num_draft_tokens": tensor([2 * (b + 1) for b in range(NUMBER)], "int32"),
        "draft_probs": tensor(DRAFT * NUMBER),
        "target_logits": logits(TARGET[:2] * NUMBER),
        "bonus_token_ids": tensor(BONUS, "int64"),
        "sampling_metadata": random([1.0] * NUMBER),
        "uniforms": engines.uniforms("float64").view(-1),
    }
    return {**given, **changes}


def with_bonus(emitted: list[int], bonus: int) -> list[int]:
    return [*emitted[:2], bonus] if len(emitted) == 3 else [*emitted, -1, -1][:3]


EXPECTED = [with_bonus(case.emitted, 90 + b) for b, case in enumerate(CASES)]


@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
def test_v1_by_hand(ids_dtype: str) -> None:
    torch = need("torch")
    given = v1(draft_token_ids=engines.ids(ids_dtype).view(-1))
    output = rejection_sample_v1(*list(given.values())[:8], uniforms=given["uniforms"])
    assert output.tolist() == EXPECTED
    assert output.dtype == torch.int32


def test_v1_ragged_and_wider_than_the_longest() -> None:
    given = v1(
        draft_token_ids=tensor([0, 1, 0, 2], "int32"),
        num_draft_tokens=[2, 0, 1, 1],
        max_spec_len=4,
        cu_num_draft_tokens=tensor([2, 2, 3, 4], "int32"),
        draft_probs=tensor([*DRAFT, DRAFT[0], DRAFT[0]]),
        target_logits=logits([*TARGET[:2], TARGET[0], TARGET[0]]),
        bonus_token_ids=tensor(BONUS[:4], "int64"),
        sampling_metadata=random([1.0, 0.5, 2.0, 1.0]),
        uniforms=tensor([0.25, 0.75, 9.0, 9.0, 0.75, 0.5, 0.75, 9.0][:8]),
    )
    given["uniforms"][[2, 3, 7]] = tensor([0.0, 0.0, 0.0])
    assert rejection_sample_v1(**given).tolist() == [
        [0, 1, 90, -1, -1],
        [91, -1, -1, -1, -1],
        [1, -1, -1, -1, -1],
        [2, 93, -1, -1, -1],
    ]


def test_v1_without_draft_probs_proposals_are_certain() -> None:
    uniforms = tensor([0.125, 0.625, 0.5625] * NUMBER)
    output = rejection_sample_v1(**v1(draft_probs=None, uniforms=uniforms))
    # 1/8 < 1/4 keeps 0 and 2, 1/8 < 1/2 keeps 1. 5/8 rejects all behind; at 9/16 is drawn of
    # (0, 0, 1/4, 1/4), (0, 1/2, 1/4, 1/4), (0, 1/2, 0, 1/4) and (0, 1/2, 1/4, 0).
    assert output.tolist() == [
        [0, 3, -1],
        [0, 3, -1],
        [0, 2, -1],
        [1, 2, -1],
        [2, 1, -1],
        [1, 1, -1],
    ]


@pytest.mark.parametrize("with_draft", [True, False])
def test_v1_greedy_requests_between_others(with_draft: bool) -> None:
    # The target's most probable ids are 1 and 1.
    greedy = [[1, -1, -1], [1, -1, -1], [1, -1, -1], [1, 1, -1], [1, -1, -1], [1, 1, -1]]
    for pattern in ([0, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 0], [0] * 6):
        given = v1(sampling_metadata=random([float(each) for each in pattern]))
        others = EXPECTED
        if not with_draft:
            given["draft_probs"] = None
            given["uniforms"] = tensor([0.125, 0.625, 0.5625] * NUMBER)
            others = [[0, 3, -1], [0, 3, -1], [0, 2, -1], [1, 2, -1], [2, 1, -1], [1, 1, -1]]
        expected = [(others if each else greedy)[b] for b, each in enumerate(pattern)]
        assert rejection_sample_v1(**given).tolist() == expected
    given = v1(uniforms=None, sampling_metadata=SimpleNamespace(all_greedy=True, temperature=None))
    assert rejection_sample_v1(**given).tolist() == greedy
    given["draft_token_ids"] = tensor([1, 1] * NUMBER, "int32")
    assert rejection_sample_v1(**given).tolist() == [[1, 1, *bonus] for bonus in BONUS]


@pytest.mark.parametrize("with_draft", [True, False])
def test_v1_a_placeholder_ends_a_chain(with_draft: bool) -> None:
    ids = [[0, -1], [-1, 1], [0, 1], [-1, -1], [1, -1], [2, 1]]
    given = v1(
        draft_token_ids=tensor(ids, "int32").view(-1),
        sampling_metadata=random([1.0, 1.0, 1.0, 1.0, 0.0, 1.0]),
        # Behind the end nothing is read, neither of these nor of the rows.
        uniforms=tensor([0.125, 0.625, 0, 0.125, 0, 0, 0.125, 0.25, 0, 0.625, 0, 0, *[0.125] * 6]),
    )
    if not with_draft:
        given["draft_probs"] = None
    else:
        given["draft_probs"][[1, 2, 3, 6, 7]] = float("nan")
    given["target_logits"][[3, 7]] = float("nan")
    # Drawn of the target's rows (0, 1/2, 1/4, 1/4) at 5/8, (1/4, 1/2, 1/4, 0) at 1/8 and at 5/8.
    expected = [[0, 2, -1], [0, -1, -1], [0, 1, 92], [1, -1, -1], [1, 1, -1], [2, 1, 95]]
    assert rejection_sample_v1(**given).tolist() == expected


@pytest.mark.parametrize("token", [-2, -7, -(2**31)])
def test_v1_other_negative_ids_are_no_placeholders(token: int) -> None:
    ids = engines.ids("int32").view(-1).clone()
    ids[1] = token
    given = v1(draft_token_ids=ids)
    call = lambda: rejection_sample_v1(*list(given.values())[:8], uniforms=given["uniforms"])  # noqa: E731
    refused(ValueError, call, says=("draft_token_ids: expected an id from 0", f"got {token}"))


def test_v1_no_requests() -> None:
    given = v1(
        draft_token_ids=tensor([], "int32"),
        num_draft_tokens=[],
        cu_num_draft_tokens=tensor([], "int32"),
        draft_probs=tensor(DRAFT)[:0],
        target_logits=tensor(TARGET)[:0],
        bonus_token_ids=tensor([], "int64").view(0, 1),
        sampling_metadata=random([]),
        uniforms=tensor([]),
    )
    assert tuple(rejection_sample_v1(**given).shape) == (0, 3)


def through_v1(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
    """Verify in V1's layout; the bonus token is drawn here, as it is elsewhere in vLLM."""
    requests, drafted = ids.shape
    running = np.cumsum(target[:, -1], axis=-1)
    bonus = (running <= uniforms[:, -1:] * running[:, -1:]).sum(axis=-1)
    output = rejection_sample_v1(
        tensor(ids.reshape(-1), "int32"),
        [drafted] * requests,
        drafted,
        tensor(drafted * np.arange(1, requests + 1), "int32"),
        None if draft is None else tensor(draft.reshape(-1, target.shape[-1])),
        logits(target[:, :-1].reshape(-1, target.shape[-1])),
        tensor(bonus[:, None], "int64"),
        random([1.0] * requests),
        uniforms=tensor(uniforms.reshape(-1), "float64"),
    )
    return (output >= 0).sum(dim=1) - 1, output


@pytest.mark.parametrize("one_hot", [False, True])
def test_v1_the_law(one_hot: bool) -> None:
    need("torch")
    feed = testing.Feed(one_hot=one_hot, tolerance=1e-5)
    testing.assert_lossless(through_v1, feed=feed, instances=testing.ready_instances()[:5])


def test_v1_makes_no_copies() -> None:
    rng = np.random.default_rng(0)
    draft = tensor(rng.dirichlet(np.ones(1000), (2, 6))).view(-1, 1000)[::2]
    target = tensor(rng.normal(0.0, 2.0, (6, 1000)))
    given = v1(
        draft_token_ids=tensor([5, 5, 5, -1, 5, 5], "int32"),
        num_draft_tokens=[2] * 3,
        cu_num_draft_tokens=tensor([2, 4, 6], "int32"),
        draft_probs=draft,
        target_logits=target,
        bonus_token_ids=tensor(BONUS[:3], "int64"),
        sampling_metadata=random([1.0, 1.0, 0.0]),
        uniforms=tensor([0.5] * 9),
    )
    # With draft_probs the engine's own softmax, and that is all.
    made = engines.large_results(lambda: rejection_sample_v1(**given), 1000, draft, target)
    assert made == ["aten._softmax.default"]
    given["draft_probs"] = None
    assert engines.large_results(lambda: rejection_sample_v1(**given), 1000, target) == []


def v2(temperatures: list[float] | None = None, **changes: Any) -> dict[str, Any]:
    """Make up a call of Model Runner V2: slots in another order, two of them empty."""
    torch = need("torch")
    slots = [4, 5, 6, 0, 1, 3]
    temperature = torch.full((8,), float("nan"))
    temperature[slots] = tensor(temperatures or [1.0] * NUMBER)
    draft_logits = torch.full((8, 2, 4), float("nan"))
    for slot in slots:
        draft_logits[slot] = logits(DRAFT) * temperature[slot]  # as it is before the division
    draft_sampled = torch.cat([torch.full((NUMBER, 1), -9), engines.ids("int64")], dim=1)
    given: dict[str, Any] = {
        "target_logits": logits(TARGET * NUMBER),
        "draft_logits": draft_logits,
        "draft_sampled": draft_sampled.view(-1),
        "cu_num_logits": tensor([3 * b for b in range(NUMBER + 1)], "int32"),
        "pos": None,
        "idx_mapping": tensor(slots, "int32"),
        "expanded_idx_mapping": None,
        "expanded_local_pos": None,
        "temperature": temperature,
        "seed": None,
        "num_speculative_steps": 2,
        "uniforms": engines.uniforms("float64").view(-1),
    }
    return {**given, **changes}


@pytest.mark.parametrize("temperatures", [[1.0] * 6, [0.5, 2.0, 1.0, 0.25, 1.0, 4.0]])
def test_v2_by_hand(temperatures: list[float]) -> None:
    torch = need("torch")
    sampled, num_sampled = rejection_sample_v2(**v2(temperatures))
    assert sampled.tolist() == engines.EMITTED
    assert num_sampled.tolist() == [kept + 1 for kept in KEPT]
    assert sampled.dtype == torch.int64
    assert num_sampled.dtype == torch.int32


def test_v2_takes_the_arguments_in_the_engines_order() -> None:
    given = v2()
    uniforms = given.pop("uniforms")
    sampled, _ = rejection_sample_v2(*given.values(), uniforms=uniforms)
    assert sampled.tolist() == engines.EMITTED


def test_v2_ragged() -> None:
    given = v2()
    keep = [0, 1, 2, 3, 6, 7, 8, 9, 10]  # of the requests 0, 1, 2 and 3: 3, 1, 3 and 2 rows
    for name in ("target_logits", "draft_sampled", "uniforms"):
        given[name] = given[name][keep].clone()
    given["target_logits"][3] = logits(TARGET[2])  # a request with nothing drafted
    given["target_logits"][8] = logits(TARGET[2])  # the bonus row of one drafted token
    given["uniforms"][3], given["uniforms"][8] = 0.75, 0.25
    given["cu_num_logits"] = tensor([0, 3, 4, 7, 9], "int32")
    given["idx_mapping"] = given["idx_mapping"][:4]
    sampled, num_sampled = rejection_sample_v2(**given)
    assert sampled.tolist() == [[0, 1, 2], [3, -1, -1], [1, -1, -1], [1, 2, -1]]
    assert num_sampled.tolist() == [3, 1, 1, 2]


def test_v2_greedy_requests_between_others() -> None:
    # The most probable ids are 1, 1 and 2, the lowest of two.
    given = v2([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    given["draft_logits"][[4, 6, 1, 3]] = float("nan")
    sampled, _ = rejection_sample_v2(**given)
    expected = [[1, -1, -1], engines.EMITTED[1], [1, -1, -1], [1, 1, -1], [1, -1, -1], [1, 1, -1]]
    assert sampled.tolist() == expected
    given = v2([0.0] * NUMBER, uniforms=None, draft_logits=None)
    given["draft_sampled"] = tensor([-9, 1, 1] * NUMBER, "int64")
    assert rejection_sample_v2(**given)[0].tolist() == [[1, 1, 2]] * NUMBER


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("with_draft", [True, False])
def test_v2_a_placeholder_ends_a_chain(with_draft: bool, block: bool) -> None:
    ids = [[0, -1], [-1, 1], [2, 1], [-1, -1], [1, -1], [2, 1]]
    given = v2(
        [1.0, 1.0, 1.0, 1.0, 0.0, 1.0],
        draft_sampled=tensor([[-9, *row] for row in ids], "int64").view(-1),
        uniforms=tensor([0.125, 0.625, 9, 0.125, 9, 9, *[0.125] * 3, 0.625, 9, 9, *[0.125] * 6]),
        use_block_verification=block,
    )
    if with_draft:
        given["draft_logits"][4, 1] = given["draft_logits"][5] = float("nan")
    else:
        given["draft_logits"] = None
    given["target_logits"][[2, 4, 5, 10, 11]] = float("nan")
    sampled, num_sampled = rejection_sample_v2(**given)
    assert sampled.tolist() == [
        [0, 2, -1],
        [0, -1, -1],
        [2, 1, 2],
        [1, -1, -1],
        [1, 1, -1],
        [2, 1, 2],
    ]
    assert num_sampled.tolist() == [2, 1, 3, 1, 2, 3]


def test_v2_cuts_both_to_the_smaller_vocabulary() -> None:
    pad = need("torch").nn.functional.pad
    given = v2()
    given["target_logits"] = pad(given["target_logits"], (0, 3), value=50.0)
    assert rejection_sample_v2(**given)[0].tolist() == engines.EMITTED
    given = v2()
    given["draft_logits"] = pad(given["draft_logits"], (0, 3), value=50.0)
    assert rejection_sample_v2(**given)[0].tolist() == engines.EMITTED
    # The table of a smaller draft: ids that it does not know are not drafted.
    given = v2()
    given["draft_logits"] = given["draft_logits"][..., :3]
    says = ("draft_sampled", "0 to 2", "got 3")
    refused(ValueError, lambda: rejection_sample_v2(**given), says=says)


def test_v2_draft_logits_of_minus_infinity_are_ids_that_the_draft_does_not_know() -> None:
    # vLLM's draft models with a reduced vocabulary hand over such rows.
    given = v2()
    given["draft_logits"][4, 0] = logits([0.5, 0.5, 0.0, 0.0])
    given["uniforms"][:3] = tensor([0.75, 0.0, 0.25], "float64")
    # 3/8 is above the target's 1/4; what is left is (0, 0, 1/4, 0).
    assert rejection_sample_v2(**given)[0][0].tolist() == [2, -1, -1]


def through_v2(draft: Any, target: Any, ids: Any, uniforms: Any, **options: Any) -> Any:
    torch = need("torch")
    requests, drafted = ids.shape
    root = torch.zeros((requests, 1), dtype=torch.int64)
    sampled, num_sampled = rejection_sample_v2(
        target.reshape(-1, target.shape[-1]),
        draft if draft is None else draft.flip(0) * 0.5,
        torch.cat([root, ids], dim=1).view(-1),
        torch.arange(requests + 1) * (drafted + 1),
        None,
        torch.arange(requests - 1, -1, -1),
        None,
        None,
        torch.full((requests,), 0.5),
        None,
        drafted,
        uniforms=uniforms.reshape(-1),
        **options,
    )
    return num_sampled - 1, sampled


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", ["standard", "block"])
def test_v2_the_law(method: str, one_hot: bool) -> None:
    def verify(*arrays: Any) -> Any:
        return through_v2(*arrays, use_block_verification=method == "block")

    feed = testing.Feed(
        one_hot=one_hot, log_probs=True, tolerance=1e-9, convert=need("torch").from_numpy
    )
    instances = testing.ready_instances()
    testing.assert_lossless(verify, method=method, feed=feed, instances=instances[2:5])


def test_v2_makes_no_copies() -> None:
    torch = need("torch")
    rng = np.random.default_rng(0)
    given = v2(
        target_logits=tensor(rng.normal(0.0, 2.0, (36, 1000)))[::2],
        draft_logits=tensor(rng.normal(0.0, 2.0, (8, 4, 1020)))[:, ::2],
        temperature=torch.ones(8),
    )
    inputs = (given["target_logits"], given["draft_logits"])
    assert engines.large_results(lambda: rejection_sample_v2(**given), 1000, *inputs) == []


@pytest.mark.parametrize(
    ("error", "changes", "says"),
    [
        (TypeError, {"draft_token_ids": [0, 1]}, ("draft_token_ids", "list")),
        (TypeError, {"uniforms": None}, ("uniforms", "got None")),
        (TypeError, {"uniforms": [0.5] * 18}, ("uniforms", "list")),
        (TypeError, {"sampling_metadata": None}, ("sampling_metadata", "NoneType", "all_greedy")),
        (
            TypeError,
            {"sampling_metadata": SimpleNamespace(all_greedy=False)},
            ("sampling_metadata", "without temperature"),
        ),
        (
            TypeError,
            {"sampling_metadata": SimpleNamespace(all_greedy=False, temperature=None)},
            ("sampling_metadata", "got None"),
        ),
        (
            TypeError,
            {"sampling_metadata": SimpleNamespace(all_greedy=False, temperature=1.0)},
            ("sampling_metadata.temperature", "float"),
        ),
        (
            ValueError,
            {"sampling_metadata": SimpleNamespace(all_greedy=False, temperature=LATER)},
            ("sampling_metadata.temperature", "(6,)"),
        ),
        (TypeError, {"num_draft_tokens": None}, ("num_draft_tokens", "integers")),
        (TypeError, {"num_draft_tokens": 2.0}, ("num_draft_tokens", "integers")),
        (ValueError, {"num_draft_tokens": 2}, ("num_draft_tokens", "(B,)")),
        (ValueError, {"num_draft_tokens": [2] * 5}, ("cu_num_draft_tokens", "(5,)", "(6,)")),
        (ValueError, {"num_draft_tokens": [2, 3, 1, 2, 2, 2]}, ("cu_num_draft_tokens", "[2, 5")),
        (ValueError, {"num_draft_tokens": [3, -1, 4, 2, 2, 2]}, ("cu_num_draft_tokens",)),
        (ValueError, {"max_spec_len": 1}, ("max_spec_len", "at least 2", "got 1")),
        (ValueError, {"synthetic_mode": True}, ("synthetic_mode", "True", "law")),
        (ValueError, {"fly_window_size": 3}, ("fly_window_size", "3", "law")),
    ],
)
def test_v1_what_is_refused(error: type[Exception], changes: Any, says: tuple[str, ...]) -> None:
    need("torch")
    if getattr(changes.get("sampling_metadata"), "temperature", None) is LATER:
        changes = {"sampling_metadata": random([1.0] * 5)}
    refused(error, lambda: rejection_sample_v1(**v1(**changes)), says=says)


def test_v1_refuses_shapes_and_impossible_ids() -> None:
    cases: list[tuple[str, Any, type[Exception], str]] = [
        ("draft_token_ids", lambda old: old.view(-1, 2), ValueError, "(T,)"),
        ("draft_token_ids", lambda old: old[:-1], ValueError, "(12,)"),
        ("bonus_token_ids", lambda old: old[:, 0], ValueError, "(6, 1)"),
        ("uniforms", lambda old: old[:-1], ValueError, "(18,)"),
        ("draft_probs", lambda old: old[:, :3], ValueError, "(12, 4)"),
        ("draft_probs", lambda old: old.double(), TypeError, "float64"),
        ("draft_token_ids", lambda old: old + 2, ValueError, "0 to 3"),
    ]
    for name, change, error, says in cases:
        given = v1()
        given[name] = change(given[name])
        refused(error, lambda: rejection_sample_v1(**given), says=(name, says))  # noqa: B023


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"synthetic_conditional_rates": [0.5]}, ("synthetic_conditional_rates", "law")),
        ({"watermark_key": 0}, ("watermark_key", "law")),
        ({"fly_window_size": 4}, ("fly_window_size", "4", "law")),
        ({"num_speculative_steps": 1}, ("cu_num_logits", "1 to 2 of the 18 rows")),
    ],
)
def test_v2_what_is_refused(changes: Any, says: tuple[str, ...]) -> None:
    need("torch")
    refused(ValueError, lambda: rejection_sample_v2(**v2(**changes)), says=says)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("target_logits", lambda old: old[None], "(T, V)"),
        ("draft_sampled", lambda old: old[:-1], "(18,)"),
        ("cu_num_logits", lambda old: old[1:], "6 requests"),
        ("cu_num_logits", lambda old: old + 1, "6 requests"),
        ("cu_num_logits", lambda old: old.flip(0), "6 requests"),
        ("idx_mapping", lambda old: old + 2, "0 to 7"),
        ("idx_mapping", lambda old: old - 1, "0 to 7"),
        ("draft_logits", lambda old: old[:, :1], "(8, 2, 4)"),
        ("draft_logits", lambda old: old[:7], "(8, 2, 4)"),
        ("uniforms", lambda _: None, "None"),
    ],
)
def test_v2_shapes_that_are_refused(name: str, change: Any, says: str) -> None:
    given = v2()
    given[name] = change(given[name])
    error = TypeError if name == "uniforms" else ValueError
    refused(error, lambda: rejection_sample_v2(**given), says=(name, says))
