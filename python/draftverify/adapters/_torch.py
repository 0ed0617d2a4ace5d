"""What all adapters share: engines hand over Torch tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import combinations
from typing import Any, TypeAlias, TypeVar, cast

from draftverify import _arrays
from draftverify._kinds import TORCH, memory_of, plain_view, type_name

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])

# A torch.Tensor. Torch is not needed to import an adapter.
Tensor: TypeAlias = Any


def in_words_of_the_engine(**names: str) -> Callable[[_FunctionT], _FunctionT]:
    """Let errors of the library name the engine's arguments in place of the library's."""
    words = re.compile(rf"\b(?:{'|'.join(names)})\b")

    def decorate(function: _FunctionT) -> _FunctionT:
        @wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, NotImplementedError) as error:
                error.args = (words.sub(lambda found: names[found[0]], str(error)),)
                raise

        return cast("_FunctionT", named)

    return decorate


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Say in errors which request of the engine's batch the library's request 0 is."""
    try:
        yield
    except ValueError as error:
        if first and " request " in str(error):
            error.add_note(f"request 0 is request {first} of the batch")
        raise


def expect_tensors(**arguments: object) -> None:
    """Refuse what is no Torch tensor, or has no values: all others have the methods of tensors."""
    for name, value in arguments.items():
        if not TORCH.owns(value):
            message = (
                f"{name}: expected a Torch tensor, as the engine has it, got {type_name(value)}; "
                f"pass one, or call draftverify.verify_chain, which takes other arrays"
            )
            raise TypeError(message)
        # A look at the usual tensor takes a part of the time that the reasons take.
        reason = TORCH.refusal(value) if plain_view(value) is None else None
        if reason is not None:
            message = f"{name}: expected a Torch tensor of known values, got {reason}"
            raise TypeError(message)


def expect_shape(name: str, tensor: Tensor, expected: tuple[int, ...], cure: str) -> None:
    """Expect this shape."""
    if tuple(tensor.shape) != expected:
        message = f"{name}: expected shape {tuple(expected)}, got {tuple(tensor.shape)}; {cure}"
        raise ValueError(message)


def expect_uniforms(**arguments: Tensor) -> None:
    """Refuse uniform numbers of a type with too few bits, before they are joined to others."""
    import torch  # noqa: PLC0415 - the caller has imported it

    for name, tensor in arguments.items():
        if tensor.dtype not in {torch.float32, torch.float64}:
            message = (
                f"{name}: expected float32 or float64 numbers, got dtype {tensor.dtype}; draw them "
                f"as float32"
            )
            raise TypeError(message)


def expect_integers(name: str, tensor: Tensor) -> None:
    """Refuse what Torch would take for something else than ids or places."""
    import torch  # noqa: PLC0415 - the caller has imported it

    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        message = f"{name}: expected integers, got dtype {tensor.dtype}; convert it to int64"
        raise TypeError(message)


def expect_outputs(dtype: Any, beside: Tensor, **outputs: Tensor) -> None:
    """Refuse tensors that cannot be written to as a whole, before one of them is written to.

    They have to be of the dtype, and on the device that `beside` is on.
    """
    import torch  # noqa: PLC0415 - the caller has imported it

    for name, tensor in outputs.items():
        if tensor.dtype != dtype:
            message = f"{name}: expected dtype {dtype}, got {tensor.dtype}; pass one of it"
            raise TypeError(message)
        refusal = TORCH.refusal(tensor)
        reason = refusal or TORCH.unwritable(tensor)
        if reason is None and tensor.is_inference() and not torch.is_inference_mode_enabled():
            reason = "one made in inference mode; call this in inference mode too"
        if reason is not None:
            message = f"{name}: expected a tensor that may be written to, got {reason}"
            raise (TypeError if refusal else ValueError)(message)
        if tensor.device != beside.device:
            message = (
                f"{name}: expected device {beside.device} as the probabilities are on, got "
                f"{tensor.device}; pass one there"
            )
            raise ValueError(message)
        if _arrays.overlaps_itself(memory_of(tensor)):
            message = (
                f"{name}: expected entries that share no memory, got an expanded tensor; pass a "
                f"copy"
            )
            raise ValueError(message)
    for (name, tensor), (other, another) in combinations(outputs.items(), 2):
        if _arrays.overlap(memory_of(tensor), memory_of(another)):
            message = (
                f"{other}: expected memory of its own, got a tensor that overlaps {name}; pass "
                f"another"
            )
            raise ValueError(message)


def expect_ndim(name: str, tensor: Tensor, layout: str, cure: str) -> None:
    """Expect as many axes as the layout names, as in ``(B, K)``."""
    if tensor.ndim != layout.count(",") + (not layout.endswith(",)")):
        message = f"{name}: expected shape {layout}, got {tuple(tensor.shape)}; {cure}"
        raise ValueError(message)
