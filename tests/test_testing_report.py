"""`draftverify.testing.check`: right code passes, wrong code is caught and the report says how."""

from __future__ import annotations

import doctest
import importlib
import inspect
import operator
import re
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import plain_chain
from draftverify import testing
from draftverify.testing import WRONG_RULES, Feed

METHODS = ["standard", "block", "greedy"]
FUNCTIONS = [each for name in testing.__all__ if inspect.isfunction(each := vars(testing)[name])]
RULES = {"standard", "block", "greedy"}


def plain(method: str) -> Any:
    return partial(plain_chain.verify_chain, method=method)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_right_code_passes(method: str, one_hot: bool) -> None:
    feed = Feed(one_hot=one_hot, padding=1, dtype=np.float32)
    report = testing.check(plain(method), method=method, feed=feed)
    assert report.ok, str(report)
    assert report.lossless
    assert len(report.findings) == 3 * len(testing.ready_instances())
    assert not any(finding.left_out for finding in report.findings)
    assert all(finding.total_variation == 0 for finding in report.findings)
    assert str(report).startswith("lossless\n  T2 with 3 drafted: exact, keeps ")


@pytest.mark.parametrize("name", WRONG_RULES)
def test_wrong_code_is_caught_and_named(name: str) -> None:
    method = "block" if name.startswith("block") else "standard"
    instances = testing.ready_instances()[-1:]
    verify = testing.as_chain(WRONG_RULES[name])
    report = testing.check(verify, method=method, instances=instances)
    assert not report.ok
    assert not report.lossless
    assert report.same_as == (name,)
    assert str(report).startswith("not lossless\n")
    assert str(report).endswith(f"\nThe same comes of: {name}.")


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"accepts": operator.le}, "low"),
        ({"exceeds": operator.ge}, "low"),
    ],
)
def test_wrong_comparisons_are_caught(wrong: dict[str, Any], place: str) -> None:
    instances = [testing.t2(2), testing.dyadic(2)]
    report = testing.check(testing.as_chain(testing.standard, **wrong), instances=instances)
    assert {finding.place for finding in report.findings if not finding.ok} == {place}
    (key,) = wrong
    (compare,) = (each.__name__ for each in wrong.values())
    assert report.same_as == (f"as_chain(standard, {key}=operator.{compare})",)
    assert "Where the middle of the cells is right and low or high is not" in str(report)


def test_a_uniform_of_one_is_caught() -> None:
    feed = Feed(interval="(0,1]")
    instances = [testing.t2(1), testing.dyadic(2)]
    report = testing.check(testing.as_chain(testing.standard), feed=feed, instances=instances)
    assert {finding.place for finding in report.findings if not finding.ok} == {"high"}
    right = testing.as_chain(testing.standard, accepts=operator.le, exceeds=operator.ge)
    testing.assert_lossless(right, feed=feed)


def test_assert_lossless_raises_the_report() -> None:
    verify, instances = testing.as_chain(WRONG_RULES["nothing_subtracted"]), [testing.t2(1)]
    with pytest.raises(AssertionError) as caught:
        testing.assert_lossless(verify, instances=instances)
    assert str(caught.value) == str(testing.check(verify, instances=instances))
    testing.assert_lossless(plain("block"), method="block", instances=instances)


def test_the_report_says_where() -> None:
    verify = testing.as_chain(WRONG_RULES["block_uncapped_last_ratio"])
    report = testing.check(verify, method="block", instances=[testing.t2(2), testing.t2(1)])
    assert (
        str(report)
        == """\
not lossless
  T2 with 2 drafted: WRONG, total variation 1/9 (0.1111), keeps 4/3 where 11/9 was expected
    the law differs after (1,)
      token 0: 1/2 (0.5) instead of 1/3 (0.3333)
      token 1: 1/2 (0.5) instead of 2/3 (0.6667)
    most too often: (1, 0, 1), 2/9 (0.2222) instead of 4/27 (0.1481)
    most too seldom: (1, 1, 1), 2/9 (0.2222) instead of 8/27 (0.2963)
  T2 with 1 drafted: exact, keeps 2/3
The same comes of: block_uncapped_last_ratio."""
    )


def test_the_shortest_context_that_differs_is_named() -> None:
    verify = testing.as_chain(WRONG_RULES["names_swapped"])
    report = testing.check(verify, instances=[testing.random_models(4, 4)])
    assert "\n    the law differs in the first token\n" in str(report)


def test_another_rule_is_lossless_but_not_the_one_asked_for() -> None:
    report = testing.check(plain("standard"), method="block", instances=[testing.t2(1)])
    assert report.ok
    report = testing.check(plain("block"), instances=[testing.t2(2)])
    assert not report.ok


def reject_all(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
    """Emit a token of the target, whatever was drafted: right, and of no use."""
    nothing = np.empty((len(ids), 0), np.int64)
    _, final = plain("standard")(draft[:, :0], target[:, :1], nothing, uniforms[:, -1:])
    token_ids = np.full((len(ids), ids.shape[1] + 1), -1)
    token_ids[:, :1] = final
    return np.zeros(len(ids), np.int64), token_ids


def test_who_keeps_nothing_is_lossless_and_not_ok() -> None:
    grid = testing.law_of(reject_all, testing.t3(1), grid=10)
    law = testing.target_law(testing.t3().target, 2)
    assert testing.total_variation(grid.law, law) == 0
    models = testing.Instance("equal", testing.context_free(1, 1), testing.context_free(1, 1), 1)
    report = testing.check(reject_all, instances=[models])
    assert report.lossless
    assert not report.ok
    assert str(report).splitlines()[:2] == [
        "lossless, but not as many tokens are kept as standard keeps",
        "  equal with 1 drafted: WRONG, the law is exact, keeps 0 where 1 was expected",
    ]


def test_what_the_code_raises_is_a_finding() -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    report = testing.check(broken, instances=[testing.t2(1)])
    assert not report.ok
    assert not report.lossless
    text = "  T2 with 1 drafted: FAILED, ZeroDivisionError"
    assert str(report).splitlines() == ["not lossless", text]
    report = testing.check(lambda *_: (np.zeros(1, int), np.zeros((1, 1), int)))
    assert "FAILED, ValueError: verify: expected num_accepted of shape " in str(report)


def test_what_is_too_fine_is_left_out_and_said() -> None:
    feed = Feed(dtype=ml_dtypes.bfloat16)
    report = testing.check(plain("standard"), feed=feed)
    assert report.ok
    assert any(finding.left_out for finding in report.findings)
    assert "left out, thresholds" in str(report)
    report = testing.check(plain("standard"), feed=feed, instances=[testing.t4(2)])
    assert not report.ok
    assert not report.lossless
    assert str(report).startswith("nothing was measured\n  T4 with 2 drafted: left out, ")


def test_methods_are_named() -> None:
    with pytest.raises(ValueError, match="method: expected one of standard, block, greedy, got"):
        testing.check(plain("standard"), method="typical")


def test_all_is_what_is_there() -> None:
    assert sorted(testing.__all__) == sorted(
        name
        for name, value in vars(testing).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    )
    for name in testing.__all__:
        assert inspect.getdoc(vars(testing)[name]), name


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_docstrings_name_the_parameters(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    order = ["Parameters", "Returns", "Raises", "Notes", "Examples"]
    assert list(sections) == [heading for heading in order if heading in sections]
    if "Parameters" in sections:
        named = re.findall(r"^(\w.*?)(?: : \S.*)?$", sections["Parameters"], re.MULTILINE)
        parameters = [name for names in named for name in names.split(", ")]
        assert parameters == list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    "module", ["", "._check", "._grid", "._instances", "._laws", "._noise", "._rules", "._wrong"]
)
def test_docstring_examples_give_what_they_show(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"draftverify.testing{module}"))
    assert found.failed == 0
    assert found.attempted > 0
