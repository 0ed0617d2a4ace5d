"""Whether Torch is recording a call, and how the call then leaves its mark on the record.

`torch.compile`, `torch.export` and `torch.jit.trace` run a function to find out what it does with
tensors, and do the same later with others. What is done behind their back, in NumPy or in compiled
code, would be a number out of the past. So rows of tensors become an operator of Torch's own,
`draftverify::accept_residual`, and all other functions are left out of the record.

Torch is not imported here: if the caller has not done so, nothing is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

_AnswerT = TypeVar("_AnswerT")
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def recording(array: object = None) -> bool:
    """Whether Torch is recording the call, of which `array` is an argument."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # `is_compiling` is set for all threads, and while operators of ours run; this one is seen by
    # recorded code alone.
    if torch.compiler.is_dynamo_compiling():
        return True
    return type(array) is not np.ndarray and tracing()


def tracing() -> bool:
    """Whether Torch runs the call as it is, and notes which operators it uses."""
    torch = sys.modules["torch"]
    if torch.jit.is_tracing():
        return True
    # Asking for the mode of `make_fx` and `torch.export` takes half a microsecond, and there is
    # hardly ever any mode at all. One that looks on earlier than others is on a stack of its own.
    early = torch._C.DispatchKey.PreDispatch
    if not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._dispatch_tls_is_dispatch_key_included(early)
    ):
        return False
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def unrecorded(function: Callable[..., _AnswerT], *args: Any, **kwargs: Any) -> _AnswerT:
    """Call a function of real tensors outside of the record, or refuse to."""
    from draftverify import _torch_ops  # noqa: PLC0415 - it imports Torch

    answer: _AnswerT = _torch_ops.unrecorded(function, args, kwargs)
    return answer


def accept_residual(*args: Any) -> Any:
    """Put an `accept_residual` on record."""
    from draftverify import _torch_ops  # noqa: PLC0415

    return _torch_ops.accept_residual(*args)


def eager(function: _FunctionT) -> _FunctionT:
    """Keep a function out of what Torch records."""

    @wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if recording():
            return unrecorded(function, *args, **kwargs)
        return function(*args, **kwargs)

    return cast("_FunctionT", outside)
