"""`python -m draftverify bench`: it runs, compares answers, says what it did. No time is judged.

The command runs in processes of its own. Libraries are made absent by modules of their names that
cannot be imported.
"""

from __future__ import annotations

import copy
import functools
import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftverify
from draftverify import _bench, _bench_text, _bench_work
from draftverify._bench_contenders import CONTENDERS, Call, Contender
from draftverify._bench_work import Problem, Work
from kinds import need

PEERS = ("torch", "numba", "jax", "flashspec_asm_kernel", "ml_dtypes")


def run(*arguments: str, folder: Path, absent: tuple[str, ...] = ()) -> Any:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    for module in absent:
        (folder / f"{module}.py").write_text("raise ImportError('absent for a test')\n")
    return subprocess.run(
        [sys.executable, "-m", "draftverify", "bench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": "2", "COLUMNS": "80"},
        capture_output=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("json")
    done = run("--quick", "--json", folder=folder, absent=("flashspec_asm_kernel",))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_document_has_stable_keys_and_names_the_machine(document: Any) -> None:
    assert list(document) == [
        "versions",
        "machine",
        "load_average",
        "quick",
        "contenders",
        "absent",
        "results",
        "losses",
    ]
    assert document["versions"]["draftverify"] == draftverify.__version__
    assert document["versions"]["numpy"] == np.__version__
    assert set(document["machine"]) == {"cpu", "logical_cores", "system"}
    assert document["machine"]["logical_cores"] == os.cpu_count()
    assert document["quick"] is True
    for result in document["results"]:
        assert list(result) == list(_bench.Result.__annotations__)
        for timing in result["timings"]:
            assert list(timing) == list(_bench.Timing.__annotations__)
    for loss in document["losses"]:
        assert list(loss) == list(_bench.Loss.__annotations__)


def test_every_work_is_timed_with_whoever_is_there(document: Any) -> None:
    works = [
        (result["rows"], result["vocabulary_size"], result["dtype"], result["threads"])
        for result in document["results"]
    ]
    halves = [(None, 128_256, dtype, 1) for dtype in ("float64", "float16", "bfloat16")]
    assert works == [
        *((None, size, "float32", 1) for size in (2, 32_000, 262_144)),
        *halves,
        (4, 128_256, "float32", 1),
        (None, 262_144, "float32", 2),
        (4, 128_256, "float32", 2),
    ]
    for result in document["results"]:
        names = [timing["contender"] for timing in result["timings"]]
        assert sorted([*names, *result["unsupported"]]) == sorted(document["contenders"])
        assert names[0] == "draftverify"
        assert "NumPy" in names
        assert result["failed"] == {}


def test_quartiles_and_ratios_are_in_order(document: Any) -> None:
    for result in document["results"]:
        base = result["timings"][0]["median_seconds"]
        for timing in result["timings"]:
            assert timing["turns"] >= 5
            assert timing["calls_a_turn"] >= 1
            lower, upper = timing["lower_quartile_seconds"], timing["upper_quartile_seconds"]
            assert 0 < lower <= timing["median_seconds"] <= upper
            assert timing["ratio"] == timing["median_seconds"] / base


def test_all_agree_but_numpy_on_bfloat16(document: Any) -> None:
    """A sum that is kept in bfloat16 stops growing."""
    for result in document["results"]:
        for timing in result["timings"]:
            known = (timing["contender"], result["dtype"]) == ("NumPy", "bfloat16")
            assert timing["agrees"] is not known, (result["dtype"], timing)


def test_what_is_absent_is_named_with_the_reason(document: Any) -> None:
    absent = document["absent"]
    assert absent["flashspec-asm-kernel"] == "ImportError: absent for a test"
    assert "flashspec-asm-kernel" not in document["contenders"]
    for module in ("torch", "jax"):
        need(module)
        assert module not in absent
        assert module in document["versions"]
    assert {"Torch", "draftverify on Torch", "JAX"} <= set(document["contenders"])


def test_losses_are_what_the_figures_say(document: Any) -> None:
    assert document["losses"] == [
        loss for result in document["results"] for loss in _bench.losses(result)
    ]


def test_numpy_alone_is_enough_and_the_text_fits_80_columns(tmp_path: Path) -> None:
    done = run("--quick", folder=tmp_path, absent=PEERS)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert max(map(len, text.splitlines())) <= 80
    assert "Absent: torch, numba, jax, flashspec-asm-kernel, ml-dtypes\n" in text
    assert "One row of 262,144 float32 entries, 2 threads\n" in text
    assert "4 rows of 128,256 float32 entries, the same output each time, 1 thread\n" in text
    assert "bfloat16" not in text  # NumPy has none of its own
    assert "* NumPy" not in text
    assert "Where draftverify is behind" in text or "behind nobody here" in text


def timing(contender: str, median: float, *, agrees: bool = True) -> _bench.Timing:
    return {
        "contender": contender,
        "turns": 9,
        "calls_a_turn": 1,
        "median_seconds": median,
        "lower_quartile_seconds": median * 0.9,
        "upper_quartile_seconds": median * 1.1,
        "ratio": median / 1e-3,
        "agrees": agrees,
        "accept_prob_difference": 0.0 if agrees else 1.25e-05,
        "residual_difference": 0.0 if agrees else 1.25e-05,
    }


def result(*timings: _bench.Timing) -> _bench.Result:
    return {
        "rows": 32,
        "vocabulary_size": 262_144,
        "dtype": "bfloat16",
        "threads": 1024,
        "timings": list(timings),
        "unsupported": [each.name for each in CONTENDERS],
        "failed": {each.name: "ValueError: at some length" * 9 for each in CONTENDERS[3:]},
    }


def test_losses_name_the_faster_and_whether_the_quartiles_overlap() -> None:
    found = _bench.losses(
        result(
            timing("draftverify", 1e-3),
            timing("draftverify on Torch", 2e-3),
            timing("NumPy", 0.5e-3),
            timing("numba", 0.9e-3),
            timing("Torch", 1.2e-3),
            timing("JAX", 1.5e-3),
        )
    )
    summary = [(loss["slower"], loss["faster"], loss["spreads_overlap"]) for loss in found]
    assert summary == [
        ("draftverify", "NumPy", False),
        ("draftverify", "numba", True),
        ("draftverify on Torch", "Torch", False),
    ]
    assert [loss["ratio"] for loss in found] == pytest.approx([0.5, 0.9, 0.6])


def test_the_text_shows_the_document(document: Any) -> None:
    text = _bench_text.render(document, "ascii")
    lines = iter(text.splitlines())  # `in` consumes: everything must come in this order
    for found in document["results"]:
        assert any(
            f"{found['vocabulary_size']:,} {found['dtype']} entries" in line
            and f"{found['threads']} thread" in line
            for line in lines
        )
        for each in found["timings"]:
            microseconds = each["median_seconds"] * 1e6
            line = next(line for line in lines if line[2:].startswith(f"{each['contender']} "))
            if not line.startswith("  "):
                assert not each["agrees"]
            assert float(line[22:32]) == pytest.approx(microseconds, rel=0.01, abs=0.006)
            assert float(line[52:60]) == pytest.approx(each["ratio"], abs=0.006)
            assert re.fullmatch("#*>" if each["ratio"] > 5 else "#+", line[62:])
    assert "* NumPy is off: accept_prob by 0, residual by 0." in text
    assert "no float16: " in text or "numba" not in document["contenders"]


def test_awkward_figures_stay_within_80_columns(document: Any) -> None:
    awkward = copy.deepcopy(document)
    awkward["machine"]["cpu"] = "a \u00b5-processor with quite some name " * 4
    awkward["absent"] = {module.replace("_", "-"): "" for module in PEERS}
    names = [each.name for each in CONTENDERS]
    slow = [timing(name, 123.456, agrees=False) for name in names]
    awkward["results"] = [result(timing("draftverify", 1e-3), *slow)]
    fast = [timing(name, 1e-3) for name in names]
    fast[0]["median_seconds"] = fast[0]["lower_quartile_seconds"] = fast[1]["median_seconds"] = 9.0
    awkward["losses"] = _bench.losses(result(*fast))
    assert len(awkward["losses"]) == 6
    text = _bench_text.render(awkward, "ascii")
    assert max(map(len, text.splitlines())) <= 80
    assert r"\xb5" in text
    assert "failed: numba, Torch, JAX" in text
    assert text.count("#>\n") == len(names)


def test_calls_take_turns_there_and_back() -> None:
    made: list[str] = []
    calls: dict[str, Call] = {name: functools.partial(made.append, name) for name in "abc"}
    turns = _bench.measure(calls, 0.0)
    assert {name: len(taken.seconds) for name, taken in turns.items()} == dict.fromkeys("abc", 5)
    order = [name for name, before in zip(made, ["", *made], strict=False) if name != before]
    assert "".join(order) == "abc" + "abc" + "ba" + "bc" + "ba" + "bc"


def test_a_contender_that_fails_is_named_and_stops_nobody() -> None:
    class Broken(Contender):
        name = "broken"

        def prepare(self, work: Work, problem: Problem) -> Call:  # noqa: ARG002
            return lambda: importlib.import_module("no_such_module")

    found = _bench._result(Work(8), 1, [CONTENDERS[0], Broken()], 0.0)
    assert [each["contender"] for each in found["timings"]] == ["draftverify"]
    assert found["failed"] == {"broken": "ModuleNotFoundError: No module named 'no_such_module'"}


def test_another_answer_is_noticed() -> None:
    expected = {"accept_prob": 0.5, "residual": np.array([0.5, 0.5, 0.0])}
    same = _bench_work.difference((0.5, np.array([[0.5, 0.5, 0.0]])), expected)
    assert same == (0.0, 0.0)
    other = _bench_work.difference((0.25, np.array([0.5, 0.25, 0.25])), expected)
    assert other == (0.25, 0.5)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert same.is_small(dtype)
        assert not other.is_small(dtype)
    for one_is_off in (other._replace(accept_prob=0.0), other._replace(residual=0.0)):
        assert not one_is_off.is_small("float16")
    nothing = _bench_work.difference((0.5, np.full(3, np.nan)), expected)
    assert not nothing.is_small("float16")


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("contender", CONTENDERS[:3], ids=lambda each: each.name)
def test_contenders_answer_equal_rows_with_zeros(contender: Contender, rows: int | None) -> None:
    need(contender.module)
    work = Work(20, rows=rows)
    problem = _bench_work.pose(work)
    equal = problem._replace(target=problem.draft)
    call = contender.prepare(work, equal)
    assert call is not None
    assert _bench_work.difference(call(), (np.ones(rows or 1), np.zeros((rows or 1, 20)))) == (0, 0)


def test_the_number_of_threads_is_restored() -> None:
    torch = need("torch")
    before, torch_before = draftverify.get_num_threads(), torch.get_num_threads()

    def measure_in_vain() -> None:
        with _bench_work.on_threads(3):
            assert draftverify.get_num_threads() == torch.get_num_threads() == 3
            assert not torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        measure_in_vain()
    assert (draftverify.get_num_threads(), torch.get_num_threads()) == (before, torch_before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("watched", [True, False])
def test_progress_is_for_those_who_watch(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return watched

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _bench._progress("importing torch")
    assert ("importing torch" in terminal.getvalue()) is watched
    _bench._progress("")
    written = terminal.getvalue()
    assert "\n" not in written
    assert all(len(line) < 80 for line in written.split("\r"))
    if watched:
        assert written.endswith(" \r")  # the line is empty again


def test_help(tmp_path: Path) -> None:
    done = run("--help", folder=tmp_path)
    assert done.returncode == 0
    text = done.stdout.decode("ascii")
    assert "--json" in text
    assert "--quick" in text
    assert max(map(len, text.splitlines())) <= 80
