"""Errors of the adapters name the engine's arguments, whatever is wrong with whichever of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import engines
import test_adapters_sglang
import test_adapters_vllm
from draftverify.adapters import flashinfer, sglang, tensorrt_llm, transformers, vllm, vocabulary
from draftverify.adapters._torch import expect_outputs
from engines import DRAFT, TARGET, tensor
from kinds import need, refused

Call = Callable[[], dict[str, Any]]


def of_flashinfer() -> dict[str, Any]:
    draft, target = engines.rows()
    return {
        "draft_probs": draft,
        "draft_token_ids": engines.ids(),
        "target_probs": target,
        "maybe_output_accepted_token_num": tensor([0] * 6, "int32"),
        "maybe_output_emitted_draft_token_num": tensor([0] * 6, "int32"),
        "uniforms": engines.uniforms(),
    }


def of_one_model() -> dict[str, Any]:
    return {name: of_flashinfer()[name] for name in (*ROWS, "draft_token_ids", "uniforms")}


def of_rejected_indices() -> dict[str, Any]:
    numbers = {"uniforms": tensor([0.5, 0.5]), "draft_tokens": [0, 1]}
    return {"draft_probs": tensor(DRAFT), "target_probs": tensor(TARGET), **numbers}


def of_two_model() -> dict[str, Any]:
    return {**of_rejected_indices(), "uniforms": tensor([0.5] * 3), "new_token": 2}


def of_transformers() -> dict[str, Any]:
    return {
        "candidate_input_ids": tensor([[3, 0, 1]], "int64"),
        "candidate_logits": tensor([DRAFT]).log(),
        "candidate_length": 2,
        "new_logits": tensor([TARGET]).log(),
    }


def of_vocabulary() -> dict[str, Any]:
    maps = {"d2t": tensor([1, 1, 2], "int64"), "out": tensor([[0.0] * 5])}
    return {"draft_probs": tensor([[0.5, 0.25, 0.25]]), "vocab_size": 5, **maps}


ROWS = ("draft_probs", "target_probs")
ADAPTERS: dict[str, tuple[Any, Call]] = {
    "vllm, V1": (vllm.rejection_sample_v1, test_adapters_vllm.v1),
    "vllm, V2": (vllm.rejection_sample_v2, test_adapters_vllm.v2),
    "sglang": (sglang.chain_speculative_sampling, test_adapters_sglang.arguments),
    "flashinfer": (flashinfer.chain_speculative_sampling, of_flashinfer),
    "tensorrt_llm, one": (tensorrt_llm.rejection_sampling_one_model, of_one_model),
    "tensorrt_llm, indices": (tensorrt_llm.get_rejected_indices, of_rejected_indices),
    "tensorrt_llm, two": (tensorrt_llm.verify_two_model, of_two_model),
    "transformers": (transformers.speculative_sampling, of_transformers),
    "vocabulary": (vocabulary.in_target_vocabulary, of_vocabulary),
}


def spoilt(value: Any) -> dict[str, Any]:
    """Make up things that are not what `value` is."""
    torch = need("torch")
    others: dict[str, Any] = {
        "None": None,
        "text": "ab",
        "float": 0.5,
        "list": [0.5],
        "object": SimpleNamespace(),
        "bools": torch.ones(2, dtype=torch.bool),
    }
    if not isinstance(value, torch.Tensor):
        return others
    others |= {
        "0-d": value.flatten()[0],
        "one axis more": value[None],
        "complex": value.to(torch.complex64),
        "bool": value.bool(),
        "integers": value.to(torch.int16),
        "double": value.double(),
        "half": value.half(),
        "meta": value.to("meta"),
        "sparse": value.to_sparse(),
        "nan": torch.full_like(value, torch.nan) if value.is_floating_point() else -value - 5,
        "large": torch.full_like(value, 100),
        "expanded": value.flatten()[:1].expand(value.numel()).reshape(value.shape)
        if value.numel() == 1
        else value.flatten()[0].expand(value.shape),
        "none": value[:0],
    }
    for axis in range(value.ndim):
        others[f"shorter along {axis}"] = value.narrow(axis, 0, value.shape[axis] - 1)
        others[f"longer along {axis}"] = torch.cat([value, value.narrow(axis, 0, 1)], axis)
    return others


def names_of(message: str) -> set[str]:
    """Find the arguments that an error is about."""
    head = re.match(r"((?:\w|\.)+(?:(?:, | and )(?:\w|\.)+)*): ", message)
    assert head, message
    return {name.partition(".")[0] for name in re.split(r", | and ", head[1])}


def refusal_of(call: Callable[[], object]) -> str | None:
    """Say in which words a call is refused."""
    try:
        call()
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error)
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_errors_name_the_arguments_of_the_engine(adapter: str) -> None:
    need("torch")
    function, arguments = ADAPTERS[adapter]
    parameters = set(inspect.signature(function).parameters)
    foreign = {"draft_token_ids", "draft_logits", "target_logits", "target_probs"} - parameters
    assert refusal_of(lambda: function(**arguments())) is None
    refusals = 0
    for name, value in arguments().items():
        for what, other in spoilt(value).items():
            changed = {**arguments(), name: other}
            message = refusal_of(lambda: function(**changed))  # noqa: B023
            if message is None:
                continue
            case = f"{name}, {what}: {message}"
            assert names_of(message) <= parameters, case
            assert not foreign & set(re.findall(r"\w+", message)), case
            assert all(part in message for part in ("expected ", ", got ", "; ")), case
            refusals += 1
    assert refusals > len(arguments())


@pytest.mark.parametrize("one_hot", [False, True])
def test_requests_are_counted_as_the_engine_counts_them(one_hot: bool) -> None:
    """Requests 2 and on are verified in a call of their own, behind a greedy one."""
    temperatures = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    given = test_adapters_vllm.v1(sampling_metadata=test_adapters_vllm.random(temperatures))
    if one_hot:
        given["draft_probs"] = None
    given["target_logits"][6:8] = float("nan")
    with pytest.raises(ValueError, match=r"^target_logits: .* request 1;") as caught:
        vllm.rejection_sample_v1(**given)
    assert caught.value.__notes__ == ["request 0 is request 2 of the batch"]
    given = test_adapters_vllm.v1(sampling_metadata=test_adapters_vllm.random(temperatures))
    given["target_logits"][:2] = float("nan")
    with pytest.raises(ValueError, match=r"^target_logits: .* request 0;") as caught:
        vllm.rejection_sample_v1(**given)
    assert not hasattr(caught.value, "__notes__")


def test_outputs_on_another_device_are_refused() -> None:
    torch = need("torch")
    counter, elsewhere = tensor([0, 0], "int32"), SimpleNamespace(device=torch.device("cuda:1"))
    expect_outputs(torch.int32, counter, counter=counter)
    call = lambda: expect_outputs(torch.int32, elsewhere, counter=counter)  # noqa: E731
    refused(ValueError, call, says=("counter", "device cuda:1", "got cpu"))
