"""The kernels compiled for the CPU: as the module that CuPy would load, and as programs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftverify import _cuda
from kinds import DTYPES, lacking
from processes import TIME_LIMIT_S

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]

HERE = Path(__file__).parent
_ROOM = tempfile.TemporaryDirectory(prefix="draftverify-kernels-")
_EXACT = ("-std=c++17", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas")


class Launch(NamedTuple):
    """One launch, as CuPy was asked for it."""

    name: str
    blocks: int
    threads: int
    stream: int


LAUNCHES: list[Launch] = []


def compiled(text: str, *flags: str) -> Path:
    """Compile the text of the kernels with the shim, unless that has been done."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        lacking("no C++ compiler is installed")
    key = sha256("\0".join((text, *flags)).encode()).hexdigest()[:16]
    room = Path(_ROOM.name) / key
    product = room / "kernels"
    if not product.exists():
        room.mkdir(exist_ok=True)
        (room / "kernel.cu").write_text(text)
        places = (f"-I{HERE}", f"-I{room}", str(HERE / "host.cpp"), "-o", str(product), "-pthread")
        subprocess.run([compiler, *_EXACT, *flags, *places], check=True)
    return product


class HostKernel:
    """A kernel that is called as CuPy's are, and counts the bytes of its arguments."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name = name
        self._launch = getattr(library, f"launch_{name}")
        size = getattr(library, f"size_{name}")
        self.sizes = [size(place) for place in range(30) if size(place)]

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], *, stream: Any
    ) -> None:
        (blocks,), (threads,) = grid, block
        assert 0 < blocks < 2**31
        # CuPy hands a Python int over as 8 bytes, a bool as one.
        assert {type(argument) for argument in args} == {int}
        assert [8] * len(args) == self.sizes
        values = (ctypes.c_int64 * len(args))(*args)
        step = ctypes.sizeof(ctypes.c_int64)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(args))(*(first + step * at for at in range(len(args))))
        LAUNCHES.append(Launch(self.name, blocks, threads, getattr(stream, "ptr", 0)))
        self._launch(blocks, threads, pointers)


class HostModule:
    """What stands for `cupy.RawModule`: the text that it is given is what runs."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        assert options == ("-std=c++17",)
        self._library = ctypes.CDLL(str(compiled(code, "-O2", "-shared", "-fPIC")))

    def get_function(self, name: str) -> HostKernel:
        return HostKernel(self._library, name)


class Answers(NamedTuple):
    """What the kernels wrote for some rows."""

    residual: NDArray[Any]
    accept_prob: NDArray[np.float64]
    mass: NDArray[np.float64]
    alone: NDArray[np.float64]


@cache
def kernels_of(dtype: str, block: int = _cuda.BLOCK) -> list[HostKernel]:
    """Compile the kernels for rows of a dtype."""
    module = HostModule(code=_cuda.source(dtype, block), options=("-std=c++17",))
    return [module.get_function(name) for name in ("excess_sums", "residuals", "accept_entries")]


def run(rows: Rows, *, check: bool = False, block: int = _cuda.BLOCK) -> Answers:
    """Run all kernels on packed rows. What they do not write is 0."""
    draft, target, ids = rows
    assert draft.flags.c_contiguous
    assert target.flags.c_contiguous
    count, vocabulary = draft.shape
    chunks = -(-vocabulary // (16 * block))
    ids = ids.astype(np.int64)
    residual = np.zeros_like(draft)
    sums, good = np.zeros(count * chunks), np.zeros(1, np.int64)
    accept_prob, mass, alone = np.zeros((3, count))
    kernels = kernels_of(_name(draft), block)
    inputs = (draft.ctypes.data, vocabulary, 1, target.ctypes.data, vocabulary, 1)
    tokens = (ids.ctypes.data, 0)
    put = (sums.ctypes.data, good.ctypes.data)
    kernels[0]((count * chunks,), (block,), (*inputs, count, vocabulary, *tokens, *put), stream=0)
    out = (residual.ctypes.data, vocabulary, 1, vocabulary, *tokens, *put, int(check))
    answers = (accept_prob.ctypes.data, mass.ctypes.data)
    kernels[1]((count * chunks,), (block,), (*inputs, *out, *answers), stream=0)
    entries = (*inputs, count, vocabulary, ids.ctypes.data, alone.ctypes.data)
    kernels[2]((-(-count // block),), (block,), entries, stream=0)
    return Answers(residual, accept_prob, mass, alone)


def _name(rows: NDArray[Any]) -> str:
    return next(name for name, known in DTYPES.items() if known == rows.dtype)


def run_program(
    rows: Rows, text: str, *flags: str
) -> tuple[subprocess.CompletedProcess[bytes], Answers | None]:
    """Run a text of the kernels in a process of its own; what it answers if that ends well."""
    draft, target, ids = rows
    program = compiled(text, "-DPROGRAM", "-g", *flags)
    count, vocabulary = draft.shape
    header = np.array([count, vocabulary, 0], np.int64)
    given = b"".join(array.tobytes() for array in (header, draft, target, ids.astype(np.int64)))
    done = subprocess.run(
        [str(program)], input=given, capture_output=True, check=False, timeout=TIME_LIMIT_S
    )
    if done.returncode != 0:
        return done, None
    wide = np.frombuffer(done.stdout[draft.nbytes :]).reshape(3, count)
    residual = np.frombuffer(done.stdout[: draft.nbytes], draft.dtype).reshape(draft.shape)
    return done, Answers(residual, *wide)
