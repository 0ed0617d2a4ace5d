"""`accept_residual` as an operator of Torch, for graphs. Imported where a graph is recorded."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from draftverify import _api
from draftverify._namespaces import torch_float64

_LIBRARY = torch.library.Library("draftverify", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_ROWS = "Tensor draft_probs, Tensor target_probs, Tensor draft_token_ids"
_LIBRARY.define(
    f"accept_residual({_ROWS}, bool check=True) -> (Tensor, Tensor, Tensor)", tags=_TAGS
)
_LIBRARY.define(
    f"accept_residual_into({_ROWS}, Tensor(a!) out, bool check=True) -> (Tensor, Tensor)",
    tags=_TAGS,
)
_Tensor = torch.Tensor


def _accept_residual(
    draft_probs: _Tensor, target_probs: _Tensor, draft_token_ids: _Tensor, check: bool = True
) -> tuple[_Tensor, _Tensor, _Tensor]:
    found = _api.accept_residual(draft_probs, target_probs, draft_token_ids, check=check)
    # Graphs are told beforehand how their arrays lie in memory.
    return found.accept_prob, found.residual.contiguous(), found.mass


def _accept_residual_into(
    draft_probs: _Tensor,
    target_probs: _Tensor,
    draft_token_ids: _Tensor,
    out: _Tensor,
    check: bool = True,
) -> tuple[_Tensor, _Tensor]:
    found = _api.accept_residual(draft_probs, target_probs, draft_token_ids, out=out, check=check)
    return found.accept_prob, found.mass


for _name, _kernel in (
    ("accept_residual", _accept_residual),
    ("accept_residual_into", _accept_residual_into),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    # Not differentiable: results record no gradient, as those of the function itself.
    _LIBRARY.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def _vector(rows: _Tensor) -> _Tensor:
    """Make what `accept_prob` and `mass` are like."""
    dtype = getattr(torch, torch_float64(rows.device))
    return rows.new_empty(rows.shape[:1], dtype=dtype)


# What comes out in terms of shapes. Whether the arguments fit is found out when there are values:
# then the errors are those of the function itself.
@torch.library.register_fake("draftverify::accept_residual", lib=_LIBRARY)
def _(
    draft_probs: _Tensor, target_probs: _Tensor, draft_token_ids: _Tensor, check: bool = True
) -> tuple[_Tensor, _Tensor, _Tensor]:
    residual = target_probs.new_empty(target_probs.shape)
    return _vector(target_probs), residual, _vector(target_probs)


@torch.library.register_fake("draftverify::accept_residual_into", lib=_LIBRARY)
def _(
    draft_probs: _Tensor,
    target_probs: _Tensor,
    draft_token_ids: _Tensor,
    out: _Tensor,
    check: bool = True,
) -> tuple[_Tensor, _Tensor]:
    return _vector(target_probs), _vector(target_probs)


def accept_residual(
    draft_probs: Any, target_probs: Any, draft_token_ids: Any, out: Any, check: Any
) -> _api.AcceptResidual[Any, Any]:
    """Put an `accept_residual` into the graph that is being recorded."""
    ids = draft_token_ids
    if isinstance(ids, list | tuple) and all(type(token) is int for token in ids):
        ids = torch.tensor(ids, dtype=torch.int64)
    tensors = (draft_probs, target_probs, ids, *(() if out is None else (out,)))
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors) or type(check) is not bool:
        return unrecorded(
            _api.accept_residual,
            (draft_probs, target_probs, draft_token_ids),
            {"out": out, "check": check},
        )
    draft, target = draft_probs.detach(), target_probs.detach()
    if out is None:
        found = torch.ops.draftverify.accept_residual(draft, target, ids, check)
        return _api.AcceptResidual(*found)
    accept_prob, mass = torch.ops.draftverify.accept_residual_into(draft, target, ids, out, check)
    return _api.AcceptResidual(accept_prob, out, mass)


_WHY = {"reason": "it reads the memory of tensors; accept_residual is an operator"}


@torch.compiler.disable(**(_WHY if "reason" in signature(torch.compiler.disable).parameters else {}))
def unrecorded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Break the graph: this call is made outside of it, each time anew.

    A trace cannot be broken, and would have this call's answer for all later ones.
    """
    if torch.jit.is_tracing():
        message = (
            f"{function.__name__}: expected a call outside of torch.jit.trace, got one within, "
            f"which would be recorded as constants; trace accept_residual, or use torch.compile"
        )
        raise TypeError(message)
    return function(*args, **kwargs)
