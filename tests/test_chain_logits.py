"""Chains of logits: a plain softmax and a full sort say the same, with all settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import plain_chain
from chains import Batch, batch
from draftverify import ChainVerdict, verify_chain_logits
from kinds import KINDS, Kind, need, refused

METHODS: tuple[Any, ...] = ("standard", "block", "greedy")
ARRAYS = tuple(kind for kind in KINDS if kind.library.name != "list")
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 7, "top_p": 0.9, "min_p": 0.05},
]


def logits_of(found: Batch) -> Batch:
    """Logarithms of the rows, rounded so that there are ties; garbage stays garbage."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(rows.astype(np.float64)) for rows in found[:2]]
    dtype = found.draft.dtype
    draft, target = ((np.round(4 * rows) / 4).astype(dtype) for rows in logs)
    return found._replace(draft=draft, target=target)


def law(
    logits: NDArray[Any],
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> NDArray[np.float64]:
    """Filter the law of one row in the plainest way."""
    if temperature == 0:
        return np.asarray(np.eye(len(logits))[int(np.argmax(logits))])
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if 0 < top_k < len(probs):
        probs[logits < np.sort(logits)[-top_k]] = 0.0
        probs /= probs.sum()
    if top_p < 1.0:
        order = np.lexsort((np.arange(len(probs)), -scaled))
        enough = int(np.argmax(np.cumsum(probs[order]) >= top_p - 1e-12))
        probs[order[enough + 1 :]] = 0.0
        probs /= probs.sum()
    probs[probs < min_p * probs.max() * (1 - 1e-12)] = 0.0
    return np.asarray(probs / probs.sum())


def laws(rows: NDArray[Any], lengths: Any, temperatures: Any, **filters: Any) -> NDArray[Any]:
    found = np.zeros(rows.shape)
    for request, (length, temperature) in enumerate(zip(lengths, temperatures, strict=True)):
        for position in range(length):
            found[request, position] = law(rows[request, position], temperature, **filters)
    return found


def expected(
    found: Batch, temperatures: Any, method: str, filters: dict[str, Any], *, with_draft: bool
) -> plain_chain.PlainVerdict:
    target = laws(found.target, found.lengths + 1, temperatures, **filters)
    draft = laws(found.draft, found.lengths, temperatures) if with_draft else None
    both = {
        name: plain_chain.verify_chain(
            draft, target, found.ids, found.uniforms, lengths=found.lengths.tolist(), method=name
        )
        for name in (method, "greedy")
    }
    greedy = np.asarray(temperatures) == 0
    accepted = np.where(greedy, both["greedy"].num_accepted, both[method].num_accepted)
    ids = np.where(greedy[:, None], both["greedy"].token_ids, both[method].token_ids)
    return plain_chain.PlainVerdict(accepted, ids)


def same(got: Any, wanted: Any) -> None:
    for part, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(part, other, strict=True)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ARRAYS, ids=str)
def test_every_kind_and_filter(kind: Kind, method: Any, filters: dict[str, Any]) -> None:
    need(kind.library.module)
    found = logits_of(batch(kind.dtype, 30, 3, 300, seed=len(filters)))
    temperatures = np.random.default_rng(1).choice([0.5, 1.0, 1.7], 30)
    for with_draft in (True, False):
        draft = kind.library.array(found.draft) if with_draft else None
        verdict = verify_chain_logits(
            draft,
            kind.library.array(found.target),
            found.ids,
            found.uniforms,
            lengths=found.lengths,
            temperature=temperatures,
            method=method,
            **filters,
        )
        assert type(verdict) is ChainVerdict
        wanted = expected(found, temperatures, method, filters, with_draft=with_draft)
        same(tuple(map(kind.library.plain, verdict)), wanted)


def call(found: Batch, **options: Any) -> ChainVerdict[Any]:
    return verify_chain_logits(
        found.draft, found.target, found.ids, found.uniforms, lengths=found.lengths, **options
    )


@pytest.mark.parametrize("method", METHODS)
def test_settings_of_each_request(method: Any) -> None:
    found = logits_of(batch("float32", 24, 3, 50, seed=2))
    settings = {
        "temperature": np.resize([0.7, 0.0, 1.3], 24),
        "top_k": np.resize([0, 3, 9, 1], 24),
        "top_p": np.resize([1.0, 0.8], 24),
        "min_p": np.resize([0.0, 0.2, 0.01, 0.0, 1.0], 24),
    }
    together = call(found, method=method, **settings)
    torch = need("torch")
    for one in (torch.tensor, lambda values: values.tolist(), lambda values: values.astype(">f8")):
        ids = settings["top_k"].tolist()
        others = {name: one(values) for name, values in settings.items()} | {"top_k": ids}
        same(call(found, method=method, **others), together)
    for request in range(24):
        alone = Batch(*(part[request : request + 1] for part in found))
        own = {name: values[request].item() for name, values in settings.items()}
        wanted = [part[request : request + 1] for part in together]
        same(call(alone, method=method, **own), wanted)
        same(call(alone, method=method, **own, draft_temperature=own["temperature"]), wanted)


def test_defaults_keep_all() -> None:
    found = logits_of(batch("float32", 24, 3, 50, seed=3))
    wanted = call(found)
    for name in ("top_k", "top_p", "min_p"):
        same(call(found, **{name: None}), wanted)
    same(call(found, top_k=0, top_p=1.0, min_p=0, temperature=1, draft_temperature=1.0), wanted)
    same(call(found, top_k=50, top_p=1, min_p=0.0, filter_draft=True), wanted)


@pytest.mark.parametrize("method", METHODS)
def test_draft_temperature_and_filtered_drafts(method: Any) -> None:
    found = logits_of(batch("float64", 60, 3, 12, seed=4))
    temperatures, filters = np.full(60, 0.8), {"top_k": 4}
    draft = laws(found.draft, found.lengths, np.full(60, 1.5), **filters)
    target = laws(found.target, found.lengths + 1, temperatures, **filters)
    possible = np.take_along_axis(draft, np.maximum(found.ids, 0)[..., None] % 12, -1)[..., 0] > 0
    lengths = np.where(possible, True, False).cumprod(axis=1).sum(axis=1).clip(max=found.lengths)
    assert 30 < lengths.sum() < found.lengths.sum()
    found = found._replace(lengths=lengths)
    verdict = call(
        found, method=method, temperature=0.8, draft_temperature=1.5, filter_draft=True, **filters
    )
    wanted = plain_chain.verify_chain(
        draft, target, found.ids, found.uniforms, lengths=lengths.tolist(), method=method
    )
    same(verdict, wanted)


def test_a_draft_of_temperature_0_is_certain() -> None:
    found = logits_of(batch("float32", 40, 3, 20, seed=5))
    best = np.nan_to_num(found.draft, nan=0.0).argmax(-1)
    certain = found._replace(ids=best)
    wanted = verify_chain_logits(
        None, found.target, best, found.uniforms, lengths=found.lengths, temperature=0.9
    )
    same(call(certain, temperature=0.9, draft_temperature=0), wanted)
    another = found._replace(ids=(best + 1) % 20)
    with pytest.raises(ValueError, match=r"^draft_token_ids: expected an id that the draft can"):
        call(another, draft_temperature=0.0)


def test_greedy_requests_need_no_uniforms() -> None:
    found = logits_of(batch("float32", 12, 3, 20, seed=6))
    wanted = call(found, method="greedy")
    none = found._replace(uniforms=None)
    for options in ({"method": "greedy"}, {"temperature": 0}, {"temperature": np.zeros(12)}):
        same(call(none, **options), wanted)
    half = np.resize([0.0, 1.0], 12)
    with pytest.raises(TypeError, match=r"^uniforms: expected numbers"):
        call(none, temperature=half)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shift", [0.0, -30_000.0, 30_000.0])
def test_extreme_logits(dtype: str, shift: float) -> None:
    """A constant added to a row changes nothing, as long as it changes no difference."""
    rows = np.array([[[0.0, -32.0, 64.0, -np.inf]] * 3]) * 2.0
    ids, uniforms = [[2, 2]], [[0.999, 0.5, 0.25]]
    moved = (rows + shift).astype(need("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    for method in METHODS:
        verdict = verify_chain_logits(moved[:, :2], moved, ids, uniforms, method=method)
        assert verdict.token_ids.tolist() == [[2, 2, 2]]
    # The draft's token is impossible for the target, but for a uniform of almost 0.
    verdict = verify_chain_logits(moved[:, :1], moved[:, :2], [[1]], [[0.5, 0.5]], temperature=0.01)
    assert verdict.token_ids.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -1.0, "got -1.0"),
        ("temperature", [1.0, np.nan, 1.0], "got nan for request 1"),
        ("temperature", np.inf, "got inf"),
        ("temperature", [1.0, 1.0], "(3,), got (2,)"),
        ("draft_temperature", -0.5, "got -0.5"),
        ("draft_temperature", [[1.0]], "(3,), got (1, 1)"),
        ("top_k", -1, "got -1 for request 0"),
        ("top_k", [3, 2, -5], "got -5 for request 2"),
        ("top_k", [3, 2], "(3,), got (2,)"),
        ("top_p", 0.0, "got 0.0"),
        ("top_p", [0.5, 1.5, 1.0], "got 1.5 for request 1"),
        ("top_p", np.nan, "got nan"),
        ("min_p", -0.1, "got -0.1"),
        ("min_p", [0.5, 1.0, 1.5], "got 1.5 for request 2"),
    ],
)
def test_settings_out_of_range(name: str, value: Any, says: str) -> None:
    found = logits_of(batch("float32", 3, 2, 6))
    refused(ValueError, lambda: call(found, **{name: value}), says=(name, says))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", "1", "a number, or one for each request, got str; "),
        ("temperature", None, "a number, or one for each request, got NoneType; "),
        ("temperature", True, "dtype bool"),
        ("temperature", [True, 1.0, 1.0], "bool"),
        ("temperature", 1j, "dtype complex128"),
        ("draft_temperature", np.ma.ones(3), "masked"),
        ("top_k", 2.0, "dtype float64"),
        ("top_k", [1, 2.0, 3], "2.0 at index 1"),
        ("top_k", True, "dtype bool"),
        ("top_p", "0.9", "a number, or one for each request, got str; "),
        ("min_p", object(), "a number, or one for each request, got object; "),
        ("min_p", {}, "a number, or one for each request, got dict; "),
        ("top_k", "1", "an integer, or one for each request, got str; "),
    ],
)
def test_settings_that_are_no_numbers(name: str, value: Any, says: str) -> None:
    found = logits_of(batch("float32", 3, 2, 6))
    refused(TypeError, lambda: call(found, **{name: value}), says=(name, says))


@pytest.mark.parametrize("method", METHODS)
def test_bad_logits_that_are_read(method: Any) -> None:
    row = np.zeros((3, 3, 6), np.float32)
    ids, uniforms = np.zeros((3, 2), int), np.full((3, 3), 0.5)
    where = "of request 1"
    for value in (np.nan, np.inf):
        target = row.copy()
        target[1, 2, 4] = value
        arguments = row[:, :2], target, ids, uniforms
        says: tuple[str, ...] = ("target_logits", f"got {value} at index 4 at position 2 {where}")
        if method == "greedy":
            arguments[2][1] = 0
        refused(ValueError, lambda a=arguments: verify_chain_logits(*a, method=method), says=says)
    nothing = row.copy()
    nothing[1, 0] = -np.inf
    says = ("target_logits", f"got -inf at index 0 at position 0 {where}", "masks")
    arguments = row[:, :2], nothing, ids, uniforms
    refused(ValueError, lambda: verify_chain_logits(*arguments, method=method), says=says)
    if method != "greedy":
        draft = row[:, :2].copy()
        draft[1, 0, 0] = -np.inf
        arguments = draft, row, ids, uniforms
        says = ("draft_token_ids", f"at position 0 {where}", "by draft_logits is 0")
        refused(ValueError, lambda: verify_chain_logits(*arguments, method=method), says=says)


def test_kinds_and_shapes_are_named_as_logits() -> None:
    found = logits_of(batch("float32", 3, 2, 6))
    torch = need("torch")
    mixed = found._replace(draft=torch.zeros(3, 2, 6))
    refused(TypeError, lambda: call(mixed), says=("draft_logits and target_logits", "Tensor"))
    short = found._replace(target=found.target[:, :2])
    refused(ValueError, lambda: call(short), says=("target_logits", "(3, 3, 6)", "(3, 2, 6)"))
    flat = found._replace(target=found.target[0])
    refused(ValueError, lambda: call(flat), says=("target_logits", "(B, K, V)"))
