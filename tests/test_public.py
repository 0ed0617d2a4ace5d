"""What the package shows: names, signatures, types, version, metadata."""

from __future__ import annotations

import inspect
import re
from importlib import metadata, resources
from inspect import Parameter
from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

import draftverify
from draftverify import (
    AcceptResidual,
    accept_probs,
    accept_residual,
    acceptance_rate,
    best_draft_length,
    expected_tokens,
    expected_tokens_block,
    expected_tokens_by_position,
    get_num_threads,
    set_num_threads,
    speculative_decode_step,
    speedup,
    verify_chain,
    verify_chain_logits,
)
from kinds import need

DRAFT, TARGET = np.array([0.75, 0.25], np.float32), np.array([0.5, 0.5], np.float32)
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]


def test_all_lists_the_public_names_and_no_others() -> None:
    # These packages are there once something has imported them.
    shown = sorted(set(vars(draftverify)) - {"adapters", "testing"})
    shown = [name for name in shown if not name.startswith("_")]
    assert sorted(draftverify.__all__) == sorted([*shown, "__version__"])
    assert shown == [
        "AcceptResidual",
        "ChainVerdict",
        "accept_probs",
        "accept_residual",
        "acceptance_rate",
        "best_draft_length",
        "expected_tokens",
        "expected_tokens_block",
        "expected_tokens_by_position",
        "get_num_threads",
        "set_num_threads",
        "speculative_decode_step",
        "speedup",
        "verify_chain",
        "verify_chain_logits",
    ]


def test_signatures() -> None:
    def parameters(function: object) -> list[tuple[str, object, object]]:
        assert callable(function)
        found = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, each.default) for each in found]

    either, keyword, none = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY, Parameter.empty
    rows = [("draft_probs", either, none), ("target_probs", either, none)]
    ids = ("draft_token_ids", either, none)
    assert parameters(speculative_decode_step) == [*rows, ("drafted_token", either, none)]
    assert parameters(accept_residual) == [
        *rows,
        ids,
        ("out", keyword, None),
        ("check", keyword, True),
    ]
    assert parameters(accept_probs) == [*rows, ids]
    assert parameters(acceptance_rate) == rows
    rate, length = ("acceptance_rate", either, none), ("draft_length", either, none)
    cost = ("cost_ratio", either, none)
    assert parameters(expected_tokens) == [rate, length]
    assert parameters(speedup) == [rate, length, cost]
    assert parameters(best_draft_length) == [rate, cost, ("longest", keyword, 64)]
    assert parameters(expected_tokens_by_position) == [("rates", either, none)]
    assert parameters(expected_tokens_block) == [("ratios", either, none)]
    assert parameters(verify_chain) == [
        *rows,
        ids,
        ("uniforms", either, none),
        ("lengths", keyword, None),
        ("indptr", keyword, None),
        ("method", keyword, "standard"),
        ("bonus_token_ids", keyword, None),
    ]
    assert parameters(verify_chain_logits) == [
        ("draft_logits", either, none),
        ("target_logits", either, none),
        ids,
        ("uniforms", either, none),
        ("temperature", keyword, 1.0),
        ("draft_temperature", keyword, None),
        ("top_k", keyword, None),
        ("top_p", keyword, None),
        ("min_p", keyword, None),
        ("filter_draft", keyword, False),
        ("lengths", keyword, None),
        ("indptr", keyword, None),
        ("method", keyword, "standard"),
        ("bonus_token_ids", keyword, None),
    ]
    assert parameters(get_num_threads) == []
    assert parameters(set_num_threads) == [("threads", either, none)]


def test_arguments_are_positional_or_named() -> None:
    named: dict[str, Any] = {"draft_probs": DRAFT, "target_probs": TARGET, "drafted_token": 0}
    steps: list[Any] = [
        speculative_decode_step(DRAFT, TARGET, 0),
        speculative_decode_step(DRAFT, TARGET, drafted_token=0),
        speculative_decode_step(drafted_token=0, target_probs=TARGET, draft_probs=DRAFT),
        speculative_decode_step(**named),
    ]
    for step in steps:
        assert list(step) == ["accept_prob", "residual"]
        assert step["accept_prob"] == 2 / 3
        assert step["residual"].tolist() == [0.0, 1.0]
    with pytest.raises(TypeError, match="check"):
        speculative_decode_step(DRAFT, TARGET, 0, check=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="positional argument"):
        speculative_decode_step(DRAFT, TARGET, 0, None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="drafted_token"):
        speculative_decode_step(DRAFT, TARGET)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="positional argument"):
        accept_residual(DRAFT[None], TARGET[None], [0], None)  # type: ignore[call-overload]


def test_names_are_those_that_users_see() -> None:
    for compiled in (speculative_decode_step, get_num_threads, set_num_threads):
        assert compiled.__module__ == "draftverify"
    for name in set(draftverify.__all__) - {"__version__"}:
        value = getattr(draftverify, name)
        assert value.__module__.split(".")[0] == "draftverify"
        assert value.__name__ == value.__qualname__ == name


def test_the_answer_is_a_named_tuple() -> None:
    answer = accept_residual(DRAFT[None], TARGET[None], [0])
    accept_prob, residual, mass = answer
    assert isinstance(answer, tuple)
    assert answer._fields == ("accept_prob", "residual", "mass")
    assert answer.accept_prob is accept_prob
    assert answer.residual is residual
    assert answer.mass is mass


def test_the_version_is_one() -> None:
    assert draftverify.__version__ == metadata.version("draftverify")
    assert re.fullmatch(r"\d+\.\d+\.\d+", draftverify.__version__)


def test_the_package_is_typed_and_carries_its_licences() -> None:
    package = resources.files("draftverify")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_core.pyi").is_file()
    described = metadata.metadata("draftverify")
    assert described["License-Expression"] == "MIT OR Apache-2.0"
    assert set(described.get_all("License-File") or ()) == {"LICENSE-MIT", "LICENSE-APACHE"}
    assert described["Requires-Python"] == ">=3.11"


def test_numpy_is_all_that_is_required() -> None:
    required = metadata.requires("draftverify") or []
    assert [each for each in required if "extra ==" not in each] == ["numpy>=2.1"]
    extras = set(metadata.metadata("draftverify").get_all("Provides-Extra") or ())
    assert {"test", "frameworks"} <= extras


# mypy reads these: `assert_type` is about what it infers, the rest about what happens.


def test_types_of_numpy_arrays() -> None:
    step = speculative_decode_step(DRAFT, TARGET, 0)
    assert_type(step["accept_prob"], float)
    assert_type(step["residual"], Float32s)
    assert type(step["accept_prob"]) is float
    assert step["residual"].dtype == np.float32

    rows = accept_residual(DRAFT[None], TARGET[None], [0], out=np.empty((1, 2), np.float32))
    assert_type(rows.accept_prob, Float64s)
    assert_type(rows.residual, Float32s)
    assert_type(rows.mass, Float64s)
    assert_type(accept_probs(DRAFT[None], TARGET[None], [0]), Float64s)
    assert [array.dtype for array in rows] == [np.float64, np.float32, np.float64]


def test_types_of_lists() -> None:
    assert_type(speculative_decode_step([0.75, 0.25], (0, 1), np.int64(0))["residual"], Float64s)
    rows = accept_residual([[0.75, 0.25]], [[0, 1]], [0])
    assert_type(rows, AcceptResidual[Float64s, Float64s])
    assert_type(accept_probs([[0.75, 0.25]], [[0, 1]], [0]), Float64s)
    assert type(rows.residual) is np.ndarray


def test_types_of_tensors() -> None:
    torch = need("torch")
    from torch import Tensor

    draft: Tensor = torch.from_numpy(DRAFT)
    assert_type(speculative_decode_step(draft, draft, 0)["residual"], Tensor)
    rows = accept_residual(draft[None], draft[None], draft.argmax()[None])
    assert_type(rows, AcceptResidual[Tensor, Tensor])
    assert_type(accept_probs(draft[None], draft[None], [0]), Tensor)
    assert all(type(array) is Tensor for array in rows)


def test_types_refuse_what_the_functions_refuse() -> None:
    tensor = need("torch").from_numpy(DRAFT)
    with pytest.raises(TypeError, match="one library"):
        speculative_decode_step(DRAFT, [0.75, 0.25], 0)
    with pytest.raises(TypeError, match="out"):
        accept_residual(DRAFT[None], TARGET[None], [0], out=[[0.0]])
    with pytest.raises(TypeError, match="drafted_token"):
        speculative_decode_step(DRAFT, TARGET, 0.5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="one library"):
        speculative_decode_step(DRAFT, tensor, 0)
