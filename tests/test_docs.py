"""What the documents say is true: README, site, docstrings, and what continuous integration runs.

The Python blocks of the README, and those of each page of the site, run from top to bottom in one
namespace, as a reader would paste them; a `text` block is what the block before it prints.
Docstring examples are compared to the letter.
"""

from __future__ import annotations

import doctest
import inspect
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import draftverify
from kinds import need

ROOT = Path(__file__).parents[1]
# None where the tests stand alone; then `document` says so for the README.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").glob("**/*.md")
    if "_build" not in path.parts
)
FUNCTIONS = [
    value for name in draftverify.__all__ if inspect.isroutine(value := vars(draftverify)[name])
]
# What documents may import and the tests can do without.
OPTIONAL = {"jax", "torch", "transformers"}
# Headings of numpydoc, in its order.
HEADINGS = ["Parameters", "Returns", "Raises", "Notes", "Examples"]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)


def document(name: str) -> str:
    """Read a document of the repository; tests of an installed package may lack it."""
    path = ROOT / name
    if not path.exists():
        reason = f"{name} is not beside the tests"
        if os.environ.get("DRAFTVERIFY_REQUIRE_ALL") == "1":
            pytest.fail(f"{reason}, and DRAFTVERIFY_REQUIRE_ALL=1 lets no test be skipped")
        pytest.skip(reason)
    return path.read_text(encoding="utf-8")


class Block(NamedTuple):
    """A code block of a Markdown text."""

    language: str
    line: int
    code: str


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(each[1], text.count("\n", 0, each.start(2)) + 1, each[2]) for each in found]


@pytest.mark.parametrize("name", ["README.md", *PAGES])
def test_python_blocks_run_in_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = document(name)
    monkeypatch.chdir(tmp_path)
    threads = draftverify.get_num_threads()
    namespace: dict[str, Any] = {"__name__": "document"}
    languages = set()
    for block in blocks(text):
        languages.add(block.language)
        if block.language == "python":
            for module in OPTIONAL & set(re.findall(r"^(?:import|from) (\w+)", block.code, re.M)):
                need(module)
            # Blank lines before it make a traceback name the line of the document.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(ROOT / name), "exec"), namespace)  # noqa: S102 - our own
        elif block.language == "text":
            assert capsys.readouterr().out == block.code
    assert capsys.readouterr().out == "", "something is printed and not shown"
    assert languages <= {"python", "text", "sh"}, "a block of another kind would not be tested"
    assert "python" in languages or name != "README.md"
    draftverify.set_num_threads(threads)


def test_the_readme_begins_with_the_two_commands_that_are_run_in_ci() -> None:
    readme, script = document("README.md"), document(".ci/run")
    commands = dict(re.findall(r'^(readme_\w+)="(.*)"$', script, re.MULTILINE))
    assert set(commands) == {"readme_demo", "readme_test"}
    for name in commands:
        assert re.search(rf'^.*bash -c "\${name}"$', script, re.MULTILINE), f"${name} is not run"
    shell = [block.code.strip() for block in blocks(readme) if block.language == "sh"]
    assert shell[:2] == [commands["readme_demo"], commands["readme_test"]]


@pytest.mark.parametrize("name", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_that_documents_link_to_exist(name: str) -> None:
    for target in re.findall(r"\]\((?!\w+://|#)([^)#\s]+)", document(name)):
        assert (ROOT / target).exists(), target


def docstring(function: object) -> str:
    return inspect.getdoc(function) or ""


def sections(text: str) -> dict[str, str]:
    """Split a numpydoc text at its headings."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_public_functions_are_documented_here() -> None:
    names = {function.__name__ for function in FUNCTIONS}
    assert names == set(draftverify.__all__) - {"__version__", "AcceptResidual", "ChainVerdict"}


@every_function
def test_docstrings_have_the_sections_of_numpydoc(function: Any) -> None:
    text = docstring(function)
    summary, blank, *_ = text.split("\n")
    assert re.fullmatch(r"[A-Z].*\.", summary), summary
    assert blank == ""
    found = sections(text)
    assert list(found) == [heading for heading in HEADINGS if heading in found]
    assert "Examples" in found
    assert ("Returns" in found) is (function is not draftverify.set_num_threads)

    named = re.findall(r"^(\w.*?) : \S", found.get("Parameters", ""), re.MULTILINE)
    parameters = [name for names in named for name in names.split(", ")]
    assert parameters == list(inspect.signature(function).parameters)
    if parameters:  # then some can be wrong
        for error in ("TypeError", "ValueError"):
            assert re.search(rf"\b{error}\b", found["Raises"]), error


def assert_examples_hold(documented: Any, names: dict[str, Any]) -> int:
    """Run the examples of a docstring with these names, and count them."""
    text = docstring(documented)
    assert "doctest:" not in text, "no directive may make the comparison lenient"
    example = doctest.DocTestParser().get_doctest(text, names, documented.__name__, None, 0)
    count = len(example.examples)
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=0)
    runner.run(example, out=printed.append)
    assert runner.failures == 0, "".join(printed)
    return count


@every_function
def test_docstring_examples_give_what_they_show(function: Any) -> None:
    assert assert_examples_hold(function, dict(vars(draftverify)))


def test_the_answer_of_accept_residual_documents_its_fields() -> None:
    attributes = sections(docstring(draftverify.AcceptResidual))["Attributes"]
    named = re.findall(r"^(\w+) : \S", attributes, re.MULTILINE)
    assert tuple(named) == draftverify.AcceptResidual._fields
