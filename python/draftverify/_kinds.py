"""Kinds of arrays: known by type, seen as NumPy arrays without a copy, and wrapped back.

A library is asked for only where the caller has imported it: an object of a library that is not
in `sys.modules` cannot have been passed. Each kind states what differs between libraries; the
checks that are common to all are in `_arrays`.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftverify import _core
from draftverify._device_kinds import CUPY, DLPACK, addresses
from draftverify._elsewhere import is_gpu

KNOWN = "a NumPy array, a Torch, JAX or CuPy array, or a list of numbers"


class Kind(Protocol):
    """What differs from one array library to the next."""

    name: str
    # Whether no array of this library can be written to.
    immutable: bool
    # What moves an array to the CPU.
    to_host: str

    def owns(self, array: object) -> bool:
        """Whether the array is of this library."""

    def refusal(self, array: Any) -> str | None:
        """Why an array of this library has no ordinary memory to read, and the cure."""

    def dtype(self, array: Any) -> str:
        """Name the dtype as NumPy does."""

    def device(self, array: Any) -> str:
        """Name the device."""

    def unwritable(self, array: Any) -> str | None:
        """Why the array may not be written to, and the cure."""

    def written(self, array: Any) -> None:
        """Tell the library that the array was written to."""


class HostKind(Kind, Protocol):
    """What differs between libraries that have arrays in this process's memory."""

    def view(self, array: Any) -> NDArray[Any]:
        """See the memory as a NumPy array proper; bfloat16 may be seen as 16-bit integers."""

    def wrap(self, array: NDArray[Any], dtype: str, device: str) -> Any:
        """Hand a fresh NumPy array over to this library, as an array of `dtype` on `device`."""


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Name a NumPy dtype; NumPy takes as long to put the name together as a small step takes."""
    # A structured type can call itself anything.
    return f"void{8 * dtype.itemsize}" if issubclass(dtype.type, np.void) else str(dtype.name)


class _NumPy:
    name = "NumPy"
    immutable = False
    to_host = "numpy.asarray"

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def refusal(self, array: Any) -> str | None:
        if isinstance(array, np.ma.MaskedArray):
            return "a masked array; fill it with .filled(0)"
        return None

    def dtype(self, array: Any) -> str:
        return _dtype_name(np.asarray(array).dtype)  # a subclass may say something else

    def device(self, array: Any) -> str:  # noqa: ARG002 - as the protocol has it
        return "cpu"

    def view(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def wrap(self, array: NDArray[Any], dtype: str, device: str) -> NDArray[Any]:  # noqa: ARG002
        return array

    def unwritable(self, array: Any) -> str | None:
        return None if array.flags.writeable else "a read-only array; pass a copy"

    def written(self, array: Any) -> None:
        pass


# No argument has more axes, and a list can contain itself.
_DEEPEST = 4
# Not longdouble, which float64 would round.
_NUMBERS: tuple[type, ...] = (int, float, np.integer, np.float16, np.float32)


class _List(_NumPy):
    """Lists and tuples of numbers: float64 arrays, as a convenience."""

    name = "list"

    def owns(self, array: object) -> bool:
        return isinstance(array, list | tuple)

    def refusal(self, array: Any, depth: int = 1) -> str | None:
        if type(array) not in (list, tuple):
            return f"a {type_name(array)}; pass a plain list or an array"
        if depth > _DEEPEST:
            return f"lists more than {_DEEPEST} deep; pass an array"
        if array and all(isinstance(entry, list | tuple) for entry in array):
            return next(filter(None, (self.refusal(entry, depth + 1) for entry in array)), None)
        for entry in array:
            if isinstance(entry, bool) or not isinstance(entry, _NUMBERS):
                return f"one that holds {type_name(entry)}; pass floats or ints, or stack arrays"
            if isinstance(entry, np.timedelta64):
                return "one that holds times; pass floats or ints"
        return None

    def dtype(self, array: Any) -> str:  # noqa: ARG002
        return "float64"

    def view(self, array: Any) -> NDArray[Any]:
        try:
            return np.array(array, dtype=np.float64)
        except (ValueError, OverflowError) as error:
            wrong = "a number beyond float64" if isinstance(error, OverflowError) else "others"
            message = f"expected lists of numbers, all of one length, got {wrong}; pass an array"
            raise ValueError(message) from None


class _Torch:
    name = "Torch"
    immutable = False
    to_host = ".cpu()"

    def owns(self, array: object) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(array, torch.Tensor)

    def refusal(self, array: Any) -> str | None:  # noqa: PLR0911 - a return for each reason
        import torch  # noqa: PLC0415 - the caller has imported it

        if type(array).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"a {type(array).__name__}, which has no memory of its own; pass the real tensor"
        if torch.nn.parameter.is_lazy(array):
            return "a parameter that is not initialised; run its module once"
        if array.is_nested:
            return "a nested tensor; convert it with .to_padded_tensor(0)"
        if array.layout is not torch.strided:
            return f"a tensor of layout {array.layout}; convert it with .to_dense()"
        if array.is_quantized:
            return "a quantised tensor; convert it with .dequantize()"
        if array.device.type == "meta":
            return "a meta tensor, which holds no values; pass the real tensor"
        if not in_memory(array):
            return _without_memory(array)
        return None

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> str:
        return str(array.device)

    def view(self, array: Any) -> NDArray[Any]:
        import torch  # noqa: PLC0415 - the caller has imported it

        try:
            plain = array.detach().resolve_neg()
            if type(plain) not in (torch.Tensor, type(array)):
                message = f"a {type(plain).__name__} in its place"
                raise RuntimeError(message)  # noqa: TRY301 - it is told as all others are
            if plain.dtype is torch.bfloat16:
                plain = plain.view(torch.int16)
            numpy_view: NDArray[Any] = plain.numpy()
        except (AssertionError, RuntimeError) as error:
            message = (
                f"expected a tensor that NumPy can see, got one that it cannot: {error}; pass the "
                f"real tensor, outside of Torch's modes"
            )
            raise TypeError(message) from error
        return numpy_view

    def wrap(self, array: NDArray[Any], dtype: str, device: str) -> Any:  # noqa: ARG002
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

    def unwritable(self, array: Any) -> str | None:
        if array.requires_grad:
            return "a tensor that records gradients; pass its .detach()"
        return "a negated view; pass its .resolve_neg()" if array.is_neg() else None

    def written(self, array: Any) -> None:
        import torch  # noqa: PLC0415 - the caller has imported it

        if not array.is_inference():
            # As for Torch's own writes: a backward pass that needs the old values refuses.
            torch.autograd.graph.increment_version(array)


class _Jax:
    """JAX arrays: 64-bit results become 32-bit ones where JAX has not been told to allow them."""

    name = "JAX"
    immutable = True
    to_host = "jax.device_put(array, jax.devices('cpu')[0])"

    def owns(self, array: object) -> bool:
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(array, jax.Array)

    def refusal(self, array: Any) -> str | None:
        import jax  # noqa: PLC0415 - the caller has imported it

        if isinstance(array, jax.core.Tracer):
            return "one that is being traced; call this function through jax.pure_callback"
        if array.is_deleted():
            return "one whose memory was given away or deleted; pass a copy"
        if len(array.devices()) > 1:
            return f"one spread over {len(array.devices())} devices; gather it on one of them"
        return None

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def device(self, array: Any) -> str:
        (device,) = array.devices()
        return f"{device.platform}:{device.id}"

    def view(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)  # JAX shows its host memory, and refuses writes to it

    def wrap(self, array: NDArray[Any], dtype: str, device: str) -> Any:  # noqa: ARG002
        import jax  # noqa: PLC0415 - the caller has imported it

        number = int(device.partition(":")[2])
        return jax.device_put(array, next(d for d in jax.devices("cpu") if d.id == number))

    def unwritable(self, array: Any) -> str | None:  # noqa: ARG002
        return "one of JAX, whose arrays are immutable; leave it out"

    def written(self, array: Any) -> None:
        pass


def in_memory(tensor: Any) -> bool:
    """Whether a tensor's storage holds all its entries.

    Storage can be freed or shrunk under a tensor, and the wrappers of torch.func have none. NumPy
    would show such memory all the same.
    """
    try:
        if not tensor.data_ptr():
            return bool(tensor.numel() == 0)
        span = tensor.numel()
        if not tensor.is_contiguous():
            lengths = zip(tensor.shape, tensor.stride(), strict=True)
            span = 1 + sum((length - 1) * stride for length, stride in lengths) if span else 0
        end = (tensor.storage_offset() + span) * tensor.element_size()
        return bool(end <= tensor.untyped_storage().nbytes())
    except RuntimeError:
        return False


def _without_memory(tensor: Any) -> str:
    """Say what kind of tensor has no memory, and the cure."""
    import torch  # noqa: PLC0415 - the caller has imported it

    transforms = getattr(torch._C, "_functorch", None)
    if transforms is not None and transforms.is_batchedtensor(tensor):
        return (
            "a tensor within torch.vmap, which is not supported outside of torch.compile; pass the "
            "whole batch: accept_residual takes rows (N, V), verify_chain chains (B, K, V)"
        )
    if transforms is not None and transforms.is_gradtrackingtensor(tensor):
        return (
            "a tensor within a transform of torch.func, as grad, which is not supported: no "
            "gradient is recorded; call this outside of it"
        )
    return "a tensor without memory of its own; pass one that holds its values"


# Where tensors were that Torch did not show. Its refusal takes tens of microseconds, so that from
# the first of them on tensors are asked where they are; until then nobody pays for the question.
_AWAY: set[str] = set()


def plain_view(tensor: Any) -> NDArray[Any] | None:
    """See an ordinary Torch CPU tensor as a NumPy array, in a third of the time that `view` takes.

    bfloat16 is seen as 16-bit integers. None for anything else: Torch itself refuses to show a
    tensor that is on another device, sparse, negated or recording gradients as a NumPy array.
    `refusal` says why, or `view` finds a way.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(tensor) is not torch.Tensor:
        return None
    described = _core.plain_tensor(tensor)
    if (
        described is not None
        # In a mode of Torch's what is shown may be a copy, without the numbers.
        or torch._C._len_torch_dispatch_stack()
        or (_AWAY and not tensor.is_cpu)
    ):
        return described
    try:
        if tensor.dtype is not torch.bfloat16:
            view = tensor.numpy()
        elif tensor.is_neg():
            return None
        else:
            view = tensor.view(torch.int16).numpy()
        if not view.flags.c_contiguous:
            return view if in_memory(tensor) else None
        # The same as `in_memory` for the usual case.
        storage = tensor.untyped_storage()
        end = view.nbytes + tensor.storage_offset() * view.itemsize
        held = end <= storage.nbytes() and (storage.data_ptr() or not end)
    except (AssertionError, RuntimeError, TypeError):
        if not tensor.is_cpu:
            _AWAY.add(tensor.device.type)
        return None
    return view if held else None


NUMPY = _NumPy()
LIST = _List()
TORCH = _Torch()
JAX = _Jax()
_KINDS: tuple[Kind, ...] = (NUMPY, LIST, TORCH, JAX, CUPY, DLPACK)


def is_known(array: object) -> bool:
    """Whether an array is of one of the kinds."""
    return any(kind.owns(array) for kind in _KINDS)


def on_gpu(array: object) -> bool:
    """Whether this is an array on a GPU that CUDA kernels may run on."""
    kind = next((kind for kind in _KINDS if kind.owns(array)), NUMPY)
    if kind in (NUMPY, LIST) or kind.refusal(array):  # what is refused may be on no device
        return False
    return is_gpu(kind.device(array))


def memory_of(array: Any) -> NDArray[Any]:
    """See the memory of an array of any kind, to compare it with that of another.

    On a GPU only its addresses are there.
    """
    if NUMPY.owns(array):
        return np.asarray(array)
    if JAX.owns(array) and JAX.device(array).startswith("cpu"):
        return JAX.view(array)
    if CUPY.owns(array) or (TORCH.owns(array) and is_gpu(TORCH.device(array))):
        return addresses(array)
    if not TORCH.owns(array) or TORCH.device(array) != "cpu":
        return np.empty(0)
    if not array.is_neg():
        return TORCH.view(array)
    # `view` of a negated tensor is a copy: all of its storage stands for it.
    storage = array.untyped_storage()
    return TORCH.view(array.new_empty(0, dtype=sys.modules["torch"].uint8).set_(storage))


def kind_of(name: str, array: object, known: str = KNOWN) -> Kind:
    for kind in _KINDS:
        if kind.owns(array):
            reason = kind.refusal(array)
            if reason is not None:
                message = f"{name}: expected {known}, got {reason}"
                raise TypeError(message)
            return kind
    cure = "convert it with numpy.asarray"
    if array is None:
        cure = "pass one"
        if name == "draft_probs":
            cure = (
                "pass the probabilities that were drafted from; None, for proposals that were the "
                "only possible ones, is for verify_chain alone"
            )
    message = f"{name}: expected {known}, got {type_name(array)}; {cure}"
    raise TypeError(message)


def type_name(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
