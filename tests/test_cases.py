"""Worked cases with known answers, through every array kind that can hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftverify import accept_probs, accept_residual, speculative_decode_step
from kinds import DTYPES, KINDS, Kind, assert_same_bits, limits, need

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("data").joinpath("steps.json").read_text(encoding="utf-8")
)
ANSWERS = [
    pytest.param(kind, case, id=f"{kind}-{case['name']}")
    for case in CASES
    for kind in KINDS
    if "raises" not in case and kind.dtype == case["dtype"]
]
# Whether input is refused does not depend on the dtype, unless the dtype is what is wrong.
REFUSALS = [
    pytest.param(kind, case, id=f"{kind}-{case['name']}")
    for case in CASES
    for kind in KINDS
    if "raises" in case and case["dtype"] in DTYPES
]


def held_by(kind: Kind, case: dict[str, Any]) -> tuple[Any, Any]:
    need(kind.library.module)
    draft, target = (np.array(case[row], dtype=np.float64) for row in ("draft", "target"))
    return kind.make(draft), kind.make(target)


@pytest.mark.parametrize(("kind", "case"), ANSWERS)
def test_answers(kind: Kind, case: dict[str, Any]) -> None:
    draft, target = held_by(kind, case)
    step = speculative_decode_step(draft, target, case["token"])
    residual = kind.plain(step["residual"])
    expected = np.array(case["residual"])
    wide = DTYPES["float64" if kind.dtype == "float64" else "float32"]

    assert step["accept_prob"] == case["accept_prob"]
    # The case states the exact residual. Difference, mass and quotient are rounded to the wide
    # type, the entry to the storage type.
    rounding = 1.5 * float(limits(wide).eps) + float(limits(DTYPES[kind.dtype]).eps) / 2
    np.testing.assert_allclose(residual.astype(np.float64), expected, rtol=rounding, atol=0)
    # All of these roundings are part of the contract, so the bits are known.
    rows = [np.array(case[row], dtype=np.float64).astype(wide) for row in ("draft", "target")]
    excess = np.maximum(rows[1] - rows[0], 0)
    divisor = np.array(case["mass"] or 1.0).astype(wide)
    assert_same_bits(residual, (excess / divisor).astype(DTYPES[kind.dtype]))


@pytest.mark.parametrize(("kind", "case"), ANSWERS)
def test_answers_as_a_row(kind: Kind, case: dict[str, Any]) -> None:
    draft, target = (kind.make([case[row]]) for row in ("draft", "target"))
    accept_prob, residual, mass = accept_residual(draft, target, [case["token"]])
    alone = speculative_decode_step(*held_by(kind, case), case["token"])

    assert kind.library.plain(accept_prob).tolist() == [case["accept_prob"]]
    # The differences are rounded before they are added.
    rounding = float(limits(DTYPES["float64" if kind.dtype == "float64" else "float32"]).eps) / 2
    np.testing.assert_allclose(kind.library.plain(mass), [case["mass"]], rtol=rounding, atol=0)
    assert_same_bits(kind.plain(residual)[0], kind.plain(alone["residual"]))
    probs = accept_probs(draft, target, [case["token"]])
    assert kind.library.plain(probs).tolist() == [case["accept_prob"]]


@pytest.mark.parametrize(("kind", "case"), REFUSALS)
def test_refuses(kind: Kind, case: dict[str, Any]) -> None:
    draft, target = held_by(kind, case)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is compared below
        speculative_decode_step(draft, target, case["token"])
    assert type(caught.value).__name__ == case["raises"]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_refuses_integer_arrays(library: str) -> None:
    [case] = [case for case in CASES if case["dtype"] not in DTYPES]
    need(library)
    draft, target = (np.array(case[row], dtype=case["dtype"]) for row in ("draft", "target"))
    as_held: Any = need("torch").from_numpy if library == "torch" else np.asarray
    with pytest.raises(TypeError) as caught:
        speculative_decode_step(as_held(draft), as_held(target), case["token"])
    assert case["raises"] == type(caught.value).__name__ == "TypeError"


def test_every_case_is_taken() -> None:
    taken = {str(parameters.id) for parameters in ANSWERS + REFUSALS}
    names = [case["name"] for case in CASES if case["dtype"] in DTYPES]
    assert all(any(id_.endswith(f"-{name}") for id_ in taken) for name in names)
    assert (len(names), len(CASES)) == (45, 46)
