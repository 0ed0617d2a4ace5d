"""Torch on devices without a kernel of ours: where the work is done, and what is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftverify import _generic, _kinds, accept_residual
from kinds import DTYPES, LIBRARIES, assert_same_bits, need, random_rows
from processes import run_python

TORCH = next(library for library in LIBRARIES if library.name == "torch")


def test_a_device_of_which_only_torch_knows() -> None:
    backends = need("torch.utils.backend_registration")
    if not hasattr(backends, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of Torch has no devices in Python")
    # Torch's warnings about it are no concern here.
    assert run_python("-W", "ignore", __file__).strip() == "all as on the CPU"


def _on_a_device_of_which_only_torch_knows() -> None:
    import torch

    from away import CALLS, WAITS, Away

    kinds: Any = _kinds
    kinds.in_memory = lambda _: True  # an address of 0 means no memory elsewhere

    def waits() -> list[str]:
        found = [call for call in CALLS if call in WAITS]
        CALLS.clear()
        return found

    def away(plain: Any) -> Any:
        return Away(TORCH.array(plain))

    # Views are then left to the device.
    with torch.inference_mode():
        for dtype in DTYPES:
            draft, target, ids = random_rows(dtype, (3, 700))
            expected = accept_residual(draft, target, ids)
            there = away(draft), away(target)
            for token_ids in (ids, away(ids)):
                for check, waited in ((False, []), (True, ["_local_scalar_dense"])):
                    waits()
                    found = _generic.accept_residual(*there, token_ids, None, check)
                    assert waits() == waited
                    for got, want in zip(found, expected, strict=True):
                        assert type(got) is Away
                        assert_same_bits(TORCH.plain(got.on_host), want)
            step = _generic.step(away(draft[1]), away(target[1]), int(ids[1]))
            assert waits() == ["to host"]
            assert step["accept_prob"] == expected.accept_prob[1]
            assert_same_bits(TORCH.plain(step["residual"].on_host), expected.residual[1])
            out = away(np.ones_like(draft))
            assert _generic.accept_residual(*there, ids, out, True).residual is out
            assert_same_bits(TORCH.plain(out.on_host), expected.residual)
            target[2, 5] = np.nan
            with pytest.raises(ValueError, match=r"^target_probs: .* nan at index 5 in row 2;"):
                _generic.accept_residual(there[0], away(target), away(ids), None, True)
    print("all as on the CPU")  # noqa: T201 - to the process that has started this one


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_without_a_kernel(dtype: str) -> None:
    torch = need("torch")
    if not torch.cuda.is_available():
        pytest.skip("Torch has no GPU here")
    draft, target, ids = random_rows(dtype, (5, 4097))
    there = TORCH.array(draft).cuda(), TORCH.array(target).cuda()
    expected = accept_residual(draft, target, ids)
    for token_ids in (ids, torch.from_numpy(ids).cuda()):
        for check in (False, True):
            if not check:
                torch.cuda.set_sync_debug_mode("error")
            try:
                found = _generic.accept_residual(*there, token_ids, None, check)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            for got, want in zip(found, expected, strict=True):
                assert got.device == there[0].device
                assert_same_bits(TORCH.plain(got.cpu()), want)
    step = _generic.step(there[0][1], there[1][1], int(ids[1]))
    assert step["accept_prob"] == expected.accept_prob[1]
    assert_same_bits(TORCH.plain(step["residual"].cpu()), expected.residual[1])


if __name__ == "__main__":
    _on_a_device_of_which_only_torch_knows()
