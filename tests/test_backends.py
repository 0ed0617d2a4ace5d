"""Which way arrays go that are of no library with kernels, or on other devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftverify import accept_probs, accept_residual, speculative_decode_step, verify_chain
from kinds import assert_same_bits, elsewhere, need, random_rows, refused
from namespaces import STRICT_DEVICES, strict, strict_plain

BOTH = "draft_probs and target_probs"


@pytest.mark.parametrize("device", STRICT_DEVICES)
def test_public_functions_take_arrays_of_the_standard(device: str) -> None:
    draft, target, ids = random_rows("float32", (3, 300))
    there: tuple[Any, Any] = (strict(draft, device), strict(target, device))
    expected = accept_residual(draft, target, ids)
    found = accept_residual(*there, ids)
    assert type(found) is type(expected)
    assert found.residual.device == there[0].device
    assert_same_bits(strict_plain(found.residual), expected.residual)
    accepted = strict_plain(accept_probs(*there, strict(ids.astype(np.int32), device)))
    np.testing.assert_allclose(accepted, expected.accept_prob, rtol=2**-23)
    step = speculative_decode_step(there[0][0, :], there[1][0, :], ids[0])
    wanted = speculative_decode_step(draft[0], target[0], ids[0])
    assert list(step) == list(wanted)
    assert step["accept_prob"] == wanted["accept_prob"]
    assert_same_bits(strict_plain(step["residual"]), wanted["residual"])


def test_what_is_wrong_is_said_as_elsewhere() -> None:
    draft, target, ids = random_rows("float32", (3, 300))
    there: tuple[Any, Any] = (strict(draft), strict(target))
    rows = tuple(array[0, :] for array in there)
    refused(ValueError, speculative_decode_step, *rows, 300, says=("drafted_token", "got 300"))
    refused(TypeError, speculative_decode_step, *rows, 0.5, says=("drafted_token", "got 0.5"))
    refused(ValueError, speculative_decode_step, *there, 0, says=(BOTH, "(V,)", "accept_residual"))
    refused(ValueError, accept_residual, *rows, [0], says=(BOTH, "(N, V)"))
    refused(TypeError, accept_residual, there[0], target, ids, says=(BOTH, "one library"))
    refused(TypeError, accept_residual, draft.tolist(), there[1], ids, says=(BOTH, "list"))
    refused(ValueError, accept_probs, *there, [0, 1], says=("draft_token_ids", "(3,), got (2,)"))
    draft[1, 7] = np.nan
    says = ("draft_probs", "got nan", "index 7", "row 1")
    refused(ValueError, accept_residual, strict(draft), there[1], ids, says=says)
    refused(
        TypeError,
        verify_chain,
        there[0][None, ...],
        there[1][None, ...],
        [[0, 0, 0]],
        [[0.5] * 4],
        says=("draft_probs",),
    )


def test_torch_devices_without_a_kernel_compute_by_themselves() -> None:
    """A tensor that says so is on the CPU in truth: Torch's operators do not mind."""
    torch = need("torch")
    draft, target, ids = random_rows("float32", (2, 40))
    there: tuple[Any, Any] = (
        elsewhere(torch.tensor(draft), "mps"),
        elsewhere(torch.tensor(target), "mps"),
    )
    expected = accept_residual(draft, target, ids)
    seen: list[Any] = []

    def computed(*given: Any) -> Any:
        seen.extend(given)
        return expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftverify._generic.accept_residual", computed)
        assert accept_residual(*there, ids) == expected
    assert seen[:2] == list(there)
    assert seen[3:] == [None, True]


def test_the_choice_can_be_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target, ids = random_rows("float32", (3, 300))
    there: tuple[Any, Any] = (strict(draft), strict(target))
    monkeypatch.setenv("DRAFTVERIFY_BACKEND", "namespace")
    assert_same_bits(
        strict_plain(accept_residual(*there, ids).mass), accept_residual(draft, target, ids).mass
    )
    monkeypatch.setenv("DRAFTVERIFY_BACKEND", "cupy")
    refused(TypeError, accept_residual, *there, ids, says=("draft_probs",))
    assert accept_residual(draft, target, ids).mass.shape == (3,), (
        "what is on the CPU has no choice"
    )
    monkeypatch.setenv("DRAFTVERIFY_BACKEND", "cuda")
    with pytest.raises(
        ValueError, match="DRAFTVERIFY_BACKEND: expected one of auto, cupy, namespace"
    ):
        accept_residual(*there, ids)
