"""Arguments that nobody should pass: each is answered or refused with an ordinary exception.

Nothing may crash the process, and no panic may come out: `PanicException` derives from
`BaseException` alone, so that a server's `except Exception` would not hold it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from draftverify import _core, accept_probs, accept_residual, speculative_decode_step
from kinds import need

REFUSALS = (TypeError, ValueError, OverflowError)
DRAFT = np.array([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5]])
IDS = np.array([2, 1])


class Raising:
    """Fails whenever it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        message = f"no {name}"
        raise AttributeError(message)

    def __index__(self) -> int:
        message = "no index"
        raise ValueError(message)

    __len__ = __int__ = __float__ = __array__ = __index__


class Subclass(np.ndarray[Any, Any]):
    """An array that is not quite NumPy's."""


def hostile_arrays() -> list[Any]:
    """Arrays of every wrong kind, shape and layout, and some right ones to stand beside them."""
    one, two = DRAFT[0], DRAFT
    dtypes = "?bBhHiIlLqQefdgFDGOSUVmM"
    structured = np.zeros(3, [("probability", np.float32)])
    with np.errstate(all="ignore"):
        typed = [array.astype(dtype) for array in (one, two) for dtype in dtypes]
    empty = [np.empty(shape) for shape in [(), (0,), (0, 0), (0, 3), (3, 0), (2, 3, 1), (0, 2**40)]]
    return [
        *(one, two, *typed, *empty, structured),
        *(array.astype(ml_dtypes.bfloat16) for array in (one, two)),
        *(array.astype(ml_dtypes.float8_e4m3fn) for array in (one, two)),
        *(array.astype(">f4") for array in (one, two)),
        *(array[..., ::-1] for array in (one, two)),
        *(np.broadcast_to(np.float32(0.5), shape) for shape in [(3,), (2, 3)]),
        np.broadcast_to(np.float64(0.5), (2**40,)),  # answering it would take 8 TiB
        np.broadcast_to(np.float64(0.5), (2**20, 2**20)),
        np.frombuffer(b"\0" + two.tobytes(), np.float64, offset=1),
        np.ma.masked_array(two, two > 0.3),
        two.view(np.recarray),
        two.view(Subclass),
        *(np.full(shape, bad) for shape in (3, (2, 3)) for bad in (np.nan, np.inf, -1.0, 1e308)),
        *(None, True, 0, 0.5, "0.5", b"0.5", object(), {}, {0.5}, range(3), iter([0.5]), Raising()),
        *(np.float32(0.5), np.ndarray, np.float64, [], [[]], [[0.5], [0.5, 0.5]], [None], ["0.5"]),
        *([0.5, [0.5]], [True], [0.5 + 0j], [10**400], (), (0.5,), [np.array([0.5])], [Raising()]),
    ]


TOKENS: list[Any] = [
    *(0, 1, -1, 3, 2**31, -(2**63), 2**63, 2**64, 10**40, True, 1.0, float("nan"), 1j, "1", b"1"),
    *(None, object(), [], [1], (1,), {}, Raising(), np.ndarray, slice(None)),
    *(np.int8(1), np.uint64(2**64 - 1), np.bool_(1), np.float32(1), np.array(1), np.array([1])),
    *(np.array(1.0), np.array(1, object), np.array("1"), np.datetime64(1, "s"), np.timedelta64(1)),
]
MANY_TOKENS: list[Any] = [
    *TOKENS,
    *(IDS, IDS.tolist(), IDS.astype(np.uint8), IDS.astype(float), IDS > 1, IDS.astype(object)),
    *(IDS.astype(">i8"), IDS[::-1], IDS[None], np.array([2**64 - 1, 0], np.uint64), [2**64, 0]),
    *(
        [True, False],
        ["1", "0"],
        [None, 1],
        [[0], [1]],
        [Raising(), 0],
        [0.0, 1.0],
        (0, 1),
        range(2),
    ),
    *(
        np.ma.masked_array(IDS, IDS > 1),
        np.array(["1", "0"]),
        np.array([None, 1]),
        IDS.view(Subclass),
    ),
    *(np.array([], int), np.zeros((0, 2), int), np.broadcast_to(np.int64(0), (2**40,))),
]


def survives(function: Callable[..., object], *arguments: object, **options: object) -> bool:
    """Whether there is an answer; anything but an answer or a refusal goes through to pytest."""
    try:
        function(*arguments, **options)
    except REFUSALS:
        return False
    except MemoryError:  # the rows are 8 TiB: refused by the system, as it is for NumPy
        return False
    return True


def test_the_compiled_functions_survive_unchecked_arguments() -> None:
    arrays, answered = hostile_arrays(), 0
    for draft, target in itertools.product(arrays, repeat=2):
        for bfloat16 in (False, True):
            answered += survives(_core.accept_vectors, draft, target, 1, bfloat16)
            answered += survives(_core.accept_entries, draft, target, IDS, bfloat16)
            for check in (True, False):
                out = np.empty_like(DRAFT)
                answered += survives(_core.accept_rows, draft, target, IDS, out, check, bfloat16)
    assert answered > 100  # the right ones among them


def test_the_compiled_functions_survive_unchecked_outputs_tokens_and_flags() -> None:
    read_only = np.empty_like(DRAFT)
    read_only.flags.writeable = False
    for out in (*hostile_arrays(), read_only):
        if isinstance(out, np.ndarray) and out.size and out.flags.writeable:
            out = out.copy()  # noqa: PLW2901 - an output of its own
        for bfloat16 in (False, True):
            survives(_core.accept_rows, DRAFT, DRAFT, IDS, out, True, bfloat16)
    with pytest.raises(TypeError, match="has not checked"):
        _core.accept_rows(DRAFT, DRAFT, IDS, read_only, True, False)
    for token in MANY_TOKENS:
        out = np.empty_like(DRAFT)
        survives(_core.accept_vectors, DRAFT[0], DRAFT[1], token, False)
        survives(_core.accept_rows, DRAFT, DRAFT, token, out, False, False)
        survives(_core.accept_entries, DRAFT, DRAFT, token, False)
        survives(_core.accept_rows, DRAFT, DRAFT, IDS, out, token, False)
        survives(_core.accept_rows, DRAFT, DRAFT, IDS, out, False, token)
        survives(_core.accept_vectors, DRAFT[0], DRAFT[1], 0, token)


def test_the_public_functions_survive_any_pair_of_arrays() -> None:
    arrays, answered = hostile_arrays(), 0
    for draft, target in itertools.product(arrays, repeat=2):
        answered += survives(speculative_decode_step, draft, target, 1)
        answered += survives(accept_residual, draft, target, IDS)
        answered += survives(accept_residual, draft, target, IDS, check=False)
        answered += survives(accept_probs, draft, target, IDS)
    assert answered > 100


def test_the_public_functions_survive_any_token_and_output() -> None:
    for token in MANY_TOKENS:
        survives(speculative_decode_step, DRAFT[0], DRAFT[1], token)
        survives(accept_residual, DRAFT, DRAFT, token)
        survives(accept_probs, DRAFT, DRAFT, token)
        survives(accept_residual, DRAFT, DRAFT, IDS, check=token)
    for out in hostile_arrays():
        survives(accept_residual, DRAFT, DRAFT, IDS, out=out)
    for wrong in ((), (DRAFT,), (DRAFT, DRAFT), (DRAFT, DRAFT, IDS, DRAFT)):
        for function in (speculative_decode_step, accept_residual, accept_probs):
            assert not survives(function, *wrong)
    assert not survives(speculative_decode_step, DRAFT[0], DRAFT[1], 0, out=DRAFT[0])


@pytest.mark.filterwarnings("ignore")  # Torch's, about kinds of tensors that are old or new
def test_the_public_functions_survive_tensors_of_every_kind() -> None:
    torch = need("torch")
    row = torch.tensor([0.5, 0.25, 0.25])
    ordinary = [row, row.double(), row[None], row > 0, row.int(), row * 1j, row.to(torch.bfloat16)]
    dtypes = (torch.float8_e4m3fn, torch.uint16, torch.bool)
    tensors = [
        *(*ordinary, torch.tensor(0.5), torch.empty(0), row.expand(2, 3), row.flip(0)),
        *(torch.zeros(3, dtype=dtype) for dtype in dtypes),
        *(row.to_sparse(), row.to("meta"), torch.quantize_per_tensor(row, 0.1, 0, torch.quint8)),
        *(torch._neg_view(row), (row * 1j).conj().imag, (row * 1j).conj()),
        *(row.clone().requires_grad_(), torch.nn.Parameter(row.clone())),
        torch.nested.nested_tensor([row, row[:2]], layout=torch.jagged),
    ]
    others = [DRAFT[0], [0.5, 0.25, 0.25], None]
    for draft, target in itertools.product([*tensors, *others], repeat=2):
        survives(speculative_decode_step, draft, target, 0)
        survives(accept_residual, draft, target, [0])
        survives(accept_probs, draft, target, [0])
    for tensor in tensors:
        survives(speculative_decode_step, row, row, tensor)
        survives(accept_residual, row[None], row[None], tensor)
        survives(accept_residual, row[None], row[None], [0], out=tensor)
