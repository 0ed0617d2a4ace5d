"""From the public functions through the launcher to the kernels, for every library, on doubles."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from draftverify import (
    _core,
    _cuda,
    _cuda_arrays,
    _device_kinds,
    _elsewhere,
    _generic,
    _kinds,
    accept_probs,
    accept_residual,
    acceptance_rate,
    speculative_decode_step,
    verify_chain,
    verify_chain_logits,
)
from fakes import CURRENT, STREAM, WAITS, CupyArray, Foreign, cuda_tensor
from host_kernels import LAUNCHES, Launch
from kinds import DTYPES, assert_same_bits, elsewhere, need, random_rows, refused
from machine import LIBRARIES, Library, machine, memory


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with machine(LIBRARIES[request.param]):
        yield LIBRARIES[request.param]


@pytest.fixture
def cupy() -> Iterator[Library]:
    with machine(LIBRARIES["cupy"]):
        yield LIBRARIES["cupy"]


@pytest.fixture
def torch() -> Iterator[Any]:
    with machine(LIBRARIES["torch"]):
        yield need("torch")


@pytest.mark.parametrize("size", [1, 257, 4097])
def test_a_step_has_the_bits_of_the_cpu(library: Library, dtype: str, size: int) -> None:
    draft, target, token = random_rows(dtype, (size,), seed=size)
    arrays = library.array(draft), library.array(target)
    before = [memory(array).tobytes() for array in arrays]
    step = speculative_decode_step(*arrays, int(token))
    expected = speculative_decode_step(draft, target, int(token))
    assert list(step) == ["accept_prob", "residual"]
    assert type(step["accept_prob"]) is float
    assert step["accept_prob"] == expected["accept_prob"]
    assert library.is_mine(step["residual"])
    assert_same_bits(memory(step["residual"]), expected["residual"])
    assert [memory(array).tobytes() for array in arrays] == before


def test_a_step_launches_twice_on_the_callers_stream_and_waits_once(library: Library) -> None:
    draft, target, token = random_rows("float32", (5000,))
    speculative_decode_step(library.array(draft), library.array(target), int(token))
    assert [
        Launch("excess_sums", 2, 256, STREAM + 1),
        Launch("residuals", 2, 256, STREAM + 1),
    ] == LAUNCHES
    assert WAITS.total() == 1


def test_rows_have_the_bits_of_the_cpu(library: Library, dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (3, 5000))
    expected = accept_residual(draft, target, ids)
    arrays = library.array(draft), library.array(target)
    for check, waits in ((True, 1), (False, 0)):
        WAITS.clear()
        answer = accept_residual(*arrays, ids, check=check)
        assert WAITS.total() == waits
        for got, wanted in zip(answer, expected, strict=True):
            assert library.is_mine(got)
            assert_same_bits(memory(got), wanted)
    WAITS.clear()
    alone = accept_probs(*arrays, ids)
    assert WAITS.total() == 1
    assert library.is_mine(alone)
    assert_same_bits(memory(alone), expected.accept_prob)
    assert {launch.stream for launch in LAUNCHES} == {STREAM + 1}


def test_ids_on_the_gpu_stay_there(library: Library) -> None:
    draft, target, ids = random_rows("float32", (4, 200))
    expected = accept_residual(draft, target, ids)
    arrays = library.array(draft), library.array(target)
    for kind in (np.int32, np.int64, np.uint8):
        spread = np.repeat(ids.astype(kind), 2)[::2]  # not packed
        answer = accept_residual(*arrays, library.array(spread), check=False)
        assert_same_bits(memory(answer.accept_prob), expected.accept_prob)
    assert not WAITS


@pytest.mark.parametrize("ids_library", LIBRARIES)
def test_ids_may_be_of_another_library(library: Library, ids_library: str) -> None:
    if LIBRARIES[ids_library].module == "torch" or library is LIBRARIES["torch"]:
        pytest.importorskip("torch")
    draft, target, ids = random_rows("float32", (4, 300))
    other = LIBRARIES[ids_library].array(ids)
    with pytest.MonkeyPatch.context() as patch:
        if library is LIBRARIES["torch"]:
            patch.setattr(need("torch"), "from_dlpack", lambda array: cuda_tensor(array.memory, 1))
        answer = accept_residual(library.array(draft), library.array(target), other, check=False)
    assert_same_bits(memory(answer.residual), accept_residual(draft, target, ids).residual)
    assert not WAITS


def views(rows: Any) -> dict[str, Any]:
    """Rows of a larger array, and others that do not follow one another."""
    wide = np.concatenate([rows, rows[:, :7]], axis=1)
    return {
        "rows apart": wide[:, : rows.shape[1]],
        "entries apart": np.repeat(rows, 3, axis=1)[:, ::3],
        "columns": np.asfortranarray(rows),
        "one row many times": np.broadcast_to(rows[1], rows.shape),
        "backwards": rows[::-1, ::-1],
        "an entry further": wide.ravel()[1 : 1 + rows.size].reshape(rows.shape),
    }


@pytest.mark.parametrize("view", views(np.zeros((2, 8))))
def test_rows_may_have_any_strides(cupy: Library, dtype: str, view: str) -> None:
    draft, target, _ = random_rows(dtype, (3, 600))
    draft, target = views(draft)[view], views(target)[view]
    ids = np.asarray(draft.astype(float).argmax(-1))
    expected = accept_residual(draft, target, ids)
    answer = accept_residual(cupy.array(draft), cupy.array(target), ids)
    for got, wanted in zip(answer, expected, strict=True):
        assert_same_bits(memory(got), wanted)
    step = speculative_decode_step(cupy.array(draft[2]), cupy.array(target[2]), int(ids[2]))
    assert_same_bits(memory(step["residual"]), expected.residual[2])
    assert_same_bits(
        memory(accept_probs(cupy.array(draft), cupy.array(target), ids)), answer[0].memory
    )


def test_a_field_of_a_record_is_copied(cupy: Library) -> None:
    """Its entries are no whole number of entries apart."""
    draft, target, ids = random_rows("float32", (2, 40))
    record = np.zeros((2, 40), [("flag", "u1"), ("draft", "f4"), ("target", "f4")])
    record["draft"], record["target"] = draft, target
    answer = accept_residual(cupy.array(record["draft"]), cupy.array(record["target"]), ids)
    assert_same_bits(memory(answer.residual), accept_residual(draft, target, ids).residual)


def test_torch_tensors_of_every_make(torch: Any) -> None:
    draft, target, ids = random_rows("float32", (3, 600))
    expected = accept_residual(draft, target, ids)
    away = cuda_tensor(draft, 1), cuda_tensor(target, 1)
    wide = cuda_tensor(np.concatenate([draft, draft], axis=1), 1)[:, :600]
    negated = torch._neg_view(cuda_tensor(-target, 1))
    grad = cuda_tensor(draft, 1).requires_grad_()
    for pair in (away, (wide, away[1]), (away[0], negated), (grad, away[1])):
        answer = accept_residual(*pair, ids)
        assert_same_bits(memory(answer.residual), expected.residual)
        assert not answer.residual.requires_grad
    one = cuda_tensor(draft[:1], 1).expand(3, 600)
    same = np.repeat(ids[:1], 3)
    answer = accept_residual(one, away[1], same)
    wanted = accept_residual(np.repeat(draft[:1], 3, axis=0), target, same)
    assert_same_bits(memory(answer.residual), wanted.residual)


def test_no_rows_launch_nothing(library: Library) -> None:
    none = np.empty((0, 5), np.float32)
    answer = accept_residual(library.array(none), library.array(none), [])
    assert [memory(each).shape for each in answer] == [(0,), (0, 5), (0,)]
    assert memory(accept_probs(library.array(none), library.array(none), [])).shape == (0,)
    assert not LAUNCHES


# What is refused


def messages(call: Any, *arguments: Any) -> tuple[type[Exception], str]:
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments)
    return caught.type, str(caught.value)


def spoilt(what: str) -> tuple[Any, Any, Any]:
    draft, target, ids = random_rows("float32", (4, 5000))
    if what == "nan":
        target[2, 4097] = np.nan
    elif what == "negative":
        draft[3, 7], target[2, 4999] = -0.5, -1
    elif what == "infinite":
        draft[2, 0], target[2, 0] = np.inf, np.inf
    elif what == "overflow":
        target[2] = np.finfo(np.float32).max
        target[2, ids[2]] = 0
    elif what == "impossible":
        draft[2, ids[2]] = -0.0
        target[0, 0] = np.nan  # tokens come first
    elif what == "outside":
        ids[2] = 5000
        draft[0, ids[0]] = 0
    else:
        ids[2], ids[3] = -1, 5000
    return draft, target, ids


WRONG = ("nan", "negative", "infinite", "overflow", "impossible", "outside", "padding")


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_those_of_the_cpu(library: Library, what: str) -> None:
    draft, target, ids = spoilt(what)
    arrays = library.array(draft), library.array(target)
    expected = messages(accept_residual, draft, target, ids)
    assert messages(accept_residual, *arrays, ids) == expected
    assert messages(accept_residual, *arrays, library.array(ids)) == expected
    one = messages(speculative_decode_step, draft[2], target[2], int(ids[2]))
    pair = library.array(draft[2]), library.array(target[2])
    assert messages(speculative_decode_step, *pair, int(ids[2])) == one
    if what in ("impossible", "outside", "padding"):
        expected = messages(accept_probs, draft, target, ids)
        assert messages(accept_probs, *arrays, ids) == expected
        assert messages(accept_probs, *arrays, library.array(ids)) == expected


@pytest.mark.parametrize("what", WRONG)
def test_without_check_the_row_answers_nan_and_nobody_waits(library: Library, what: str) -> None:
    draft, target, ids = spoilt(what)
    arrays = library.array(draft), library.array(target)
    if what in ("outside", "padding"):
        expected = messages(accept_residual, draft, target, ids)
        assert messages(partial(accept_residual, check=False), *arrays, ids) == expected
    given = library.array(ids)  # seen by the kernel alone
    WAITS.clear()
    answer = accept_residual(*arrays, given, check=False)
    assert not WAITS
    good = ids.clip(0, 4999)
    draft[2, good[2]] = np.nan  # whatever was wrong with the row
    if what == "padding":
        draft[3, good[3]] = np.nan
    for got, wanted in zip(answer, accept_residual(draft, target, good, check=False), strict=True):
        assert_same_bits(memory(got), wanted)
    assert np.isnan(memory(answer.mass)[2])


def test_common_errors_come_before_any_launch(library: Library) -> None:
    draft, target, ids = random_rows("float32", (4, 30))
    a, b = library.array(draft), library.array(target)
    both = "draft_probs and target_probs"
    half = library.array(draft.astype(np.float16))
    refused(TypeError, accept_residual, a, half, ids, says=(both, "float32 and float16"))
    whole = library.array(draft.astype(np.int32))
    refused(TypeError, accept_residual, whole, whole, ids, says=(both, "int32"))
    refused(TypeError, accept_residual, a, target, ids, says=(both, "one library"))
    there = library.array(target, 0)
    refused(ValueError, accept_residual, a, there, ids, says=(both, "one device"))
    refused(ValueError, accept_residual, a, library.array(target[:2]), ids, says=(both, "(2, 30)"))
    refused(ValueError, speculative_decode_step, a, b, 1, says=(both, "accept_residual"))
    refused(ValueError, accept_probs, a, b, ids[:2], says=("draft_token_ids", "(4,)"))
    three = library.array(ids[:3])
    refused(ValueError, accept_probs, a, b, three, says=("draft_token_ids", "(4,)"))
    for wrong in (ids.astype(float), ids.astype(bool)):
        says = ("draft_token_ids", "expected integers", str(wrong.dtype))
        refused(TypeError, accept_residual, a, b, library.array(wrong), says=says)
    for token in (1.0, True, [1]):
        row = library.array(draft[0]), library.array(target[0])
        refused(TypeError, speculative_decode_step, *row, token, says=("drafted_token",))
    assert not LAUNCHES


def test_what_has_no_kernel_says_so(library: Library) -> None:
    rows = library.array(random_rows("float32", (4, 30))[0])
    refused(
        NotImplementedError, acceptance_rate, rows, rows, says=("draft_probs", "acceptance_rate")
    )
    chain = library.array(np.ones((1, 2, 3), np.float32))
    for function in (verify_chain, verify_chain_logits):
        with pytest.raises(NotImplementedError, match=f"{function.__name__} has no kernel"):
            function(chain, chain, [[0, 1]], np.zeros((1, 3)))


def test_a_row_that_changes_meanwhile_is_no_plausible_number(cupy: Library) -> None:
    """The kernels saw a NaN which is gone when the CPU looks for it."""
    draft, target, token = random_rows("float32", (30,))
    draft[3] = np.nan
    rows = cupy.array(draft), cupy.array(target)

    class Healing(CupyArray):
        def get(self) -> Any:
            return np.nan_to_num(super().get())

    with pytest.raises(ValueError, match="nobody writes to during the call"):
        speculative_decode_step(Healing(draft, 1), rows[1], int(token))


# Outputs


def test_out_is_written_where_it_lies(library: Library, dtype: str) -> None:
    draft, target, ids = random_rows(dtype, (3, 600))
    a, b = library.array(draft), library.array(target)
    wide = np.zeros((3, 1400), draft.dtype)
    for place in (slice(3, 603), slice(0, 1200, 2), slice(699, 99, -1)):
        if library is LIBRARIES["torch"] and (place.step or 1) < 0:
            continue  # Torch has no negative strides
        out = library.array(wide)
        out = out[:, place] if library is LIBRARIES["torch"] else library.array(wide[:, place])
        if library.immutable:
            with pytest.raises(TypeError, match="out: expected an array that may be written to"):
                accept_residual(a, b, ids, out=out)
            continue
        answer = accept_residual(a, b, ids, out=out)
        assert answer.residual is out
        assert_same_bits(memory(out), accept_residual(draft, target, ids).residual)


def test_with_a_wrong_id_out_is_as_it_was(cupy: Library) -> None:
    draft, target, ids = random_rows("float32", (3, 600))
    out = np.full_like(draft, 7)
    draft[1, ids[1]] = 0
    for given in (ids, cupy.array(ids)):
        with pytest.raises(ValueError, match="draft_token_ids"):
            accept_residual(cupy.array(draft), cupy.array(target), given, out=cupy.array(out))
        assert (out == 7).all()


def test_out_shares_no_memory_with_an_input(cupy: Library) -> None:
    both = np.zeros((3, 1201), np.float32)
    draft, target, ids = random_rows("float32", (3, 600))
    both[:, :600] = draft
    a, b = cupy.array(both[:, :600]), cupy.array(target)
    beside = cupy.array(both[:, 600:1200])  # between the rows of the draft, not on them
    answer = accept_residual(a, b, ids, out=beside)
    assert_same_bits(memory(beside), accept_residual(draft, target, ids).residual)
    assert answer.residual is beside
    for out, says in (
        (cupy.array(both[:, 1:601]), "overlaps draft_probs"),
        (b, "overlaps target_probs"),
        (cupy.array(np.broadcast_to(np.zeros(600, np.float32), (3, 600))), "share no memory"),
        (cupy.array(both), "shape"),
        (cupy.array(both[:, :600].astype(float)), "dtype"),
        (cupy.array(target.copy(), 0), "device"),
    ):
        with pytest.raises((TypeError, ValueError), match=says) as caught:
            accept_residual(a, b, ids, out=out)
        assert str(caught.value).startswith("out: expected ")
    with pytest.raises(TypeError, match="out: expected an array of CuPy"):
        accept_residual(a, b, ids, out=np.zeros((3, 600), np.float32))


def test_torch_is_told_of_writes(torch: Any) -> None:
    draft, target, ids = random_rows("float32", (3, 60))
    out = cuda_tensor(np.zeros_like(draft), 1)
    version = out._version
    accept_residual(cuda_tensor(draft, 1), cuda_tensor(target, 1), ids, out=out)
    assert out._version > version
    del torch


def test_addresses_are_not_looked_at() -> None:
    """A debugger, or a test that fails, shows local variables."""
    where = _device_kinds.addresses(CupyArray(np.zeros((2, 3)), 0))
    assert (repr(where), str(where)) == ("addresses of shape (2, 3)",) * 2


# Libraries


def test_results_for_jax_are_held_until_its_copies_are_there() -> None:
    with machine(LIBRARIES["jax"]):
        jax = LIBRARIES["jax"]
        draft, target, token = random_rows("float32", (30,))

        def step() -> Any:
            return speculative_decode_step(jax.array(draft), jax.array(target), int(token))[
                "residual"
            ]

        first = step()
        first.ready = False
        second = step()
        assert [pair[0] for pair in _cuda_arrays._JAX._held] == [first, second]
        assert all(type(pair[1]) is CupyArray for pair in _cuda_arrays._JAX._held)
        first.ready = True
        third = step()
        assert [pair[0] for pair in _cuda_arrays._JAX._held] == [third]


def test_dlpack_finds_the_importer_of_a_library_by_its_name(cupy: Library) -> None:
    """Where there is no array namespace: the module that the type is from."""
    draft, target, ids = random_rows("float32", (2, 30))
    module = ModuleType("someones_arrays")
    module.from_dlpack = lambda array: ("imported", array)  # type: ignore[attr-defined]
    theirs = type("Theirs", (Foreign,), {"__module__": "someones_arrays.core"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "someones_arrays", module)
        answer = accept_residual(theirs(draft, 1), theirs(target, 1), ids)
    assert [each[0] for each in answer] == ["imported"] * 3
    del cupy


def test_dlpack_arrays_that_cupy_cannot_read_are_refused(cupy: Library) -> None:
    rows = Foreign(np.zeros((2, 3)).astype(ml_dtypes.float8_e4m3fn), 1)
    with pytest.raises(TypeError, match=r"^draft_probs: expected an array that CuPy can read"):
        accept_residual(rows, rows, [0, 0])
    pinned = Foreign(np.zeros((2, 3)), 0, kind=3)
    with pytest.raises(TypeError, match=r"^draft_probs: expected a NumPy array"):
        accept_residual(pinned, pinned, [0, 0])
    del cupy


def test_a_token_may_be_an_integer_of_cupy(cupy: Library) -> None:
    draft, target, token = random_rows("float32", (30,))
    rows = cupy.array(draft), cupy.array(target)
    given: Any = CupyArray(np.array(int(token)), 1)
    step = speculative_decode_step(*rows, given)
    assert_same_bits(
        memory(step["residual"]), speculative_decode_step(draft, target, int(token))["residual"]
    )
    for wrong in (np.array(1.0), np.array(True), np.array([1])):
        refused(
            TypeError, speculative_decode_step, *rows, CupyArray(wrong, 1), says=("drafted_token",)
        )


# What is missing


def no_driver(**_: Any) -> Any:
    message = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    raise RuntimeError(message)


def no_compiler(**_: Any) -> Any:
    message = "libnvrtc.so.13: cannot open shared object file\nor another"
    raise OSError(message)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"cupy": None}, "(import of cupy halted; None in sys.modules);"),
        ({"RawModule": no_driver}, "(cudaErrorInsufficientDriver: CUDA driver version is ins"),
        ({"RawModule": no_compiler}, "(libnvrtc.so.13: cannot open shared object file);"),
    ],
    ids=["absent", "no driver", "no compiler"],
)
def test_without_cupy_the_cure_is_named(
    broken: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where CuPy is demanded; else Torch itself computes, with a warning."""
    cures = ("draftverify[cuda12x]", "draftverify[cuda13x]")
    with machine(LIBRARIES["torch"], **broken):
        rows = cuda_tensor(random_rows("float32", (2, 3))[0], 1)
        computed: list[object] = []

        def compute(*given: Any) -> Any:
            computed.append(given)
            return given[:3]

        monkeypatch.setattr(_generic, "accept_residual", compute)
        _elsewhere._warn.cache_clear()
        with pytest.warns(RuntimeWarning, match="cuda:1 is used without kernels") as warned:
            accept_residual(rows, rows, [0, 0])
        accept_residual(rows, rows, [0, 0])  # a second warning would be an error
        assert len(computed) == 2
        assert len(warned) == 1
        assert all(part in str(warned[0].message) for part in (says.rstrip(";"), *cures))
        monkeypatch.setenv("DRAFTVERIFY_BACKEND", "cupy")
        named = ("draft_probs and target_probs", "DRAFTVERIFY_BACKEND=cupy", says, *cures, ".cpu()")
        refused(ImportError, accept_residual, rows, rows, [0, 0], says=named)


def test_without_cupy_arrays_of_other_libraries_are_unknown() -> None:
    with machine(LIBRARIES["foreign"], cupy=None):
        foreign = Foreign(np.zeros((2, 3)), 1)
        says = ("draft_probs", "Foreign in CUDA memory", "draftverify[cuda12x]")
        refused(TypeError, accept_residual, foreign, foreign, [0, 0], says=says)


def test_other_devices_have_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need("torch")
    rows = elsewhere(torch.zeros(2, 3), "mps")
    monkeypatch.setenv("DRAFTVERIFY_BACKEND", "cupy")
    says = ("draft_probs and target_probs", "on a GPU", "got mps", ".cpu()")
    refused(NotImplementedError, accept_residual, rows, rows, [0, 0], says=says)


def test_every_dtype_of_rows_has_a_text() -> None:
    assert set(_cuda._STORAGE) == set(DTYPES)
    assert CURRENT == [0]


def test_torch_is_not_asked_again_to_show_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its refusal takes longer than all else. A tensor on the CPU is asked nothing before.

    That is so with a Torch that does not describe its tensors in C.
    """
    torch = need("torch")
    monkeypatch.setattr(_core, "plain_tensor", lambda _: None)
    monkeypatch.setattr(_kinds, "_AWAY", set())
    there, here = torch.empty(3, device="meta"), torch.ones(3)
    asked = Counter[str]()

    def numpy(tensor: Any, of: Any = torch.Tensor.numpy) -> Any:
        asked[tensor.device.type] += 1
        return of(tensor)

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    for tensor in (here, there, here, there, here):
        assert (_kinds.plain_view(tensor) is None) is (tensor is there)
    assert asked == {"cpu": 3, "meta": 1}
