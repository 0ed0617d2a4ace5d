"""Which array libraries are here, and which GPUs each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any


def seen() -> Iterator[str]:
    """Say of CuPy, Torch and JAX, a line for each, which GPUs they see, or why none."""
    for name, (module, look) in _LIBRARIES.items():
        try:
            library = import_module(module)
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == module
            yield f"{name}: {'not installed' if absent else f'cannot be imported: {_first(error)}'}"
            continue
        named = f"{name} {getattr(library, '__version__', '')}".rstrip()
        try:
            found = look(library)
        except Exception as error:  # of drivers and of libraries: they have exceptions of their own
            yield f"{named}: sees no GPU: {_first(error)}"
            continue
        if isinstance(found, str):
            yield f"{named}: sees no GPU: {found}"
        else:
            yield f"{named}: sees {len(found)} GPU{'s'[: len(found) != 1]}: {', '.join(found)}"


def _of_cupy(cupy: Any) -> list[str] | str:
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()  # without a driver an exception, which says so
    names = [runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    return names or "the driver has none"


def _of_torch(torch: Any) -> list[str] | str:
    if not torch.cuda.is_available():
        version = torch.version.cuda
        return "built without CUDA" if version is None else f"no driver that CUDA {version} can use"
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _of_jax(jax: Any) -> list[str] | str:
    devices = jax.devices()
    names = [device.device_kind for device in devices if device.platform == "gpu"]
    return names or f"its devices are {', '.join(sorted({each.platform for each in devices}))}"


def _first(error: Exception) -> str:
    """Take the first line of what an exception says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_LIBRARIES: dict[str, tuple[str, Callable[[Any], list[str] | str]]] = {
    "CuPy": ("cupy", _of_cupy),
    "Torch": ("torch", _of_torch),
    "JAX": ("jax", _of_jax),
}
