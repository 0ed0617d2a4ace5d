"""NVIDIA's run-time compiler, as its wheel has it. It needs neither a driver nor a GPU."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib import metadata

from kinds import lacking

# The wheels for CUDA 13 and newer, and for CUDA 12.
_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_LIBRARY = re.compile(r"libnvrtc\.so|nvrtc64_\d+_0\.dll")
# As CuPy 14 compiles a RawModule with options=("-std=c++17",): it puts its own behind them.
CUPYS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")


@cache
def _library() -> ctypes.CDLL:
    found = [file for wheel in _WHEELS for file in _files(wheel) if _LIBRARY.match(file.name)]
    if not found:
        lacking("nvidia-cuda-nvrtc is not installed")
    return ctypes.CDLL(str(found[0].locate()))


def _files(wheel: str) -> list[metadata.PackagePath]:
    try:
        return metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return []


def architectures() -> list[int]:
    """List what this compiler compiles for: 90 is that of an H100."""
    library, count = _library(), ctypes.c_int()
    assert library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert library.nvrtcGetSupportedArchs(found) == 0
    return list(found)


def ptx(text: str, *options: str) -> str:
    """Compile to the assembly text that the driver gets."""
    return _product(text, "PTX", *options).rstrip(b"\0").decode()


def cubin(text: str, *options: str) -> bytes:
    """Compile to machine code for one architecture."""
    return _product(text, "CUBIN", *options)


def _product(text: str, what: str, *options: str) -> bytes:
    library, program = _library(), ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    made = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None)
    assert made == 0
    try:
        status = library.nvrtcCompileProgram(program, len(options), given)
        log = _text(program, "ProgramLog").strip(b"\0\n ").decode()
        assert (status, log) == (0, ""), log
        return _text(program, what)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    library, size = _library(), ctypes.c_size_t()
    assert getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    room = ctypes.create_string_buffer(size.value)
    assert getattr(library, f"nvrtcGet{what}")(program, room) == 0
    return room.raw
