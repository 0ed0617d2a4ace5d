"""Whole chains: the plain twin's tokens for every kind, layout, company and number of threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftverify
import plain_chain
from chains import Batch, batch
from draftverify import ChainVerdict, verify_chain
from kinds import DTYPES, KINDS, Kind, need
from processes import run_python

METHODS: tuple[Any, ...] = ("standard", "block", "greedy")
ARRAYS = tuple(kind for kind in KINDS if kind.library.name != "list")


def verify(found: Batch, **options: Any) -> Any:
    verdict = verify_chain(found.draft, found.target, found.ids, found.uniforms, **options)
    assert type(verdict) is ChainVerdict
    for part in verdict:
        assert type(part) is np.ndarray
        assert part.dtype == np.int32
        assert part.flags.writeable
    return verdict


def same(got: Any, expected: Any) -> None:
    for part, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(part, other, strict=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ARRAYS, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 7, 300])
def test_every_kind_agrees_with_the_plain_twin(kind: Kind, method: Any, vocabulary: int) -> None:
    need(kind.library.module)
    found = batch(kind.dtype, 24, 4, vocabulary, seed=vocabulary)
    for draft in (found.draft, None):
        expected = plain_chain.verify_chain(
            draft, found.target, found.ids, found.uniforms, lengths=found.lengths, method=method
        )
        arrays: list[Any] = [
            None if rows is None else kind.library.array(rows) for rows in (draft, found.target)
        ]
        before = [None if rows is None else kind.library.contents(rows) for rows in arrays]
        verdict = verify_chain(
            arrays[0], arrays[1], found.ids, found.uniforms, lengths=found.lengths, method=method
        )
        same(tuple(map(kind.library.plain, verdict)), expected)
        after = [None if rows is None else kind.library.contents(rows) for rows in arrays]
        assert after == before
    accepted = expected.num_accepted
    assert vocabulary == 1 or 0 < accepted.sum() < found.lengths.sum()


@pytest.mark.parametrize("method", METHODS)
def test_lists(method: Any) -> None:
    found = batch("float64", 6, 3, 5)
    draft, target = (np.nan_to_num(part, neginf=0.5) for part in found[:2])
    full = found._replace(draft=draft, target=target)
    lists = [part.tolist() for part in full[:4]]
    verdict = verify_chain(*lists, lengths=found.lengths.tolist(), method=method)
    same(verdict, verify(found, lengths=found.lengths, method=method))


@pytest.mark.parametrize("method", METHODS)
def test_layout_and_company_do_not_matter(method: Any) -> None:
    found = batch("float32", 40, 5, 600, seed=3)
    together = verify(found, lengths=found.lengths, method=method)
    assert together[1].shape == (40, 6)
    for request in range(40):
        alone = verify(found.alone(request), method=method)
        width = found.lengths[request] + 1
        assert alone[0] == together[0][request]
        np.testing.assert_array_equal(alone[1][0], together[1][request, :width])
        assert (together[1][request, width:] == -1).all()
    order = np.random.default_rng(4).permutation(40)
    shuffled = verify(
        Batch(*(part[order] for part in found)), lengths=found.lengths[order], method=method
    )
    same(shuffled, tuple(part[order] for part in together))
    flat, indptr = found.flat()
    longest = found.lengths.max()
    same(verify(flat, indptr=indptr, method=method), (together[0], together[1][:, : longest + 1]))
    ids = np.where(np.arange(5) < found.lengths[:, None], found.ids, -1)
    same(verify(found._replace(ids=ids), method=method), together)
    for dtype in (np.int32, np.uint16, np.dtype(">i8")):
        narrow = np.abs(found.ids).astype(dtype)
        same(verify(found._replace(ids=narrow), lengths=found.lengths, method=method), together)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype: str, method: Any) -> None:
    found = batch(dtype, 9, 3, 40, seed=5)
    expected = verify(found, lengths=found.lengths, method=method)
    spread_draft = np.full((18, 5, 43), np.nan, DTYPES[dtype])
    spread_target = np.full((9, 9, 80), np.nan, DTYPES[dtype].newbyteorder())
    draft, target = spread_draft[::2, 1:4, 2:42], spread_target[:, 1::2, ::-2]
    draft[...], target[...] = found.draft, found.target
    ids = np.asfortranarray(found.ids)
    uniforms = np.repeat(found.uniforms, 2, axis=1)[:, ::2]
    for rows in (draft, draft[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]):
        strided = Batch(rows, target, ids, uniforms, found.lengths)
        same(verify(strided, lengths=found.lengths, method=method), expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_bonus_token_from_elsewhere(method: Any) -> None:
    found = batch("float64", 30, 3, 6, seed=6)
    expected = verify(found, lengths=found.lengths, method=method)
    bonus = np.arange(30) + 2**31 - 31
    full = expected[0] == found.lengths
    assert full.any()
    assert not full.all()
    expected[1][full, found.lengths[full]] = bonus[full]
    without = found._replace(target=found.target[:, :-1])
    same(verify(without, lengths=found.lengths, method=method, bonus_token_ids=bonus), expected)
    flat, indptr = found.flat()
    drafted = np.arange(3) < found.lengths[:, None]
    rows = without.target[drafted]
    got = verify(flat._replace(target=rows), indptr=indptr, method=method, bonus_token_ids=bonus)
    same(got, (expected[0], expected[1][:, : found.lengths.max() + 1]))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_drafted_and_no_request(method: Any) -> None:
    found = batch("float32", 4, 0, 9, seed=7)
    verdict = verify(found, method=method)
    assert verdict[0].tolist() == [0] * 4
    assert verdict[1].shape == (4, 1)
    assert (verdict[1] >= 0).all()
    none = Batch(*(part[:0] for part in batch("float32", 4, 3, 9)))
    same(verify(none, method=method), (np.zeros(0, np.int32), np.zeros((0, 4), np.int32)))
    flat, indptr = none.flat()
    same(
        verify(flat, indptr=indptr, method=method),
        (np.zeros(0, np.int32), np.zeros((0, 1), np.int32)),
    )


def test_greedy_needs_the_target_alone() -> None:
    found = batch("float32", 12, 3, 9, seed=8)
    expected = verify(found, lengths=found.lengths, method="greedy")
    nans = np.full_like(found.draft, np.nan)
    got = verify_chain(nans, found.target, found.ids, None, lengths=found.lengths, method="greedy")
    same(got, expected)


def test_uniforms_in_other_clothes() -> None:
    found = batch("float32", 12, 3, 9, seed=9)
    narrow = np.clip(found.uniforms, 0, 0.99).astype(np.float32)
    plain = found._replace(uniforms=narrow.astype(np.float64))
    expected = verify(plain, lengths=found.lengths)
    torch, jax = need("torch"), need("jax.numpy")
    for uniforms in (narrow, narrow.tolist(), torch.tensor(narrow), jax.asarray(narrow)):
        same(verify(found._replace(uniforms=uniforms), lengths=found.lengths), expected)
    for ids in (torch.tensor(found.ids), jax.asarray(found.ids), found.ids.tolist()):
        same(verify(plain._replace(ids=ids), lengths=torch.tensor(found.lengths)), expected)


def test_hostile_uniforms_draw_no_id_of_zero_mass() -> None:
    rng = np.random.default_rng(10)
    for dtype in DTYPES:
        for vocabulary in (2, 257, 600):
            found = batch(dtype, 200, 2, vocabulary, seed=vocabulary)
            edges = [0.0, 2.0**-1074, 0.5, 1 - 2.0**-24, 1 - 2.0**-53]
            uniforms = rng.choice(edges, found.uniforms.shape)
            for method in ("standard", "block"):
                accepted, ids = verify(
                    found._replace(uniforms=uniforms), lengths=found.lengths, method=method
                )
                rows = found.target[np.arange(200), accepted]
                emitted = ids[np.arange(200), accepted]
                assert (rows[np.arange(200), emitted] > 0).all()


def test_threads_and_paths_change_nothing() -> None:
    """Large rows and many requests, in processes of their own."""
    program = """
import hashlib, sys
sys.path.insert(0, sys.argv.pop(1))
from chains import batch
import draftverify
digest = hashlib.sha256()
for dtype in ("float16", "bfloat16", "float32", "float64"):
    for shape in ((1, 2, 300_000), (40, 3, 5_000)):
        found = batch(dtype, *shape, seed=1)
        for method in ("standard", "block", "greedy"):
            for threads in map(int, sys.argv[1:]):
                draftverify.set_num_threads(threads)
                for part in draftverify.verify_chain(
                    found.draft, found.target, found.ids, found.uniforms,
                    lengths=found.lengths, method=method,
                ):
                    digest.update(part.tobytes())
print(digest.hexdigest())
"""
    here = str(Path(__file__).parent)
    texts = {
        run_python("-c", program, here, threads, DRAFTVERIFY_PATH=path)
        for threads, path in [("1", "portable"), ("1", "best"), ("2", "best"), ("4", "best")]
    }
    assert len(texts) == 1
    assert draftverify.get_num_threads() >= 1
