"""The short way of chains: what is usual is verified before Python looks at it, nothing else."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftverify import _chains, _core, _logits, verify_chain, verify_chain_logits
from kinds import KINDS, Kind, need

REQUESTS, WIDTH, VOCABULARY = 6, 3, 300
USUAL = [kind for kind in KINDS if kind.library.name in {"numpy", "torch"}]
SETTINGS = (1.0, None, None, None, None, True)
SHORT: Any = _core.verify_plain_chains
SHORT_FOR_LOGITS: Any = _core.verify_plain_logits_chains


def numbers(logits: bool, seed: int = 3) -> tuple[Any, Any, Any, Any]:
    """Make draft, target, ids and uniforms; the last request has one token and padding."""
    rng = np.random.default_rng(seed)
    target = rng.normal(0, 2, (REQUESTS, WIDTH + 1, VOCABULARY))
    draft = (target + rng.normal(0, 0.7, target.shape))[:, :-1]
    ids = np.argmax(draft + rng.gumbel(size=draft.shape), -1)
    ids[-1, 1:] = -1
    if not logits:
        draft, target = (np.exp(each) for each in (draft, target))
        draft, target = (each / each.sum(-1, keepdims=True) for each in (draft, target))
    return draft, target, ids, rng.random((REQUESTS, WIDTH + 1))


def made(kind: Kind, logits: bool, uniforms: str = "float64") -> tuple[Any, Any, Any, Any]:
    """Make them in a library; ids and uniforms are its arrays too."""
    *rows, ids, drawn = numbers(logits)
    others: list[Any] = [ids, drawn.astype(uniforms)]
    if kind.library.name == "torch":
        others = [need("torch").from_numpy(other) for other in others]
    return (*(kind.make(each) for each in rows), *others)


@pytest.fixture
def no_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        pytest.fail("the long way was taken")

    for module in (_chains, _logits):
        monkeypatch.setattr(module, "rows_of", taken)


@pytest.mark.usefixtures("no_long_way")
@pytest.mark.parametrize("uniforms", ["float32", "float64"])
@pytest.mark.parametrize("kind", USUAL, ids=str)
def test_the_usual_takes_the_short_way(kind: Kind, uniforms: str) -> None:
    arguments = made(kind, True, uniforms)
    verify_chain_logits(*arguments)
    verify_chain_logits(*arguments, method="block", temperature=0.7, filter_draft=False)
    verify_chain_logits(*arguments, temperature=0.0, draft_temperature=1.5)
    arguments = made(kind, False, uniforms)
    verify_chain(*arguments)
    verify_chain(*arguments, method="block")


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("kind", USUAL, ids=str)
def test_both_ways_give_the_same(kind: Kind, method: Any) -> None:
    for logits in (True, False):
        draft, target, ids, uniforms = made(kind, logits)
        calls: list[Callable[..., Any]] = [verify_chain]
        if logits:
            options = [
                {"temperature": 0.5},
                {"temperature": 2.0},
                {"top_k": 3},
                {"top_p": 0.5},
                {"min_p": 0.2},
            ]
            calls = [
                lambda *each, more=more: verify_chain_logits(
                    *each, method=method, draft_temperature=1.25, filter_draft=False, **more
                )
                for more in options
            ]
        for call in calls:
            short = call(draft, target, ids, uniforms)
            long = call(draft, target, ids.tolist(), uniforms.tolist())
            for one, other in zip(short, long, strict=True):
                assert type(one) is type(other)
                assert one.dtype == other.dtype
                assert one.tolist() == other.tolist()
            # All that comes of it is the caller's own.
            short.token_ids[:] = 0
            assert call(draft, target, ids, uniforms).token_ids.tolist() == long.token_ids.tolist()


def test_what_else_is_given_is_not_overlooked() -> None:
    draft, target, ids, uniforms = numbers(False)
    for arrays in ((ids, uniforms), (ids.tolist(), uniforms.tolist())):
        verdict = verify_chain(draft, target, *arrays, lengths=[0] * REQUESTS)
        assert verdict.num_accepted.tolist() == [0] * REQUESTS
        with pytest.raises(ValueError, match="target_probs: expected shape"):
            verify_chain(draft, target, *arrays, bonus_token_ids=[0] * REQUESTS)


def test_rows_may_be_strided() -> None:
    calls: tuple[Callable[..., Any], ...] = (verify_chain, verify_chain_logits)
    for logits, call in enumerate(calls):
        draft, target, ids, uniforms = numbers(bool(logits))
        expected = call(draft, target, ids, uniforms)
        spread = [np.repeat(np.repeat(each, 2, 0), 3, 2)[::2, :, ::3] for each in (draft, target)]
        turned = [each[::-1, :, ::-1].copy()[::-1, :, ::-1] for each in (draft, target)]
        for rows in (spread, turned, [each.astype(">f8") for each in (draft, target)]):
            found = call(*rows, ids, uniforms)
            assert found.token_ids.tolist() == expected.token_ids.tolist()


class Text(str):
    __slots__ = ()


Spoil = Callable[[Any, Any, Any, Any], tuple[Any, ...]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _draft, target, ids, uniforms: (None, target, ids, uniforms),
        lambda draft, target, ids, uniforms: (draft[0], target[0], ids, uniforms),
        lambda draft, target, ids, uniforms: (draft[0], target[0], ids[0], uniforms[0]),
        lambda draft, target, ids, uniforms: (draft[..., :0], target[..., :0], ids, uniforms),
        lambda draft, target, ids, uniforms: (draft[..., 1:], target, ids, uniforms),
        lambda draft, target, ids, uniforms: (draft, target[:, 1:], ids, uniforms),
        lambda draft, target, ids, uniforms: (draft[1:], target, ids, uniforms),
        lambda draft, target, ids, uniforms: (draft[:0], target[:0], ids[:0], uniforms[:0]),
        lambda draft, target, ids, uniforms: (draft, target.astype(np.float32), ids, uniforms),
        lambda draft, target, ids, uniforms: (
            draft.astype(np.int16),
            target.astype(np.int16),
            ids,
            uniforms,
        ),
        lambda draft, target, ids, uniforms: (draft.tolist(), target.tolist(), ids, uniforms),
        lambda draft, target, ids, uniforms: (draft.view(np.ma.MaskedArray), target, ids, uniforms),
        lambda draft, target, ids, uniforms: (draft, target.view(np.ma.MaskedArray), ids, uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids[1:], uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids[:, 1:], uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids[0], uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids.astype(np.int32), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids.astype(np.uint64), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids.astype(">i8"), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, np.asfortranarray(ids), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids.view(np.ma.MaskedArray), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids.tolist(), uniforms),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms[:, 1:]),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms[1:]),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms[0]),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms.astype(np.float16)),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms.astype(">f8")),
        lambda draft, target, ids, uniforms: (draft, target, ids, np.asfortranarray(uniforms)),
        lambda draft, target, ids, uniforms: (
            draft,
            target,
            ids,
            uniforms.astype(np.float32)[:, 1:],
        ),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms.view(np.ma.MaskedArray)),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms.tolist()),
        lambda draft, target, ids, _uniforms: (draft, target, ids, None),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms, "greedy"),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms, "Block"),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms, Text("block")),
        lambda draft, target, ids, uniforms: (draft, target, ids, uniforms, None),
    ],
)
def test_the_unusual_is_left_to_the_long_way(spoil: Spoil) -> None:
    for logits in (True, False):
        spoilt = spoil(*numbers(logits))
        arguments: Any = spoilt if len(spoilt) == 5 else (*spoilt, "standard")
        if logits:
            assert SHORT_FOR_LOGITS(*arguments, SETTINGS) is None
        else:
            assert SHORT(*arguments) is None


@pytest.mark.parametrize(
    "settings",
    [
        (1, None, None, None, None, True),
        (np.float64(1), None, None, None, None, True),
        (np.ones(REQUESTS), None, None, None, None, True),
        (1.0, 1, None, None, None, True),
        (1.0, None, 0, None, None, True),
        (1.0, None, None, 1.0, None, True),
        (1.0, None, None, None, 0.0, True),
        (1.0, None, None, None, None, 1),
        (1.0, None, None, None, None, np.True_),
    ],
)
def test_unusual_settings_are_left_to_the_long_way(settings: Any) -> None:
    arguments: list[Any] = [*numbers(True), "standard"]
    assert SHORT_FOR_LOGITS(*arguments, SETTINGS) is not None
    assert SHORT_FOR_LOGITS(*arguments, settings) is None


@pytest.mark.parametrize("kind", [kind for kind in USUAL if kind.dtype == "float32"], ids=str)
@pytest.mark.parametrize("logits", [True, False])
def test_both_ways_raise_the_same(kind: Kind, logits: bool) -> None:
    call: Callable[..., Any] = verify_chain_logits if logits else verify_chain

    def refused(change: Callable[..., None], **options: Any) -> str:
        arrays = numbers(logits)
        change(*arrays)
        rows = [kind.make(each) for each in arrays[:2]]
        words = []
        for others in (arrays[2:], [each.tolist() for each in arrays[2:]]):
            made = others
            if kind.library.name == "torch" and isinstance(others[0], np.ndarray):
                made = [need("torch").from_numpy(other) for other in others]
            with pytest.raises(ValueError, match=r": expected .*; ") as caught:
                call(*rows, *made, **options)
            words.append(str(caught.value))
        assert words[0] == words[1]
        return words[0]

    def ids(place: tuple[int, int], value: int) -> Callable[..., None]:
        return lambda *arrays: arrays[2].__setitem__(place, value)

    assert "-1 at position 1 of request 2" in refused(ids((2, 1), -1))
    assert f"got {VOCABULARY}" in refused(ids((2, 1), VOCABULARY))
    assert "got 1.0" in refused(lambda *arrays: arrays[3].__setitem__((1, 0), 1.0))
    assert "nan" in refused(lambda *arrays: arrays[1].fill(np.nan))
    if logits:
        for option in ("temperature", "draft_temperature"):
            assert refused(ids((0, 0), 0), **{option: -1.0}).startswith(option)


@pytest.mark.parametrize("kind", [kind for kind in USUAL if kind.dtype == "float64"], ids=str)
def test_nothing_is_kept(kind: Kind) -> None:
    for logits, call in ((True, verify_chain_logits), (False, verify_chain)):
        arguments = made(kind, logits)
        answer: Any = call(*arguments)
        seen = [weakref.ref(each) for each in (*arguments, *answer)]
        del arguments, answer
        gc.collect()
        assert [each() for each in seen] == [None] * 6
