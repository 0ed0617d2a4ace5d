"""Where `draftverify._generic` computes in the tests: libraries, devices, and their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from kinds import LIBRARIES, Library, need

STRICT_DEVICES = ("CPU_DEVICE", "device1", "device2", "no_float64", "no_x64")


class Home(NamedTuple):
    """One library, and one of its devices."""

    name: str
    dtypes: tuple[str, ...]
    # Whether masses and accept probabilities are float64 there.
    float64: bool
    # Copies a NumPy array there, and back.
    array: Callable[[NDArray[Any]], Any]
    plain: Callable[[Any], NDArray[Any]]

    def __str__(self) -> str:
        return self.name


def strict(plain: NDArray[Any], device: str = "CPU_DEVICE") -> Any:
    """Copy a NumPy array to a device of array-api-strict."""
    module = need("array_api_strict")
    return module.asarray(plain.copy(), device=module.Device(device))


def strict_plain(array: Any) -> NDArray[Any]:
    """See a result of array-api-strict as a NumPy array."""
    assert type(array) is type(need("array_api_strict").zeros(1))
    plain: NDArray[Any] = array._array  # in every version of the standard
    return plain


def _strict_home(device: str) -> Home:
    float64 = not device.startswith("no_")
    dtypes = ("float32", "float64") if float64 else ("float32",)
    name = f"strict-{device}"
    return Home(name, dtypes, float64, lambda plain: strict(plain, device), strict_plain)


def _library_home(library: Library) -> Home:
    """Let a library that has kernels of ours compute by itself."""
    return Home(library.name, library.dtypes, True, library.array, library.plain)


HOMES = (
    *map(_strict_home, STRICT_DEVICES),
    *(_library_home(library) for library in LIBRARIES if library.name in {"torch", "jax"}),
)
