"""The adapters' documentation is true, and importing them imports no engine."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from types import ModuleType
from typing import Any

import pytest

from draftverify import adapters
from kinds import need
from processes import run_python
from test_docs import assert_examples_hold, docstring, sections

MODULES = [
    importlib.import_module(f"draftverify.adapters.{each.name}")
    for each in pkgutil.iter_modules(adapters.__path__)
    if not each.name.startswith("_")
]
FUNCTIONS = [
    value
    for module in MODULES
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
]
HEADINGS = ["Parameters", "Returns", "Yields", "Raises", "Notes", "Examples"]
# The README of an engine names it, and so does each module: where it was written from.
SOURCES = {
    "transformers": ("transformers/generation/utils.py", "5.24.0"),
    "vllm": ("vllm/v1/sample/rejection_sampler.py", "0.33.0"),
    "sglang": ("sglang/kernels/ops/speculative/reject_sampling.py", "0.5.23"),
    "flashinfer": ("include/flashinfer/sampling.cuh", "0.7.4"),
    "tensorrt_llm": ("speculative/interface.py", "00b6d5a"),
    "vocabulary": ("vllm/model_executor/models/llama_eagle3.py", "0.33.0"),
}


def name_of(value: Any) -> str:
    return f"{value.__name__.removeprefix('draftverify.adapters.')}"


def test_the_package_names_its_modules() -> None:
    assert adapters.__doc__ is not None
    found = set(re.findall(r"^`adapters\.(\w+)`", adapters.__doc__, re.MULTILINE))
    assert found == {name_of(module) for module in MODULES} == set(SOURCES)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_each_module_names_the_file_and_the_version_it_was_written_from(module: ModuleType) -> None:
    for part in SOURCES[name_of(module)]:
        assert part in docstring(module)


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_docstrings_have_the_sections_of_numpydoc(function: Any) -> None:
    text = docstring(function)
    summary, blank, *_ = text.split("\n")
    assert re.fullmatch(r"[A-Z].*\.", summary), summary
    assert blank == ""
    found = sections(text)
    assert list(found) == [heading for heading in HEADINGS if heading in found]
    named = re.findall(r"^(\w.*?)(?: : \S.*)?$", found["Parameters"], re.MULTILINE)
    parameters = [name for names in named for name in names.split(", ")]
    assert sorted(parameters) == sorted(inspect.signature(function).parameters)
    assert "Raises" in found


@pytest.mark.parametrize("documented", [*MODULES, *FUNCTIONS], ids=name_of)
def test_docstring_examples_give_what_they_show(documented: Any) -> None:
    need("torch")
    module = inspect.getmodule(documented)
    examples = assert_examples_hold(documented, dict(vars(module)))
    if documented in FUNCTIONS and documented.__name__ != "use_draftverify":
        assert examples


def test_importing_them_imports_no_engine_and_no_torch() -> None:
    names = [module.__name__ for module in MODULES]
    engines = ["torch", "transformers", "vllm", "sglang", "flashinfer", "tensorrt_llm", "jax"]
    code = (
        f"import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        f"print([name for name in {engines} if name in sys.modules])"
    )
    assert run_python("-c", code).strip() == "[]"


def test_values_that_are_no_tensors_are_refused_without_torch() -> None:
    code = (
        "import sys\n"
        "from draftverify.adapters.flashinfer import chain_speculative_sampling\n"
        "try:\n"
        "    chain_speculative_sampling([[[1.0]]], [[0]], [[[1.0]] * 2], uniforms=[[0.5, 0.5]])\n"
        "except TypeError as error:\n"
        "    print(error, 'torch' in sys.modules)"
    )
    said = run_python("-c", code).strip()
    assert said.startswith("draft_probs: expected a Torch tensor")
    assert said.endswith("False")
