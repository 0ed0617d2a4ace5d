"""What NVIDIA's compiler makes of the kernels: the arithmetic that it must not change."""

from __future__ import annotations

import re

import pytest

from draftverify import _cuda
from nvrtc import CUPYS, architectures, cubin, ptx

# Every float operation that the kernels have. A product is in none of them, so that there is
# nothing to contract; a quotient is rounded as IEEE asks.
EXACT = {
    "add.f64",
    "sub.f64",
    "sub.rn.f32",
    "div.rn.f32",
    "div.rn.f64",
    "cvt.f64.f32",
    "cvt.f32.f16",
    "cvt.rn.f32.f64",
    "cvt.rn.f16.f32",
}
_OPERATION = re.compile(
    r"\b((?:add|sub|mul|mad|fma|div|rcp|sqrt|rsqrt|ex2|lg2|cvt|min|max|abs|neg|testp)\.[\w.]*"
    r"\b(?:b?f16|f16x2|bf16|f32|f64|tf32)[\w.]*)"
)


def float_operations(text: str) -> set[str]:
    return set(_OPERATION.findall(text))


@pytest.mark.parametrize("options", [CUPYS, CUPYS[:1]], ids=["as CuPy", "bare"])
def test_every_float_operation_is_exact(dtype: str, options: tuple[str, ...]) -> None:
    text = ptx(_cuda.source(dtype), "-arch=compute_80", *options)
    assert {"add.f64", "div.rn.f64"} < float_operations(text) <= EXACT
    if dtype != "float64":
        assert {"sub.rn.f32", "div.rn.f32", "cvt.f64.f32"} < float_operations(text)
    # Comparisons that flush would take a subnormal number for 0.
    assert ".ftz" not in text
    assert not re.findall(r"\bsetp\.\w+\.f32", text)
    assert "bar.sync" in text


@pytest.mark.parametrize(
    ("right", "wrong", "shows"),
    [
        (
            'asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));',
            "quotient = a / b;",
            1,
        ),
        (
            'asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));',
            "difference = a - b;",
            1,
        ),
        ("(int)__float_as_uint(a) > 0;", "a > 0.0f;", 1),
        ("return kept < of ? kept / of : 1.0;", "return kept * of + kept;", 0),
    ],
    ids=["quotient", "difference", "comparison", "product"],
)
def test_what_must_not_be_would_show(right: str, wrong: str, shows: int) -> None:
    text = _cuda.source("float32")
    assert text.count(right) == 1
    made = ptx(text.replace(right, wrong), "-arch=compute_80", *CUPYS)
    assert (".ftz" in made) == bool(shows)
    assert shows or not float_operations(made) <= EXACT


def test_every_architecture_gets_its_machine_code(dtype: str) -> None:
    known = architectures()
    assert {80, 90} < set(known)
    for architecture in (known[0], 80, 90, known[-1]):
        assert cubin(_cuda.source(dtype), f"-arch=sm_{architecture}", *CUPYS)[:4] == b"\x7fELF"


def test_reads_are_not_held_up_by_one_another(dtype: str) -> None:
    """All reads of a whole chunk come before the first of the additions."""
    text = ptx(_cuda.source(dtype), "-arch=compute_80", *CUPYS)
    body = text[text.index(".entry excess_sums") :].partition(".entry")[2].partition(".entry")[0]
    before = body.partition("add.f64")[0]
    assert len(re.findall(r"ld\.global", before)) >= 32
