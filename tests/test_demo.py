"""`python -m draftverify`: what it prints is right, readable and fit for pipes.

The command runs in a process of its own, from an empty folder, so that it is the installed package
that answers. What it says is computed again here from the recorded rows, in NumPy, in fractions and
by the plain twin of `verify_chain`.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import draftverify
import plain_chain
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


class Rows(NamedTuple):
    """What was recorded, and what is to be shown of it."""

    draft: NDArray[np.float32]
    target: NDArray[np.float32]
    tokens: list[int]
    indptr: list[int]

    def ratio(self, row: int) -> Fraction:
        token = self.tokens[row]
        return Fraction(float(self.target[row, token])) / Fraction(float(self.draft[row, token]))

    def joint_ratios(self, start: int, end: int) -> list[Fraction]:
        joint = [Fraction(1)]
        for row in range(start, end):
            joint.append(min(Fraction(1), joint[-1] * self.ratio(row)))
        return joint

    def verdict(self, chain: int, uniforms: Sequence[float], method: str) -> tuple[int, list[int]]:
        """Let the twin verify a chain; the stand-in for a bonus token is left out."""
        start, end = self.indptr[chain : chain + 2]
        kept, ids = plain_chain.verify_chain(
            self.draft[None, start:end],
            self.target[None, start:end],
            np.array([self.tokens[start:end]]),
            np.array([uniforms[start + chain : end + chain + 1]]),
            method=method,
            bonus_token_ids=[-1],
        )
        return int(kept[0]), [token for token in ids[0].tolist() if token != -1]


@pytest.fixture(scope="module")
def rows(archive: dict[str, NDArray[Any]]) -> Rows:
    return Rows(
        probs(archive["draft_logits"]),
        probs(archive["target_logits"]),
        archive["draft_token_ids"].tolist(),
        archive["indptr"].tolist(),
    )


def test_the_rows_are_the_recorded_ones_bit_by_bit(archive: dict[str, NDArray[Any]]) -> None:
    digests = {
        name: hashlib.sha256(logits(archive[name]).astype("<f2").tobytes()).hexdigest()
        for name in ("draft_logits", "target_logits")
    }
    assert digests == {
        "draft_logits": "a5cc107a28ee00a37d78dbc5d24af83e67b7b4cb4948c6c1cae4389928c6e063",
        "target_logits": "b628a01e94d095a10165c325f60d0059db994389cc29d9be0dc6ed4be871ee49",
    }
    assert archive["draft_token_ids"].tolist() == [5702, 4174, 28, 16293, 260, 6510]
    assert archive["indptr"].tolist() == [0, 1, 4, 6]


def test_the_extract_fits_in_the_wheel_and_names_its_licence() -> None:
    files = [file for file in DATA.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"README.md", "smollm2_chains.npz"}
    assert sum(file.stat().st_size for file in files) <= 1_000_000
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert "SmolLM2-135M-Instruct" in readme
    assert "Apache-2.0" in readme


def test_the_numbers_are_those_of_the_recorded_rows(document: Any, rows: Rows) -> None:
    chains = [chain["draft_token_ids"] for chain in document["chains"]]
    assert chains == [rows.tokens[start:end] for start, end in pairwise(rows.indptr)]
    for chain, (start, end) in zip(document["chains"], pairwise(rows.indptr), strict=True):
        joint = rows.joint_ratios(start, end)[1:]
        assert [step["token_id"] for step in chain["steps"]] == rows.tokens[start:end]
        for row, step in enumerate(chain["steps"], start=start):
            ratio = rows.ratio(row)
            assert step["ratio"] == float(ratio)
            assert step["accept_prob"] == float(min(Fraction(1), ratio))
            assert step["joint_ratio"] == pytest.approx(float(joint[row - start]), rel=1e-15)
            excess = np.maximum(rows.target[row] - rows.draft[row], np.float32(0))
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
        assert [step["uniform"] for step in chain["steps"]] == own[:-1]
        going = True
        for step in chain["steps"]:
            assert step["visited"] == going
            going = going and step["uniform"] < step["accept_prob"]
            assert step["kept"] == going
        for outcome in (chain, chain["block"]):
            if outcome["replacement"] is not None:
                assert outcome["replacement"]["uniform"] == own[-1]
    assert taken == len(uniforms)


def check_outcomes(chains: list[Any], rows: Rows, uniforms: Sequence[float]) -> None:
    """Compare with the twin: how many are kept, what is emitted, and how probable it was."""
    for number, chain in enumerate(chains):
        start, end = rows.indptr[number : number + 2]
        for method, outcome in (("standard", chain), ("block", chain["block"])):
            kept, emitted = rows.verdict(number, uniforms, method)
            assert (outcome["num_accepted"], outcome["emitted_token_ids"]) == (kept, emitted)
            if kept == end - start:
                assert outcome["replacement"] is None
                continue
            drawn = emitted[kept]
            scale = float(rows.joint_ratios(start, end)[kept]) if method == "block" else 1.0
            target = scale * rows.target[start + kept].astype(np.float64)
            excess = np.maximum(target - rows.draft[start + kept], 0)
            assert outcome["replacement"]["token_id"] == drawn
            prob = excess[drawn] / excess.sum()
            assert outcome["replacement"]["prob"] == pytest.approx(prob, rel=1e-4)


def test_both_methods_decide_as_the_plain_twin_does(document: Any, rows: Rows) -> None:
    check_outcomes(document["chains"], rows, document["uniforms"])
    kept = [(chain["num_accepted"], chain["block"]["num_accepted"]) for chain in document["chains"]]
    assert any(standard != block for standard, block in kept)  # else there was little to show
    assert any(chain["replacement"] is None for chain in document["chains"])
    assert any(chain["replacement"] is not None for chain in document["chains"])


def test_other_chains_are_walked_as_the_plain_twin_does(rows: Rows) -> None:
    """Without ' Venus', block may end behind ' reality': it scales the target's row there."""
    first = [0, 1, 2, 4, 5]
    tokens = [rows.tokens[row] for row in first]
    shorter = Rows(rows.draft[first], rows.target[first], tokens, [0, 1, 3, 5])
    extract = _demo_data.load()._replace(
        draft_probs=shorter.draft,
        target_probs=shorter.target,
        draft_token_ids=np.array(tokens, np.int32),
        indptr=np.array(shorter.indptr, np.int32),
    )
    rng = np.random.default_rng(5)
    scaled = 0
    for _ in range(6):
        uniforms = rng.random(8).tolist()
        chains = _demo.walk(extract, uniforms)
        check_outcomes(chains, shorter, uniforms)
        scaled += chains[1]["block"]["num_accepted"] == 1
    assert scaled


def test_what_verify_chain_answers_is_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    extract = _demo_data.load()
    answers = {
        "standard": (np.array([0, 2, 1]), np.array([[7, -1, -1], [4174, 28, 8], [260, 9, -1]])),
        "block": (np.array([0, 0, 0]), np.array([[10, -1], [11, -1], [12, -1]])),
    }
    methods = []

    def verify_chain(*_: Any, method: str, indptr: Any, **__: Any) -> Any:
        methods.append(method)
        assert indptr.tolist() == [0, 1, 4, 6]
        return answers[method]

    monkeypatch.setattr(_demo, "verify_chain", verify_chain)
    chains = _demo.walk(extract, [0.5] * 9)
    assert sorted(methods) == ["block", "standard"]  # one call each, for all chains
    assert [chain["emitted_token_ids"] for chain in chains] == [[7], [4174, 28, 8], [260, 9]]
    assert [chain["block"]["emitted_token_ids"] for chain in chains] == [[10], [11], [12]]
    drawn = [chain["replacement"]["token_id"] for chain in chains if chain["replacement"]]
    assert drawn == [7, 8, 9]
    kept = [[step["kept"] for step in chain["steps"]] for chain in chains]
    assert kept == [[False], [True, True, False], [True, False]]


def test_the_means_at_the_end_are_those_of_the_chains(document: Any, rows: Rows) -> None:
    verdicts = [step["kept"] for chain in document["chains"] for step in chain["steps"]]
    visited = [step["visited"] for chain in document["chains"] for step in chain["steps"]]
    acceptance = document["acceptance"]
    assert len(document["chains"]) >= 3
    assert {True, False} == set(verdicts)
    assert acceptance["visited"] == sum(visited)
    assert acceptance["kept"] == sum(verdicts)
    assert acceptance["observed"] == sum(verdicts) / sum(visited)
    smaller = np.minimum(rows.draft, rows.target)[visited].astype(np.float64)
    assert acceptance["expected"] == pytest.approx(smaller.sum(axis=1).mean(), rel=1e-13)

    tokens = document["tokens_per_step"]
    chains = list(pairwise(rows.indptr))
    one = Fraction(1)
    expected: dict[str, list[Fraction]] = {
        "standard": [
            math.prod((min(one, rows.ratio(row)) for row in range(start, stop)), start=one)
            for start, end in chains
            for stop in range(start, end + 1)
        ],
        "block": [joint for start, end in chains for joint in rows.joint_ratios(start, end)],
    }
    assert list(tokens) == list(expected)
    for method, numbers in expected.items():
        emitted = [
            1 + rows.verdict(chain, document["uniforms"], method)[0] for chain in range(len(chains))
        ]
        assert tokens[method]["observed"] == pytest.approx(sum(emitted) / len(chains), rel=1e-15)
        mean = float(sum(numbers, Fraction(0)) / len(chains))
        assert tokens[method]["expected"] == pytest.approx(mean, rel=1e-14)
    assert tokens["block"]["expected"] > tokens["standard"]["expected"] + 0.1


def test_every_token_shown_has_a_text(document: Any, text: str) -> None:
    texts = json.loads((DATA / "smollm2_chains.json").read_text(encoding="utf-8"))["token_texts"]
    for chain in document["chains"]:
        assert chain["draft_texts"] == [texts[str(token)] for token in chain["draft_token_ids"]]
        for outcome in (chain, chain["block"]):
            emitted = [texts[str(token)] for token in outcome["emitted_token_ids"]]
            assert outcome["emitted_text"] == "".join(emitted)
        for step in chain["steps"]:
            for entry in [step, *step["residual_largest"]]:
                assert entry["text"] == texts[str(entry["token_id"])]
    assert "<id " not in text


def test_the_document_has_stable_keys_and_names_the_machine(document: Any) -> None:
    parts = ["versions", "machine", "uniforms", "chains", "acceptance", "tokens_per_step", "timing"]
    assert list(document) == parts
    outcome = ["num_accepted", "replacement", "emitted_token_ids", "emitted_text"]
    of_chain = ["context", "draft_token_ids", "draft_texts", "steps", *outcome, "block"]
    for chain in document["chains"]:
        assert (list(chain), list(chain["block"])) == (of_chain, outcome)
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
                "kept" if step["kept"] else "replaced" if step["visited"] else "not read",
                f"mass {step['mass']:.4f}",
            )
            assert follows("residual", *(repr(entry["text"]) for entry in step["residual_largest"]))
            assert follows(*(f"{entry['prob']:.4f}" for entry in step["residual_largest"]))
        for method, outcome in (("standard", chain), ("block", chain["block"])):
            kept = outcome["num_accepted"]
            keeps = f"keeps {kept} of {len(chain['steps'])}, emits"
            assert follows(method, keeps, repr(outcome["emitted_text"]))
            replacement = outcome["replacement"]
            if replacement is None:
                assert follows("all kept; the bonus row is not in the recording")
            else:
                drawn, rejected = replacement["text"], chain["draft_texts"][kept]
                uniform = f"uniform {replacement['uniform']:.4f}"
                assert follows(f"{drawn!r} replaces {rejected!r}", uniform)
        assert follows("target / draft", *(f"{step['ratio']:.4f}" for step in chain["steps"]))
        assert follows("joint ratio", *(f"{step['joint_ratio']:.4f}" for step in chain["steps"]))
    acceptance = document["acceptance"]
    assert follows("expected", f"{acceptance['expected']:.4f}")
    kept = f"{acceptance['kept']} kept of {acceptance['visited']}"
    assert follows("observed", f"{acceptance['observed']:.4f}", kept)
    assert follows("Tokens per step", f"{len(document['chains'])} chains")
    for method, tokens in document["tokens_per_step"].items():
        assert follows(method, f"{tokens['expected']:.4f}  {tokens['observed']:8.4f}")
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
    env: dict[str, str], document: Any, tmp_path: Path
) -> None:
    done = run("demo", folder=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode("ascii")
    assert r"doesn\u2019t" in shown
    assert shown.split(TIMED)[0] == _demo_text.render(document, "ascii").split(TIMED)[0]


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


def synthetic() -> _demo_text.Report:
    """Make a report out of what is awkward to print."""
    report = copy.deepcopy(_demo.report(_demo_data.load()))
    report["machine"]["cpu"] = "a \u00b5-processor with quite some name " * 4
    chain = report["chains"][-1]
    chain["context"] = "\n\t\u00e9" * 300
    chain["emitted_text"] = chain["block"]["emitted_text"] = "emitted " * 40
    chain["draft_texts"] = [" internationalisation\n" * 3] * len(chain["draft_texts"])
    for step in chain["steps"]:
        step["text"] = " internationalisation\n" * 3
        for entry in step["residual_largest"]:
            entry["text"] = " caf\u00e9" if entry["prob"] > 0.5 else "internationalisation\u00e9"
    assert chain["replacement"] is not None
    chain["replacement"]["text"] = "\n\n"
    return report


def test_a_rejection_ends_a_chain_before_its_later_tokens() -> None:
    extract = _demo_data.load()
    report = _demo.report(extract)
    report["chains"] = _demo.walk(extract, [0.99] * 9)[1:2]
    steps = report["chains"][0]["steps"]
    assert [step["visited"] for step in steps] == [True, False, False]
    assert not any(step["kept"] for step in steps)
    assert _demo_text.render(report, "utf-8").count("not read ") == 2


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
