"""`python -m draftverify gpu-check`, as far as it goes without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from draftverify import _cuda, _gpu_check, _gpu_checks, _gpu_libraries, _gpu_seen, _gpu_times
from draftverify.__main__ import main
from host_kernels import HostModule
from machine import LIBRARIES, machine
from processes import TIME_LIMIT_S

CHECKS = ["the bits of the CPU", "subnormal numbers", "bad values"]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a machine with a GPU of which CuPy alone knows, and less work for it."""
    for name, value in (("_ROWS", 3), ("_VOCABULARY", 700), ("_TURNS", 2), ("_CALLS", 3)):
        monkeypatch.setattr(_gpu_times, name, value)
    monkeypatch.setattr(_gpu_checks, "SIZES", (1, 257, 4097))
    with machine(LIBRARIES["cupy"]):
        found = _gpu_libraries.Cupy.found()
        monkeypatch.setattr(_gpu_check, "present", lambda: [found])
        yield


def test_without_a_gpu_it_says_so_and_has_a_code_of_its_own() -> None:
    """In a process of its own, with what this machine has; tests run where there is no GPU."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "draftverify", "gpu-check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    if done.returncode in (0, 1) and "GPU 0: " in done.stdout:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 3
    *seen, first, second = done.stdout.splitlines()
    assert [re.split("[ :]", line)[0] for line in seen] == ["CuPy", "Torch", "JAX"]
    assert all("not installed" in line or ": sees no GPU: " in line for line in seen)
    assert first.startswith("no GPU was checked: ")
    assert "draftverify[cuda12x] or draftverify[cuda13x]" in second
    assert not done.stderr


@pytest.mark.parametrize(
    ("broken", "says"), [({"cupy": None}, "cupy"), ({"RawModule": int}, "int")]
)
def test_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], broken: dict[str, Any], says: str
) -> None:
    with machine(LIBRARIES["cupy"], **broken):
        assert main(["gpu-check"]) == 3
    *_, line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("no GPU was checked: ")
    assert says in line


@pytest.mark.usefixtures("double")
def test_the_report_names_everything_and_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch("CuPy.*: sees 1 GPU: A double", lines[0])
    assert [re.split("[ :]", line)[0] for line in lines[1:3]] == ["Torch", "JAX"]
    assert lines[3].startswith("draftverify ")
    assert "GPU 0: A double, compute capability 9.0" in lines
    assert any("numpy " in line for line in lines)
    marks = [line for line in lines if line.startswith("ok ")]
    for name, line in zip(CHECKS, marks[:3], strict=True):
        assert line.startswith(f"ok     CuPy: {name} [")
    assert "float32, float16, bfloat16, float64, up to 4097 entries" in marks[0]
    assert "% of a device copy" in marks[3]
    assert "time of a call" in marks[4]
    assert lines[-1] == "all is well"


FAULTS = {
    "the bits of the CPU": (
        "return kept < of ? kept / of : 1.0;",
        "return kept < of ? kept / of : 2.0;",
    ),
    "subnormal numbers": (
        "return positive(difference) ? difference : (Wide)0;",
        "return difference > (Wide)1e-40f ? difference : (Wide)0;",
    ),
    "bad values": ("good = good & is_probability(draft_bits[turn])", "good = good"),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("check", CHECKS)
def test_a_wrong_kernel_fails_its_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: str
) -> None:
    right, wrong = FAULTS[check]

    def spoilt(*, code: str, options: tuple[str, ...]) -> HostModule:
        assert code.count(right) == 1
        return HostModule(code=code.replace(right, wrong), options=options)

    monkeypatch.setattr(sys.modules["cupy"], "RawModule", spoilt)
    monkeypatch.setattr(_gpu_checks, "DTYPES", ("float32", "bfloat16"))
    _cuda._kernels.cache_clear()
    assert main(["gpu-check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"FAILED CuPy: {check} [") for line in lines)
    assert lines[-1].endswith("checks failed")
    assert lines[-1] != "0 checks failed"


def cupy(*names: str) -> Any:
    runtime = SimpleNamespace(
        getDeviceCount=lambda: len(names),
        getDeviceProperties=lambda number: {"name": names[number].encode()},
    )
    return SimpleNamespace(__version__="9.9", cuda=SimpleNamespace(runtime=runtime))


def torch(available: bool, version: str | None, *names: str) -> Any:
    return SimpleNamespace(
        __version__="8.8",
        version=SimpleNamespace(cuda=version),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: len(names),
            get_device_name=lambda number: names[number],
        ),
    )


def jax(*platforms: str) -> Any:
    devices = [SimpleNamespace(platform=each, device_kind=f"A {each}") for each in platforms]
    return SimpleNamespace(__version__="7.7", devices=lambda: devices)


def failing(error: Exception) -> Any:
    def fails() -> int:
        raise error

    return SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=fails)))


SEEN: list[tuple[str, Any, str]] = [
    ("cupy", None, "CuPy: not installed"),
    ("cupy", cupy("An H200", "A T4"), "CuPy 9.9: sees 2 GPUs: An H200, A T4"),
    ("cupy", cupy(), "CuPy 9.9: sees no GPU: the driver has none"),
    ("cupy", failing(OSError("no driver\nsecond line")), "CuPy: sees no GPU: no driver"),
    ("cupy", failing(KeyError()), "CuPy: sees no GPU: KeyError"),
    ("torch", torch(True, "13.0", "An H200"), "Torch 8.8: sees 1 GPU: An H200"),
    ("torch", torch(False, None), "Torch 8.8: sees no GPU: built without CUDA"),
    ("torch", torch(False, "13.0"), "Torch 8.8: sees no GPU: no driver that CUDA 13.0 can use"),
    ("jax", jax("cpu", "gpu"), "JAX 7.7: sees 1 GPU: A gpu"),
    ("jax", jax("cpu", "cpu"), "JAX 7.7: sees no GPU: its devices are cpu"),
    ("jax", ImportError("libcuda"), "JAX: cannot be imported: libcuda"),
]


@pytest.mark.parametrize(("module", "library", "line"), SEEN)
def test_what_each_library_sees(
    monkeypatch: pytest.MonkeyPatch, module: str, library: Any, line: str
) -> None:
    def imported(name: str) -> Any:
        if name != module or library is None:
            raise ModuleNotFoundError(name=name)
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(_gpu_seen, "import_module", imported)
    lines = dict(zip(("cupy", "torch", "jax"), _gpu_seen.seen(), strict=True))
    assert lines.pop(module) == line
    assert all(other.endswith(": not installed") for other in lines.values())


def test_every_check_of_a_library_is_named() -> None:
    assert list(_gpu_checks.OF_EVERY_LIBRARY) == CHECKS
