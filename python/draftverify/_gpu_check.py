"""`python -m draftverify gpu-check`: whether this machine's GPUs give the bits of the CPU.

Everything goes through the public functions. The report is plain text, to be pasted as it is.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module, metadata
from typing import Any

from draftverify import __version__, _cuda, _gpu_checks, _gpu_seen, _gpu_times
from draftverify._gpu_libraries import Cupy, GpuLibrary, Jax, Torch
from draftverify._machine import machine

ALL_GOOD, SOME_FAILED, NO_GPU = 0, 1, 3  # exit codes; argparse takes 2 for a wrong command line

Check = tuple[str, Callable[[], str]]


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "gpu-check",
        help="compare this machine's GPUs with its CPU, bit by bit",
        description="Say which GPUs Torch, CuPy and JAX see, as far as they are installed, and "
        "compare them with the CPU, bit by bit; then streams, graph capture, several devices, and "
        "times. "
        f"Exit code {ALL_GOOD} if all is well, {SOME_FAILED} if a check failed, {NO_GPU} if there "
        "is no GPU, or no CuPy to reach it with.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - there are none
    """Say which GPUs are seen, make all checks, print a line for each, and give the exit code."""
    for line in _gpu_seen.seen():
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    missing = _cuda.missing("float32")
    if missing is not None:
        sys.stdout.write(
            f"no GPU was checked: {missing}\nthis needs an NVIDIA GPU with its driver, and "
            f"draftverify[cuda12x] or draftverify[cuda13x]\n"
        )
        return NO_GPU
    libraries = present()
    sys.stdout.write("".join(f"{line}\n" for line in heading()))
    failures = 0
    for name, check in checks(libraries):
        start = time.perf_counter()
        try:
            said, mark = check(), "ok"
        except Exception as error:
            said, mark = f"{type(error).__name__}: {error}", "FAILED"
            failures += 1
        seconds = time.perf_counter() - start
        sys.stdout.write(f"{mark:6} {name} [{seconds:.1f} s]: {said}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{failures} checks failed\n" if failures else "all is well\n")
    return SOME_FAILED if failures else ALL_GOOD


def present() -> list[GpuLibrary]:
    """Find the libraries that have a GPU here."""
    libraries: tuple[type[GpuLibrary], ...] = (Torch, Cupy, Jax)
    return [found for library in libraries if (found := library.found()) is not None]


def heading() -> Iterator[str]:
    """Say what was checked with what."""
    runtime = import_module("cupy").cuda.runtime
    yield f"draftverify {__version__}, Python {platform.python_version()}"
    cpu = machine()
    yield f"{cpu['cpu']}, {cpu['system']}"
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        name = found["name"].decode()
        yield f"GPU {number}: {name}, compute capability {found['major']}.{found['minor']}"
    yield f"CUDA driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}"
    wanted = ("numpy", "cupy", "torch", "jax", "nvrtc")
    names = sorted(
        (found.metadata["Name"], found.version)
        for found in metadata.distributions()
        if any(part in (found.metadata["Name"] or "").lower().split("-") for part in wanted)
        or (found.metadata["Name"] or "").startswith("cupy")
    )
    yield ", ".join(f"{name} {version}" for name, version in dict(names).items())


def checks(libraries: list[GpuLibrary]) -> Iterator[Check]:
    """Name every check, the most important first."""
    for library in libraries:
        for name, check in _gpu_checks.OF_EVERY_LIBRARY.items():
            yield f"{library.name}: {name}", partial(check, library)
        for name, own in library.checks().items():
            yield f"{library.name}: {name}", own
    yield from _gpu_times.TIMES.items()
