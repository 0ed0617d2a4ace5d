"""Where entries lie in memory: the answer is that of a plain copy, to the bit.

Nothing is written that is not a result.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from draftverify import accept_probs, accept_residual, speculative_decode_step
from kinds import DTYPES, Library, Torch, assert_same_bits, bits, need, random_rows

Array = NDArray[Any]
FILL = 0xA5


class Subclass(np.ndarray[Any, Any]):
    """What users derive from arrays, such as units and labelled axes."""


def placed(
    plain: Array, *, steps: tuple[int, ...] = (), offset: int = 0, swap: bool = False
) -> Array:
    """Copy an array into memory full of other numbers: every so many entries, in any byte order."""
    steps = steps or (1,) * plain.ndim
    spread = [length * abs(step) for length, step in zip(plain.shape, steps, strict=True)]
    memory = np.full(int(np.prod(spread)) * plain.itemsize + offset + 8, FILL, np.uint8)
    dtype = plain.dtype.newbyteorder() if swap else plain.dtype
    view = np.ndarray(spread, dtype, memory, offset)[tuple(slice(None, None, s) for s in steps)]
    view[...] = plain
    return view


def column(plain: Array) -> Array:
    """Put a vector into a column, or rows into a slice of the last axis, of a larger array."""
    larger = np.full((*plain.shape, 3), 7.0, plain.dtype)
    larger[..., 1] = plain
    view: Array = larger[..., 1]
    return view


def fortran(plain: Array) -> Array:
    """Let the first of two axes be the one without gaps."""
    if plain.ndim == 2:
        return np.asfortranarray(plain)
    view: Array = np.asfortranarray(np.stack([plain[::-1], plain, plain]))[1]
    return view


def read_only(plain: Array) -> Array:
    copy = plain.copy()
    copy.flags.writeable = False
    return copy


def steps_of(step: int) -> Callable[[Array], Array]:
    return lambda plain: placed(plain, steps=(1,) * (plain.ndim - 1) + (step,))


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": np.copy,
    "step 2": steps_of(2),
    "step 3": steps_of(3),
    "step -1": steps_of(-1),
    "step -2": steps_of(-2),
    "misaligned": lambda plain: placed(plain, offset=1),
    "byte-swapped": lambda plain: placed(plain, swap=True),
    "all at once": lambda plain: placed(plain, steps=(-2, -3)[-plain.ndim :], offset=3, swap=True),
    "read-only": read_only,
    "column": column,
    "fortran": fortran,
    "subclass": lambda plain: plain.copy().view(Subclass),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_a_row(dtype: str, layout: str) -> None:
    for size, other in product((1, 17, 300, 1025), LAYOUTS):
        plain_draft, plain_target, token = random_rows(dtype, (size,), seed=size)
        expected = speculative_decode_step(plain_draft, plain_target, int(token))
        draft, target = LAYOUTS[layout](plain_draft), LAYOUTS[other](plain_target)
        step = speculative_decode_step(draft, target, int(token))
        assert step["accept_prob"] == expected["accept_prob"]
        assert type(step["residual"]) is np.ndarray
        assert_same_bits(step["residual"], expected["residual"])
        assert step["residual"].dtype == DTYPES[dtype]
        assert step["residual"].flags.c_contiguous
        assert step["residual"].flags.writeable
        assert_same_bits(np.asarray(draft), plain_draft)
        assert_same_bits(np.asarray(target), plain_target)


# Of rows, the distance between them varies too.
LAYOUTS_OF_ROWS = LAYOUTS | {
    "every other row": lambda plain: placed(plain, steps=(2, 1)),
    "rows backwards": lambda plain: placed(plain, steps=(-1, 1)),
    "backwards and spread": lambda plain: placed(plain, steps=(-3, -2)),
    "padded rows": lambda plain: np.pad(plain, ((0, 0), (2, 5)))[:, 2:-5],
}


@pytest.mark.parametrize("layout", LAYOUTS_OF_ROWS)
def test_layouts_of_rows(dtype: str, layout: str) -> None:
    plain = random_rows(dtype, (5, 300))
    expected = accept_residual(*plain)
    for other in LAYOUTS_OF_ROWS:
        draft, target = LAYOUTS_OF_ROWS[layout](plain[0]), LAYOUTS_OF_ROWS[other](plain[1])
        found = accept_residual(draft, target, plain[2])
        for part, expected_part in zip(map(np.asarray, found), expected, strict=True):
            assert_same_bits(part, np.asarray(expected_part))
            assert part.dtype.isnative
        assert_same_bits(accept_probs(draft, target, plain[2]), expected.accept_prob)
        assert_same_bits(np.asarray(draft), plain[0])
        assert_same_bits(np.asarray(target), plain[1])


@pytest.mark.parametrize("layout", [name for name in LAYOUTS_OF_ROWS if name != "read-only"])
def test_layouts_of_out(dtype: str, layout: str) -> None:
    draft, target, ids = random_rows(dtype, (5, 300))
    expected = accept_residual(draft, target, ids)
    out = LAYOUTS_OF_ROWS[layout](np.full_like(draft, 9.0))
    surroundings = memory_of(out)
    out.fill(0.0)
    before = surroundings.copy()
    found = accept_residual(draft, target, ids, out=out)
    assert found.residual is out
    assert_same_bits(np.asarray(out), expected.residual)
    assert_same_bits(found.mass, expected.mass)
    out.fill(0.0)
    np.testing.assert_array_equal(surroundings, before, "something beside `out` was written")


def memory_of(array: Array) -> NDArray[np.uint8]:
    """All bytes of the array that this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    flat = array.reshape(-1, order="A").view(np.uint8)
    assert np.shares_memory(flat, array)
    return flat


def test_one_entry_or_one_row_for_all(dtype: str) -> None:
    """A step of zero, as broadcasting makes it."""
    one = np.array([0.25], DTYPES[dtype])
    draft, target, token = random_rows(dtype, (600,))
    spread = np.broadcast_to(one, (600,))
    for one_draft, one_target in ((spread, target), (draft, spread), (spread, spread)):
        expected = speculative_decode_step(one_draft.copy(), one_target.copy(), int(token))
        step = speculative_decode_step(one_draft, one_target, int(token))
        assert step["accept_prob"] == expected["accept_prob"]
        assert_same_bits(step["residual"], expected["residual"])
    rows = np.broadcast_to(draft, (4, 600))
    targets = random_rows(dtype, (4, 600), seed=1)[1]
    ids = np.full(4, token)
    expected_rows = accept_residual(rows.copy(), targets, ids)
    for part, expected_part in zip(accept_residual(rows, targets, ids), expected_rows, strict=True):
        assert_same_bits(np.asarray(part), np.asarray(expected_part))


def test_bad_entries_are_found_in_every_layout(dtype: str) -> None:
    """The first bad index counts entries, wherever they lie."""
    for layout, place in product(LAYOUTS, (0, 255, 256, 599)):
        draft, target, _ = random_rows(dtype, (600,))
        draft[1], target[place] = 1.0, np.nan
        with pytest.raises(ValueError, match=rf"target_probs.* nan at index {place};"):
            speculative_decode_step(draft, LAYOUTS[layout](target), 1)


def test_memory_mapped_files(tmp_path: Path, dtype: str) -> None:
    draft, target, token = random_rows(dtype, (3, 1000))
    expected = accept_residual(draft, target, token)
    files = []
    for name, rows in (("draft", draft), ("target", target)):
        # An odd offset: files have headers of any length.
        (tmp_path / name).write_bytes(b"#" + rows.tobytes())
        files.append(np.memmap(tmp_path / name, rows.dtype, "r", 1, rows.shape))
    found = accept_residual(files[0], files[1], token)
    assert_same_bits(found.residual, expected.residual)
    pair: tuple[Array, Array] = (files[0][2], files[1][2])
    step = speculative_decode_step(*pair, int(token[2]))
    assert_same_bits(step["residual"], expected.residual[2])
    assert type(step["residual"]) is type(found.residual) is np.ndarray


def test_indices_beyond_32_bits(tmp_path: Path) -> None:
    """A sparse file holds rows of 2^32 entries and more; only some pages of it are ever read."""
    far = 2**32 + 8
    with (tmp_path / "rows").open("wb") as file:
        file.truncate(4 * far)
    entries = np.memmap(tmp_path / "rows", np.float16, "r+", 0, (2 * far,))
    entries[far - 1], entries[-1] = 0.5, 0.25
    rows = entries.reshape(2, far)
    ids = [far - 1, far - 1]
    assert accept_probs(rows, rows[::-1], ids).tolist() == [0.5, 1.0]
    assert accept_probs(rows[:, ::-1], rows[::-1, ::-1], [0, 0]).tolist() == [0.5, 1.0]
    # Two short rows far apart.
    pair = as_strided(entries[far - 3 :], (2, 3), (2 * far, 2))
    found = accept_residual(pair, np.array([[0, 0.5, 0.125]] * 2, np.float16), [2, 2])
    assert found.accept_prob.tolist() == [0.25, 0.5]
    assert found.residual.tolist() == [[0, 1, 0], [0, 1, 0]]


def test_a_vocabulary_beyond_32_bits_without_memory(dtype: str) -> None:
    vocabulary = 2**33
    draft, target = (
        np.broadcast_to(np.array(entry, DTYPES[dtype]), (2, vocabulary)) for entry in (0.5, 0.25)
    )
    assert accept_probs(draft, target, [0, vocabulary - 1]).tolist() == [0.5, 0.5]
    views = draft[:, 3::2], target[:, -4::-2]
    assert accept_probs(*views, [0, vocabulary // 2 - 2]).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match=f"draft_token_ids.* {vocabulary} in row 1"):
        accept_probs(draft, target, [0, vocabulary])


def torch_layouts(torch: Any) -> dict[str, Callable[[Any], Any]]:
    def spread(tensor: Any) -> Any:
        larger = torch.full((2 * len(tensor) + 3,), 7.0, dtype=tensor.dtype)
        larger[3::2] = tensor
        return larger[3::2]

    def in_inference(tensor: Any) -> Any:
        with torch.inference_mode():
            return tensor * 1

    def misaligned(tensor: Any) -> Any:
        memory = bytearray(b"#" + bytes(tensor.contiguous().view(torch.uint8).numpy()))
        return torch.frombuffer(memory, dtype=tensor.dtype, offset=1)

    return {
        "plain": torch.clone,
        "spread": spread,
        "column": lambda tensor: torch.stack([tensor, tensor * 0, tensor], 1)[:, 2],
        "misaligned": misaligned,
        "requires_grad": lambda tensor: tensor.clone().requires_grad_(),
        "a result with history": lambda tensor: tensor.clone().requires_grad_() * 1,
        "parameter": torch.nn.Parameter,
        "inference": in_inference,
        # The memory holds the opposite numbers.
        "negated": lambda tensor: torch._neg_view(-tensor),
    }


def test_layouts_of_tensors(dtype: str) -> None:
    torch, library = need("torch"), Torch()
    layouts = torch_layouts(torch)
    draft, target, token = random_rows(dtype, (300,))
    expected = speculative_decode_step(draft, target, int(token))
    for first, second in product(layouts.values(), repeat=2):
        pair = first(library.array(draft)), second(library.array(target))
        step: dict[str, Any] = {**speculative_decode_step(*pair, int(token))}
        assert step["accept_prob"] == expected["accept_prob"]
        assert_same_bits(library.plain(step["residual"]), expected["residual"])
        assert step["residual"].is_contiguous()
        assert step["residual"].grad_fn is None
        for tensor, plain in zip(pair, (draft, target), strict=True):
            after = tensor.detach().resolve_neg()
            np.testing.assert_array_equal(bits(library.plain(after.clone())), bits(plain))


def test_layouts_of_stacked_tensors(dtype: str) -> None:
    torch, library = need("torch"), Torch()
    draft, target, ids = random_rows(dtype, (4, 300))
    expected = accept_residual(draft, np.broadcast_to(target[1], (4, 300)), ids)
    drafts = library.array(draft)
    outs = {
        "plain": torch.empty_like(drafts),
        "transposed": torch.empty_like(drafts.T).T,
        "spread": torch.empty((8, 900), dtype=drafts.dtype)[::2, 1::3],
    }
    for draft_rows in (drafts, drafts.T.contiguous().T, torch.nn.Parameter(drafts.clone())):
        spread = library.array(target)[1].expand(4, 300)
        for out in (None, *outs.values()):
            found = accept_residual(draft_rows, spread, torch.from_numpy(ids), out=out)
            assert out is None or found.residual is out
            assert_same_bits(library.plain(found.residual), expected.residual)
            assert_same_bits(library.plain(found.mass), expected.mass)
            assert_same_bits(library.plain(found.accept_prob), expected.accept_prob)


def test_inside_inference_mode(dtype: str) -> None:
    torch, library = need("torch"), Torch()
    draft, target, token = random_rows(dtype, (300,))
    expected = speculative_decode_step(draft, target, int(token))
    with torch.inference_mode():
        step = speculative_decode_step(library.array(draft), library.array(target), int(token))
    assert_same_bits(library.plain(step["residual"]), expected["residual"])


def test_tuples_and_numpy_numbers_in_lists() -> None:
    draft, target = [np.float32(0.75), 0.25, 0], (0, np.float64(0.5), np.int8(1))
    step = speculative_decode_step(draft, target, 1)
    assert step["accept_prob"] == 1.0
    assert_same_bits(Library().plain(step["residual"]), np.array([0.0, 0.2, 0.8]))
