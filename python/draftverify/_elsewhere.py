"""Arrays that are not in this process's memory: which module computes with them.

This is the one place that knows the backends. A backend is given arrays whose kind, dtype, device
and shape have been checked; what it answers is in the library of the arrays, where they are.
"""

from __future__ import annotations

from typing import Any, Protocol

GPUS = frozenset({"cuda", "gpu"})  # as Torch and CuPy name them, and as JAX does


class Backend(Protocol):
    """What computes where the arrays are."""

    def step(self, draft: Any, target: Any, token: int) -> dict[str, Any]:
        """Answer `speculative_decode_step`; the token may be outside the vocabulary."""

    def accept_residual(
        self, draft: Any, target: Any, ids: Any, out: Any, check: bool
    ) -> tuple[Any, Any, Any]:
        """Answer `accept_residual`; nothing is known about `ids` and `out`."""

    def accept_probs(self, draft: Any, target: Any, ids: Any) -> Any:
        """Answer `accept_probs`; nothing is known about `ids`."""


def is_gpu(device: str) -> bool:
    """Whether this is the name of a GPU that CUDA kernels may run on."""
    return device.partition(":")[0] in GPUS


def backend_of(names: str, device: str, dtype: str, to_host: str) -> Backend:
    """Find the backend for arrays on a device, or say what is missing.

    Another backend, for what CuPy's does not take, is to be returned from here.
    """
    what = "for which there is no kernel"
    cure = f"move them with {to_host}"
    if is_gpu(device):
        from draftverify import _cuda  # noqa: PLC0415 - what runs on the CPU never needs it

        missing = _cuda.missing(dtype)
        if missing is None:
            return _cuda
        what = f"which needs CuPy ({missing})"
        cure = f"install draftverify[cuda12x] or draftverify[cuda13x], or {cure}"
    message = f"{names}: expected arrays on the CPU, got {device}, {what}; {cure}"
    raise NotImplementedError(message)
