"""What a report of `draftverify.testing.check` says beside the figures: hints, and broken code."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from draftverify import testing
from draftverify.testing import Feed, _draws

NEXT = """\
The final token is drawn with another uniform than is measured. With the cells of all thresholds on
every uniform the law is the target's, of T4 with 2 drafted. In T4 with 2 drafted the final token
changes with uniform 1 after 0 kept, 2 after 1 kept, 2 after 2 kept, counted from 0; measured is
number 2, the one behind those of the drafted tokens. Draw with that one whatever was rejected, or
measure the code as it is: law_of with a grid."""
EDGES = "Where the middle of the cells is right and low or high is not"


def sampler(final: Any, *, first: int = 0, subtract: float = 1.0) -> Any:
    """Code that draws the final token with the uniform at `final(kept, drafted)`."""

    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        kept, token_ids = np.zeros(len(ids), int), np.full((len(ids), ids.shape[1] + 1), -1)
        for b, chain in enumerate(ids):
            n, length = 0, int((chain >= 0).sum())
            deciding = uniforms[b, first:]
            while n < length and deciding[n] * draft[b, n, chain[n]] < target[b, n, chain[n]]:
                n += 1
            row = target[b, n]
            if n < length:
                row = np.maximum(row - subtract * draft[b, n], 0)
            running = np.cumsum(row)
            u = uniforms[b, final(n, length)]
            kept[b], token_ids[b, :n] = n, chain[:n]
            drawn = np.searchsorted(running, u * running[-1], "right")
            token_ids[b, n] = min(int(drawn), len(row) - 1)
        return kept, token_ids

    return verify


def next_one(kept: int, length: int) -> int:
    return min(kept + 1, length)


def test_the_uniform_behind_the_last_compared_is_sound_and_named() -> None:
    report = testing.check(sampler(next_one), instances=[testing.t4(2), testing.t2(2)])
    assert not report.ok
    assert not report.lossless
    assert report.hint == NEXT
    assert str(report).endswith(f"\n{NEXT}")


def test_the_first_uniform_for_the_final_token_is_named() -> None:
    verify = sampler(lambda _kept, _length: 0, first=1)
    report = testing.check(verify, instances=[testing.t3(1), testing.dyadic(2)])
    assert not report.ok
    text = report.hint.replace("\n", " ")
    assert "of T3 with 1 drafted, dyadic with 2 drafted." in text
    assert "changes with uniform 0 after 1 kept, 0 after 2 kept, counted from 0;" in text


def test_a_uniform_that_is_used_twice_gets_no_excuse() -> None:
    """The middle of the cells of T4 is right by chance."""
    verify = sampler(lambda kept, _length: kept)
    report = testing.check(verify, instances=[testing.t4(2)])
    right = {finding.place: finding.ok for finding in report.findings}
    assert right == {"low": False, "middle": True, "high": False}
    assert report.hint == ""
    assert EDGES not in str(report)
    assert testing.check(verify).hint == ""


def test_where_nothing_is_small_enough_all_middles_have_to_be_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_draws, "_MOST_ROWS", 0)
    instances = [testing.t4(2), testing.dyadic(2)]
    assert testing.check(sampler(lambda kept, _length: kept), instances=instances).hint == ""
    verify = testing.as_chain(testing.standard, accepts=operator.le)
    assert testing.check(verify, instances=instances).hint.startswith(EDGES)


def test_another_uniform_excuses_no_other_fault() -> None:
    report = testing.check(sampler(next_one, subtract=0.5), instances=[testing.t4(2)])
    assert not report.ok
    assert report.hint == ""
    # T2 alone would be right: one token is left there, whatever is subtracted.
    both = testing.check(
        sampler(next_one, subtract=0.5), instances=[testing.t4(2), testing.dyadic(2)]
    )
    assert both.hint == ""


def test_edges_are_named_where_they_alone_are_wrong() -> None:
    verify = testing.as_chain(testing.standard, accepts=operator.le)
    report = testing.check(verify, instances=[testing.dyadic(2)])
    assert report.hint.startswith(EDGES)
    right = testing.check(testing.as_chain(testing.standard), instances=[testing.dyadic(2)])
    assert right.ok
    assert right.hint == ""


def test_the_end_of_a_padded_row_is_named() -> None:
    verify = sampler(lambda _kept, _length: -1)
    assert testing.check(verify).ok
    report = testing.check(verify, feed=Feed(padding=1), instances=[testing.t3(1), testing.t4(2)])
    assert not report.ok
    assert report.hint.startswith("Without padding the law is the target's, of T3 with 1 drafted,")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "TypeError: verify: expected (num_accepted, token_ids), got NoneType; "),
        ({"num_accepted": 1}, "TypeError: verify: expected (num_accepted, token_ids), got dict; "),
        ((1, 2, 3), "ValueError: verify: expected (num_accepted, token_ids), got 3 of them; "),
        ((None, None), "TypeError: num_accepted of verify: expected integers, got "),
        (([0, 0], "ab"), "TypeError: token_ids of verify: expected integers, got "),
        ((np.zeros(2), np.zeros(2)), "TypeError: num_accepted of verify: expected integers, got "),
        (([True, False], [1, 2]), "TypeError: num_accepted of verify: expected an integer, got "),
        (([0, 0], [[1], [1, 2]]), "ValueError: token_ids of verify: expected lists of one length"),
    ],
    ids=str,
)
def test_other_answers_are_named_once(answer: object, says: str) -> None:
    report = testing.check(lambda *_: answer)
    assert not report.ok
    lines = str(report).splitlines()
    assert lines[0] == "not lossless"
    assert lines[1].startswith(f"  T2 with 3 drafted: FAILED, {says}")
    assert lines[2:] == ["  the 5 other instances: FAILED too"]
    error = {"TypeError": TypeError, "ValueError": ValueError}[says.partition(":")[0]]
    with pytest.raises(error, match="verify"):
        testing.law_of(lambda *_: answer, testing.t2(1))


def test_ids_out_of_range_are_named_with_a_cure() -> None:
    def verify(*arguments: Any) -> Any:
        ids = arguments[2]
        return np.zeros(len(ids), int), np.full((len(ids), ids.shape[1] + 1), 9)

    with pytest.raises(ValueError, match=r"^verify: expected a final id from 0 to 1 .*; answer "):
        testing.law_of(verify, testing.t2(1))


def test_what_cannot_be_called_is_refused() -> None:
    for function in (testing.check, testing.assert_lossless):
        with pytest.raises(TypeError, match=r"^verify: expected a function .* got NoneType; "):
            function(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^verify: expected a function .* got int; "):
        testing.law_of(3, testing.t2(1))  # type: ignore[arg-type]
