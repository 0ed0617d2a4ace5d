"""Arrays that are not in this process's memory: which module computes with them.

This is the one place that knows the backends: `_cuda` with kernels for GPUs, launched by CuPy, and
`_generic` with the operators of the arrays' own library. What they answer is in the library of the
arrays, where they are. `DRAFTVERIFY_BACKEND` in the environment, read anew by every call, makes the
choice strict: `cupy`, `namespace`, or `auto`, which is the default.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

_VARIABLE, _CHOICES = "DRAFTVERIFY_BACKEND", ("auto", "cupy", "namespace")
GPUS = frozenset({"cuda", "gpu"})  # as Torch and CuPy name them, and as JAX does


class Backend(Protocol):
    """What computes where the arrays are."""

    def step(self, draft: Any, target: Any, token: int) -> dict[str, Any]:
        """Answer `speculative_decode_step`."""

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
    """Find the backend for checked arrays on a device, or say what is missing."""
    choice = _choice()
    if choice == "namespace":
        return _namespace()
    if not is_gpu(device):
        if choice == "cupy":
            message = (
                f"{names}: expected arrays on a GPU as {_VARIABLE}=cupy demands, got {device}; "
                f"move them with {to_host}, or leave {_VARIABLE} out"
            )
            raise NotImplementedError(message)
        return _namespace()
    from draftverify import _cuda  # noqa: PLC0415 - what runs on the CPU never needs it

    missing = _cuda.missing(dtype)
    if missing is None:
        return _cuda
    cure = "install draftverify[cuda12x] or draftverify[cuda13x]"
    if choice == "cupy":
        message = (
            f"{names}: expected CuPy as {_VARIABLE}=cupy demands, got none that works ({missing}); "
            f"{cure}, or move the arrays with {to_host}"
        )
        raise ImportError(message)
    _warn(f"{device} is used without kernels, which need CuPy ({missing}); {cure}")
    return _namespace()


def backend_of_namespace(arrays: Iterable[object]) -> Backend | None:
    """Find the backend for arrays of which one is known by `__array_namespace__` alone."""
    from draftverify import _namespaces  # noqa: PLC0415 - it needs what needs this module

    found = any(map(_namespaces.is_namespace_array, arrays))
    return _namespace() if found and _choice() != "cupy" else None


def _namespace() -> Backend:
    from draftverify import _generic  # noqa: PLC0415 - as above

    return _generic


def _choice() -> str:
    choice = os.environ.get(_VARIABLE, "auto")
    if choice not in _CHOICES:
        message = (
            f"{_VARIABLE}: expected one of {', '.join(_CHOICES)}, got {choice!r}; leave it out"
        )
        raise ValueError(message)
    return choice


@cache
def _warn(message: str) -> None:
    """Warn once in the life of a process."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)
