"""`accept_residual` as an operator of Torch, for graphs. Imported where Torch records a call."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from draftverify import _api
from draftverify._compiling import tracing
from draftverify._namespaces import torch_float64

torch: Any = import_module("torch")  # the caller has imported it

_LIBRARY = torch.library.Library("draftverify", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_ROWS = "Tensor draft_probs, Tensor target_probs, Tensor draft_token_ids"
_FRESH = f"accept_residual({_ROWS}, bool check=True) -> (Tensor, Tensor, Tensor)"
_INTO = f"accept_residual_into({_ROWS}, Tensor(a!) out, bool check=True) -> (Tensor, Tensor)"


def _fresh(draft: Any, target: Any, token_ids: Any, check: bool = True) -> tuple[Any, Any, Any]:
    found = _api.accept_residual(draft, target, token_ids, check=check)
    # A graph is told beforehand how its tensors lie in memory.
    return found.accept_prob, found.residual.contiguous(), found.mass


def _into(draft: Any, target: Any, token_ids: Any, out: Any, check: bool = True) -> tuple[Any, Any]:
    found = _api.accept_residual(draft, target, token_ids, out=out, check=check)
    return found.accept_prob, found.mass


def _vector(rows: Any) -> Any:
    """Make a tensor like `accept_prob` and `mass`."""
    return rows.new_empty(rows.shape[:1], dtype=getattr(torch, torch_float64(rows.device)))


# What the results are like is said without looking at the arguments: whether these fit is found out
# when there are values, and the errors are then those of the function itself.
def _like_fresh(_draft: Any, target: Any, _ids: Any, _check: bool = True) -> tuple[Any, Any, Any]:
    return _vector(target), target.new_empty(target.shape), _vector(target)


def _like_into(
    _draft: Any, target: Any, _ids: Any, _out: Any, _check: bool = True
) -> tuple[Any, Any]:
    return _vector(target), _vector(target)


def _by_batch(
    info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Verify the rows of a batch, as `torch.vmap` makes it, as so many more rows."""
    count = info.batch_size
    rows = [
        tensor.expand(count, *tensor.shape) if place is None else tensor.movedim(place, 0)
        for tensor, place in zip(arguments[:3], in_dims[:3], strict=True)
    ]
    found = _fresh_op(*(tensor.flatten(0, 1) for tensor in rows), *arguments[3:])
    return tuple(tensor.unflatten(0, (count, -1)) for tensor in found), (0, 0, 0)


def _define(schema: str, kernel: Callable[..., Any], like: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=_TAGS)
    # `Library` and not `custom_op`, whose wrapper takes several times as long as a small call.
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    # Not differentiable: results record no gradient, as those of the function itself.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"draftverify::{name}", like, lib=_LIBRARY)
    return getattr(torch.ops.draftverify, name)


_fresh_op = _define(_FRESH, _fresh, _like_fresh)
_into_op = _define(_INTO, _into, _like_into)
torch.library.register_vmap("draftverify::accept_residual", _by_batch, lib=_LIBRARY)


def accept_residual(
    draft_probs: Any, target_probs: Any, draft_token_ids: Any, out: Any, check: Any
) -> _api.AcceptResidual[Any, Any]:
    """Put an `accept_residual` on the record that Torch makes."""
    ids = draft_token_ids
    if isinstance(ids, list | tuple) and all(type(token) is int for token in ids):
        ids = torch.tensor(ids, dtype=torch.int64)
    tensors = (draft_probs, target_probs, ids, *(() if out is None else (out,)))
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors) or type(check) is not bool:
        arguments = (draft_probs, target_probs, draft_token_ids)
        outside: _api.AcceptResidual[Any, Any] = unrecorded(
            _api.accept_residual, arguments, {"out": out, "check": check}
        )
        return outside
    if out is None:
        return _api.AcceptResidual(*_fresh_op(draft_probs, target_probs, ids, check))
    accept_prob, mass = _into_op(draft_probs, target_probs, ids, out, check)
    return _api.AcceptResidual(accept_prob, out, mass)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if tracing():
        message = (
            "arguments: expected a call outside of torch.jit.trace and make_fx, got one whose "
            "answer they would take for a constant; trace accept_residual, or use torch.compile"
        )
        raise TypeError(message)
    return function(*args, **kwargs)


# Torch shows this where a graph must not break, as with `fullgraph=True`.
_reason = (
    "draftverify: expected a call that may break the graph, got one that has to be part of it; "
    "accept_residual alone can be. Call other functions outside of what is compiled, or leave "
    "fullgraph=True out: they read the memory of tensors"
)
_knows_reasons = "reason" in signature(torch.compiler.disable).parameters
# A call by way of this one breaks the graph: it is made each time anew.
unrecorded = torch.compiler.disable(_call, **({"reason": _reason} if _knows_reasons else {}))
