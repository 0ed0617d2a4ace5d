"""`python -m draftverify`: what it prints is right, readable and fit for pipes.

The command runs in a process of its own, from an empty folder, so that it is the installed package
that answers. What it says is computed again here from the recorded rows, in NumPy and fractions.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import draftverify
from draftverify import _demo, _demo_data, _demo_text

DATA = Path(draftverify.__file__).with_name("data")
TIMED = "Time for one row"  # the lines from here on differ from run to run


def run(
    *arguments: str, folder: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "draftverify", *arguments],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run("demo", folder=tmp_path_factory.mktemp("text"), env={"PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return done.stdout.decode()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    done = run("demo", "--json", folder=tmp_path_factory.mktemp("json"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def archive() -> dict[str, NDArray[Any]]:
    with np.load(DATA / "smollm2_chains.npz", allow_pickle=False) as rows:
        return dict(rows)


def logits(planes: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Put the two bytes of every entry together again, as the bytes of memory."""
    return np.ascontiguousarray(np.stack([planes[1], planes[0]], axis=-1)).view("<f2")[..., 0]


def probs(planes: NDArray[np.uint8]) -> NDArray[np.float32]:
    row = logits(planes).astype(np.float64)
    powers = np.exp(row - row.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def test_the_rows_are_the_recorded_ones_bit_by_bit(archive: dict[str, NDArray[Any]]) -> None:
    digests = {
        name: hashlib.sha256(logits(archive[name]).astype("<f2").tobytes()).hexdigest()
        for name in ("draft_logits", "target_logits")
    }
    assert digests == {
        "draft_logits": "5f816e12f851f90dcca8f9ddbde63f14611ba037911d567c03551234050c10ef",
        "target_logits": "e5065296d1354089056d7b6a31bf03f6cea9dd51e86fb37ad137bc4719bb61ca",
    }
    assert archive["draft_token_ids"].tolist() == [260, 6510, 753, 803, 24, 5702]
    assert archive["indptr"].tolist() == [0, 2, 5, 6]


def test_the_extract_fits_in_the_wheel_and_names_its_licence() -> None:
    files = [file for file in DATA.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"README.md", "smollm2_chains.npz"}
    assert sum(file.stat().st_size for file in files) <= 1_000_000
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert "SmolLM2-135M-Instruct" in readme
    assert "Apache-2.0" in readme


def test_the_numbers_are_those_of_the_recorded_rows(
    document: Any, archive: dict[str, NDArray[Any]]
) -> None:
    draft, target = probs(archive["draft_logits"]), probs(archive["target_logits"])
    indptr = archive["indptr"].tolist()
    lengths = [len(chain["draft_token_ids"]) for chain in document["chains"]]
    assert lengths == np.diff(indptr).tolist()
    for chain, start in zip(document["chains"], indptr, strict=False):
        for row, step in enumerate(chain["steps"], start=start):
            token = step["token_id"]
            assert token == archive["draft_token_ids"][row]
            ratio = Fraction(float(target[row, token])) / Fraction(float(draft[row, token]))
            assert step["accept_prob"] == float(min(Fraction(1), ratio))
            excess = np.maximum(target[row] - draft[row], np.float32(0))
            mass = sum(map(Fraction, excess.tolist()), Fraction(0))
            assert step["mass"] == pytest.approx(float(mass), rel=1e-14)
            largest = np.argsort(-excess, kind="stable")[:5].tolist()
            assert [entry["token_id"] for entry in step["residual_largest"]] == largest
            for entry in step["residual_largest"]:
                exact = float(Fraction(float(excess[entry["token_id"]])) / mass)
                assert entry["prob"] == pytest.approx(exact, rel=2**-22)


def test_the_chains_follow_the_stated_uniforms(document: Any) -> None:
    uniforms = document["uniforms"]
    ratio = (Fraction(5**0.5) - 1) / 2
    for k, uniform in enumerate(uniforms, start=1):
        assert uniform == pytest.approx(float(k * ratio % 1), abs=1e-14)
    taken = 0
    for chain in document["chains"]:
        length = len(chain["draft_token_ids"])
        own = uniforms[taken : taken + length + 1]
        taken += length + 1
        steps = chain["steps"]
        assert [step["uniform"] for step in steps] == own[: len(steps)]
        for step in steps:
            assert step["kept"] == (step["uniform"] < step["accept_prob"])
        assert all(step["kept"] for step in steps[:-1])
        kept = [step["token_id"] for step in steps if step["kept"]]
        if chain["replacement"] is None:
            assert kept == chain["draft_token_ids"] == chain["emitted_token_ids"]
        else:
            assert not steps[-1]["kept"]
            assert chain["replacement"]["uniform"] == own[-1]
            assert chain["emitted_token_ids"] == [*kept, chain["replacement"]["token_id"]]
    assert taken == len(uniforms)


def test_replacements_are_drawn_by_inverse_cdf(
    document: Any, archive: dict[str, NDArray[Any]]
) -> None:
    draft, target = probs(archive["draft_logits"]), probs(archive["target_logits"])
    drawn = 0
    for chain, start in zip(document["chains"], archive["indptr"].tolist(), strict=False):
        if chain["replacement"] is None:
            continue
        drawn += 1
        row = start + len(chain["steps"]) - 1
        excess = [Fraction(value) for value in np.maximum(target[row] - draft[row], 0).tolist()]
        threshold = Fraction(chain["replacement"]["uniform"]) * sum(excess, Fraction(0))
        token = chain["replacement"]["token_id"]
        below = sum(excess[:token], Fraction(0))
        # A float32 residual moves the borders between tokens by no more than this.
        slack = Fraction(1, 10**6)
        assert below - slack <= threshold < below + excess[token] + slack
        assert excess[token] > 0
    assert drawn >= 2


def test_inverse_cdf_skips_what_has_no_probability() -> None:
    law = np.array([0, 0.5, 0, 1.5, 0], np.float32)  # sums to two: the draw is from what is there
    cases = [0.0, 0.2499, 0.25, 0.9999999999999999]
    assert [_demo.inverse_cdf(law, uniform) for uniform in cases] == [1, 1, 3, 3]


def test_the_demo_shows_tokens_kept_and_replaced(document: Any) -> None:
    verdicts = [step["kept"] for chain in document["chains"] for step in chain["steps"]]
    masses = [step["mass"] for chain in document["chains"] for step in chain["steps"]]
    acceptance = document["acceptance"]
    assert len(document["chains"]) >= 3
    assert {True, False} == set(verdicts)
    assert acceptance["visited"] == len(verdicts)
    assert acceptance["kept"] == sum(verdicts)
    assert acceptance["observed"] == sum(verdicts) / len(verdicts)
    assert acceptance["expected"] == pytest.approx(1 - sum(masses) / len(masses), rel=1e-14)


def test_every_token_shown_has_a_text(document: Any, text: str) -> None:
    texts = json.loads((DATA / "smollm2_chains.json").read_text(encoding="utf-8"))["token_texts"]
    for chain in document["chains"]:
        assert chain["draft_texts"] == [texts[str(token)] for token in chain["draft_token_ids"]]
        emitted = [texts[str(token)] for token in chain["emitted_token_ids"]]
        assert chain["emitted_text"] == "".join(emitted)
        for step in chain["steps"]:
            for entry in [step, *step["residual_largest"]]:
                assert entry["text"] == texts[str(entry["token_id"])]
    assert "<id " not in text


def test_the_document_has_stable_keys_and_names_the_machine(document: Any) -> None:
    expected = ["versions", "machine", "uniforms", "chains", "acceptance", "timing"]
    assert list(document) == expected
    assert document["versions"]["draftverify"] == draftverify.__version__
    assert document["versions"]["numpy"] == np.__version__
    assert document["machine"]["logical_cores"] == os.cpu_count()
    assert document["machine"]["cpu"]
    timing = document["timing"]
    assert (timing["vocabulary_size"], timing["dtype"]) == (49152, "float32")
    assert timing["calls"] >= 100
    assert timing["step_seconds"] > 0
    assert timing["numpy_over_step"] == timing["numpy_seconds"] / timing["step_seconds"]


def test_the_text_says_what_the_document_says(document: Any, text: str) -> None:
    lines = iter(text.splitlines())  # `in` consumes: everything must come in this order

    def follows(*pieces: str) -> bool:
        return any(all(piece in line for piece in pieces) for line in lines)

    assert follows(draftverify.__version__)
    assert follows("makes no")
    assert follows("0.6180339887")
    for number, chain in enumerate(document["chains"], start=1):
        assert follows(f"Chain {number} of {len(document['chains'])}")
        for step in chain["steps"]:
            assert follows(
                repr(step["text"]),
                f"uniform {step['uniform']:.4f}",
                f"accept {step['accept_prob']:.4f}",
                "kept" if step["kept"] else "replaced",
                f"mass {step['mass']:.4f}",
            )
            assert follows("residual", *(repr(entry["text"]) for entry in step["residual_largest"]))
            assert follows(*(f"{entry['prob']:.4f}" for entry in step["residual_largest"]))
        if chain["replacement"] is None:
            assert follows("all kept")
        else:
            replacement = chain["replacement"]
            assert follows(repr(replacement["text"]), f"uniform {replacement['uniform']:.4f}")
        assert follows("emitted", repr(chain["emitted_text"]))
    acceptance = document["acceptance"]
    assert follows("expected", f"{acceptance['expected']:.4f}")
    kept = f"{acceptance['kept']} kept of {acceptance['visited']}"
    assert follows("observed", f"{acceptance['observed']:.4f}", kept)
    assert follows(TIMED, "49,152", "float32", "median")
    assert follows("speculative_decode_step", " us")
    assert follows("NumPy", " us", "times as long")
    machine = f"{document['machine']['logical_cores']} logical cores"
    assert f"{document['machine']['cpu']}, {machine}" in text.replace("\n  ", " ")


def test_a_context_is_shown_up_to_its_last_blank(document: Any, text: str) -> None:
    blocks = text.split("after the context\n")[1:]
    for chain, block in zip(document["chains"], blocks, strict=True):
        lines = block.split("\n\n", maxsplit=1)[0].splitlines()
        assert all(line.startswith("  ") for line in lines)
        shown = "".join(line[2:] for line in lines).removeprefix("...")
        assert len(shown) > 80
        assert chain["context"].endswith(ast.literal_eval(shown))


def test_the_text_fits_80_columns_and_is_plain(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 80
    assert all(char.isprintable() or char == "\n" for char in text)


def test_the_same_is_printed_every_run_apart_from_times(text: str, tmp_path: Path) -> None:
    env = {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    again = run("demo", folder=tmp_path, env=env).stdout.decode()
    assert TIMED in text
    assert again.split(TIMED)[0] == text.split(TIMED, maxsplit=1)[0]


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
    ],
)
def test_a_terminal_without_unicode_is_enough(
    env: dict[str, str], text: str, tmp_path: Path
) -> None:
    done = run("demo", folder=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii").split(TIMED)[0] == text.split(TIMED, maxsplit=1)[0]


def test_what_the_encoding_lacks_is_escaped_within_80_columns() -> None:
    report = synthetic()
    wide = _demo_text.render(report, "utf-8")
    assert "' caf\u00e9'" in wide
    narrow = _demo_text.render(report, "ascii")
    assert narrow.isascii()
    assert r"' caf\xe9'" in narrow
    for rendered in (wide, narrow):
        assert max(map(len, rendered.splitlines())) <= 80


def test_line_breaks_and_long_tokens_stay_on_their_line() -> None:
    rendered = _demo_text.render(synthetic(), "utf-8")
    assert r"'\n\n'" in rendered
    assert "...'" in rendered  # the long context, cut at its beginning
    assert "'..." in rendered  # the long tokens, cut at their end
    assert max(map(len, rendered.splitlines())) <= 80


def synthetic() -> _demo.Report:
    """Make a report out of what is awkward to print."""
    report = copy.deepcopy(_demo.report(_demo_data.load()))
    report["machine"]["cpu"] = "a \u00b5-processor with quite some name " * 4
    chain = report["chains"][0]
    chain["context"] = "\n\t\u00e9" * 300
    chain["emitted_text"] = "emitted " * 40
    for step in chain["steps"]:
        step["text"] = " internationalisation\n" * 3
        for entry in step["residual_largest"]:
            entry["text"] = " caf\u00e9" if entry["prob"] > 0.5 else "internationalisation\u00e9"
    assert chain["replacement"] is not None
    chain["replacement"]["text"] = "\n\n"
    return report


def test_a_rejection_ends_a_chain_before_its_later_tokens() -> None:
    extract = _demo_data.load()
    uniforms = [0.99] * 9
    chain = _demo.walk(extract, 1, uniforms)
    assert [step["kept"] for step in chain["steps"]] == [False]
    assert len(chain["emitted_token_ids"]) == 1
    report = _demo.report(extract)
    report["chains"] = [chain]
    assert "not reached: ' add('" in _demo_text.render(report, "utf-8")


def test_a_token_without_a_text_is_shown_by_its_id() -> None:
    assert _demo_data.load().text(49151) == "<id 49151>"


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(["demo"], ""), (["demo"], "1"), (["demo", "--json"], ""), (["--help"], "")],
)
def test_a_reader_that_leaves_early_sees_no_traceback(
    arguments: list[str], unbuffered: str, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "draftverify", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()  # as `head -0` does; nothing can be written from here on
    assert process.stderr is not None
    complaint = process.stderr.read()
    process.stderr.close()
    assert complaint == b""
    assert process.wait(timeout=120) == 1


def test_help_and_version(tmp_path: Path) -> None:
    done = run("--version", folder=tmp_path)
    assert (done.returncode, done.stdout.split()) == (
        0,
        [b"draftverify", draftverify.__version__.encode()],
    )
    for arguments, expected in ((["--help"], b"demo"), (["demo", "--help"], b"--json")):
        done = run(*arguments, folder=tmp_path, env={"COLUMNS": "80"})
        assert done.returncode == 0
        assert expected in done.stdout
        assert max(map(len, done.stdout.decode("ascii").splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["no-such-command"], [], ["demo", "--no-such-option"]])
def test_a_wrong_command_line_exits_with_2(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: python -m draftverify" in done.stderr


def test_the_demo_imports_nothing_but_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from draftverify.__main__ import main; main(['demo', '--json']); "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'torch', 'jax', 'ml_dtypes', 'scipy', 'pytest'}), "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, timeout=120
    )
    assert done.stderr.strip() == b"[]"
