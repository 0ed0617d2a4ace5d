"""What all adapters share: engines hand over Torch tensors."""

from __future__ import annotations

from typing import Any, TypeAlias

from draftverify._kinds import TORCH, type_name

# A torch.Tensor. Torch is not needed to import an adapter.
Tensor: TypeAlias = Any


def expect_tensors(**arguments: object) -> None:
    """Refuse what is no Torch tensor, so that the rest of an adapter may use its methods."""
    for name, value in arguments.items():
        if not TORCH.owns(value):
            message = (
                f"{name}: expected a Torch tensor, as the engine has it, got {type_name(value)}; "
                f"pass one, or call draftverify.verify_chain, which takes other arrays"
            )
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


def expect_ndim(name: str, tensor: Tensor, layout: str, cure: str) -> None:
    """Expect as many axes as the layout names, as in ``(B, K)``."""
    if tensor.ndim != layout.count(",") + (not layout.endswith(",)")):
        message = f"{name}: expected shape {layout}, got {tuple(tensor.shape)}; {cure}"
        raise ValueError(message)
