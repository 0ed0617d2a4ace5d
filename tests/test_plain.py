"""The short way: what is usual is answered before Python looks at it, and nothing else is.

NumPy arrays proper and plain Torch tensors go straight to the compiled part. Everything unusual has
to be left to the long way, which knows what to say about it.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftverify import _arrays, _core, accept_residual, speculative_decode_step
from kinds import KINDS, Kind, need, random_rows


@pytest.fixture
def no_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        pytest.fail("the long way was taken")

    monkeypatch.setattr(_arrays, "pair", taken)


def usual(library: str) -> list[Kind]:
    return [kind for kind in KINDS if kind.library.name == library]


@pytest.mark.usefixtures("no_long_way")
@pytest.mark.parametrize("kind", usual("numpy"), ids=str)
def test_usual_arrays_take_the_short_way(kind: Kind) -> None:
    draft, target, ids = random_rows(kind.dtype, (5, 300))
    rows = kind.make(draft), kind.make(target)
    for check in (True, False):
        accept_residual(*rows, ids, check=check)
        accept_residual(*rows, ids, out=np.empty_like(rows[0]), check=check)
    speculative_decode_step(rows[0][0], rows[1][0], int(ids[0]))
    accept_residual(rows[0][:0], rows[1][:0], ids[:0])
    zeros = np.zeros(3, np.int64)
    accept_residual(rows[0][::-2, ::3].copy(), rows[1][::2, ::3], zeros, check=False)


@pytest.mark.usefixtures("no_long_way")
@pytest.mark.parametrize("kind", usual("torch"), ids=str)
def test_usual_tensors_take_the_short_way(kind: Kind) -> None:
    torch = need("torch")
    draft, target, ids = random_rows(kind.dtype, (5, 300))
    rows = kind.make(draft), kind.make(target)
    for check in (True, False):
        for chosen in (ids, torch.from_numpy(ids)):
            accept_residual(*rows, chosen, check=check)
    step = speculative_decode_step(rows[0][2], rows[1][2], int(ids[2]))
    assert type(step["residual"]) is torch.Tensor
    assert step["residual"].is_contiguous()
    step["residual"].zero_()  # it may be written to
    speculative_decode_step(rows[0][2, ::2], rows[1][2, 1::2], int(rows[0][2, ::2].argmax()))


@pytest.mark.parametrize("kind", usual("numpy") + usual("torch"), ids=str)
def test_both_ways_give_the_same(kind: Kind) -> None:
    draft, target, ids = random_rows(kind.dtype, (6, 700))
    draft[4, 650] = np.nan
    rows = kind.make(draft), kind.make(target)
    short = accept_residual(*rows, ids, check=False)
    long = accept_residual(*rows, ids.tolist(), check=False)
    assert type(short) is type(long)
    for one, other in zip(short, long, strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert kind.library.plain(one).tobytes() == kind.library.plain(other).tobytes()
    for row in range(4):
        step = speculative_decode_step(rows[0][row], rows[1][row], int(ids[row]))
        other = speculative_decode_step(rows[0][row], rows[1][row], ids[row])
        assert step["accept_prob"] == other["accept_prob"]
        found = [kind.library.plain(each["residual"]).tobytes() for each in (step, other)]
        assert found[0] == found[1]


def test_out_right_beside_the_rows() -> None:
    """Packed outputs that touch an input take the short way, and one that reaches into it none."""
    memory = np.zeros(12)
    memory[:8] = np.tile([0.25, 0.75, 0.5, 0.5], 2)
    draft, target = memory[:4].reshape(2, 2), memory[4:8].reshape(2, 2)
    ids, before = np.zeros(2, np.int64), memory[:8].copy()
    out = memory[8:].reshape(2, 2)
    answer = _core.accept_plain_rows(draft, target, ids, out, True)
    assert answer is not None
    assert answer[1] is out
    for start in (0, 1, 3, 4, 7):
        other = memory[start : start + 4].reshape(2, 2)
        assert _core.accept_plain_rows(draft, target, ids, other, True) is None, start
    assert (memory[:8] == before).all()
    over_ids = ids.view(np.float64).reshape(2, 1)
    assert _core.accept_plain_rows(draft[:, :1], target[:, :1], ids, over_ids, True) is None


def test_outs_that_are_left_to_the_long_way() -> None:
    rows, ids = np.full((2, 3), 0.25), np.zeros(2, np.int64)
    frozen = np.empty((2, 3))
    frozen.flags.writeable = False
    for out in (
        np.empty((3, 2)),
        np.empty(6),
        np.empty((2, 3), np.float32),
        np.empty((2, 3), ">f8"),
        np.empty((2, 6))[:, ::2],
        np.empty((3, 2)).T,
        np.broadcast_to(np.empty(3), (2, 3)),
        np.empty(49, np.uint8)[1:].view(np.float64).reshape(2, 3),
        np.ma.MaskedArray(np.empty((2, 3))),
        [[0.0] * 3] * 2,
        frozen,
    ):
        assert _core.accept_plain_rows(rows, rows, ids, out, True) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda draft, target, ids: (draft[0], target[0], ids),
        lambda draft, target, ids: (draft, target[:1], ids),
        lambda draft, target, ids: (draft, target[:, :2], ids),
        lambda draft, target, ids: (draft[:, :0], target[:, :0], ids),
        lambda draft, target, ids: (draft, target.astype(np.float32), ids),
        lambda draft, target, ids: (draft, target, ids[:1]),
        lambda draft, target, ids: (draft, target, ids[:, None]),
        lambda draft, target, ids: (draft, target, ids.astype(np.int32)),
        lambda draft, target, ids: (draft, target, ids.astype(np.uint64)),
        lambda draft, target, ids: (draft, target, ids.astype(">i8")),
        lambda draft, target, ids: (draft, target, np.repeat(ids, 2)[::2]),
        lambda draft, target, ids: (draft, target, ids.view(np.ma.MaskedArray)),
        lambda draft, target, ids: (draft, target, ids.tolist()),
        lambda draft, target, ids: (draft.view(np.ma.MaskedArray), target, ids),
        lambda draft, target, ids: (draft.tolist(), target.tolist(), ids),
        lambda _draft, _target, ids: (ids[:, None], ids[:, None], ids),
    ],
)
def test_arguments_that_are_left_to_the_long_way(spoil: Callable[..., tuple[Any, ...]]) -> None:
    draft, ids = np.full((2, 3), 0.25), np.zeros(2, np.int64)
    assert _core.accept_plain_rows(draft, draft, ids, None, True) is not None
    rows, other, spoiled = spoil(draft, draft.copy(), ids)
    assert _core.accept_plain_rows(rows, other, spoiled, None, True) is None
    assert _core.accept_plain_rows(draft, draft, ids, None, 1) is None


def test_tensors_as_they_are_seen() -> None:
    torch = need("torch")
    rows = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (
        *(rows, rows[1], rows[:, 1], rows.transpose(0, 2), rows[:, ::2, 1::2], rows[0, 0, 3]),
        *(rows[0, :1].expand(5, 4), rows.double(), rows.half(), rows.clone().requires_grad_()),
        *(rows.to(getattr(torch, name)) for name in ("int8", "int16", "int32", "int64", "uint8")),
    ):
        seen, expected = _core.plain_tensor(tensor), tensor.detach().numpy()
        assert type(seen) is np.ndarray
        assert (seen.dtype, seen.shape, seen.strides) == (
            *(expected.dtype, expected.shape, expected.strides),
        )
        assert seen.ctypes.data == expected.ctypes.data
        assert not seen.flags.writeable
    narrow = _core.plain_tensor(rows.to(torch.bfloat16))
    assert narrow is not None
    assert narrow.dtype == np.int16
    assert (narrow == rows.to(torch.bfloat16).view(torch.int16).numpy()).all()


def test_what_is_seen_keeps_the_tensor_alive() -> None:
    torch = need("torch")
    tensor = torch.full((1000,), 0.5)
    alive, seen = weakref.ref(tensor), _core.plain_tensor(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    assert seen is not None
    assert (seen == 0.5).all()
    del seen
    gc.collect()
    assert alive() is None


def shrunk(torch: Any, left: int) -> Any:
    tensor = torch.full((8,), 0.125)
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch._neg_view(torch.tensor([0.5, 0.5])),
        lambda torch: torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
        lambda torch: torch.tensor([0.5, 0.5]).to_sparse(),
        lambda torch: torch.empty(2, device="meta"),
        lambda torch: torch.nn.Parameter(torch.tensor([0.5, 0.5])),
        lambda torch: torch._to_functional_tensor(torch.tensor([0.5, 0.5])),
        lambda torch: torch._efficientzerotensor(2),
        lambda torch: torch.quantize_per_tensor(torch.tensor([0.5, 0.5]), 0.1, 0, torch.quint8),
        lambda torch: torch.zeros(1, 1, 1, 1, 2),
        lambda torch: torch.zeros(2, 0),
        lambda torch: torch.zeros(2, dtype=torch.complex64),
        lambda torch: torch.zeros(2, dtype=torch.bool),
        lambda torch: torch.zeros(2, dtype=torch.float8_e5m2),
        lambda torch: shrunk(torch, 0),
        lambda torch: shrunk(torch, 28),
        lambda torch: shrunk(torch, 31),
        lambda _torch: np.array([0.5, 0.5]),
        lambda _torch: [0.5, 0.5],
        lambda torch: torch.Tensor,
        lambda _torch: type("Tensor", (), {})(),
    ],
)
def test_unusual_tensors_are_left_to_the_long_way(make: Callable[[Any], Any]) -> None:
    assert _core.plain_tensor(make(need("torch"))) is None


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:FutureWarning")
def test_nothing_is_plain_while_torch_looks_on() -> None:
    torch = need("torch")

    class Onlooker(need("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, _types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            return function(*arguments, **(options or {}))

    plain, seen = torch.tensor([0.5, 0.5]), []

    def look(tensor: Any) -> Any:
        seen.append(_core.plain_tensor(plain))
        return tensor * 2

    assert _core.plain_tensor(plain) is not None
    with Onlooker():
        look(plain)
    torch.vmap(look)(torch.ones(3, 2))
    torch.jit.trace(look, (plain,), check_trace=False)
    assert seen == [None] * 3


def test_what_torch_allocates_without_memory_is_not_written_to() -> None:
    torch = need("torch")
    draft, target = torch.tensor([0.8, 0.2]), torch.tensor([0.4, 0.6])
    torch._enable_functionalization(reapply_views=True)
    try:
        step = speculative_decode_step(draft, target, 0)
    finally:
        torch._disable_functionalization()
    assert step["accept_prob"] == 0.5


@pytest.mark.parametrize("call", ["step", "rows", "rows and ids"])
@pytest.mark.parametrize("at", range(12))
def test_code_that_runs_during_the_look_and_frees_the_draft(call: str, at: int) -> None:
    torch = need("torch")
    draft, target = torch.rand(2, 1 << 20).unbind()
    draft, ids = draft.clone(), torch.zeros(1, dtype=torch.int64)
    rows = draft[None], target[None], ids if "ids" in call else ids.numpy()
    asked = 0

    class Freeing(need("torch.overrides").TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, _types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            nonlocal asked
            asked += 1
            if asked == at + 1:
                draft.untyped_storage().resize_(0)
            return function(*arguments, **(options or {}))

    def verify() -> None:
        if call == "step":
            speculative_decode_step(draft, target, 0)
        else:
            accept_residual(*rows)

    with Freeing(), contextlib.suppress(TypeError):
        verify()
    assert call != "step" or asked > 3


def test_an_interrupt_within_a_mode_goes_on() -> None:
    torch = need("torch")
    row = torch.tensor([0.5, 0.5])

    class Interrupting(need("torch.overrides").TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Interrupting():
        _core.plain_tensor(row)


def test_real_tensors_in_a_mode_of_fakes() -> None:
    torch = need("torch")
    mode = need("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    row = torch.tensor([0.8, 0.2] * 1000)
    for dtype in (torch.float32, torch.bfloat16):
        rows = row.to(dtype), row.flip(0).to(dtype)
        with mode:
            with pytest.raises(TypeError, match="outside of Torch's modes"):
                speculative_decode_step(*rows, 0)
            with pytest.raises(TypeError, match="outside of Torch's modes"):
                accept_residual(rows[0], rows[1], np.zeros(1, np.int64), check=False)


def test_no_memory_for_the_residual() -> None:
    torch = need("torch")
    endless = torch.tensor([0.5]).expand(1 << 46)
    with pytest.raises(MemoryError):
        speculative_decode_step(endless, endless, 0)
