"""`torch.compile` and its kin: rows are an operator, all else breaks the graph or is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import draftverify
from draftverify import accept_residual, speculative_decode_step
from kinds import DTYPES, LIBRARIES, need, random_rows, refused

TORCH = next(library for library in LIBRARIES if library.name == "torch")
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@pytest.fixture(autouse=True)
def torch() -> Iterator[Any]:
    """Torch, with nothing compiled."""
    module = need("torch")
    module.compiler.reset()
    # Torch warns of what it deprecates in itself, and of the compiled step.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield module
    module.compiler.reset()


def tensors(dtype: str = "float32", shape: tuple[int, int] = (3, 50), seed: int = 0) -> Any:
    draft, target, ids = random_rows(dtype, shape, seed)
    return TORCH.array(draft), TORCH.array(target), need("torch").from_numpy(ids)


def compiled(function: Callable[..., Any], **settings: Any) -> Any:
    settings = {"fullgraph": True, "backend": "aot_eager"} | settings
    return need("torch").compile(function, **settings)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert all(map(need("torch").equal, found, expected))


@BACKENDS
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_part_of_a_graph(backend: str, dtype: str) -> None:
    def verify(draft: Any, target: Any, ids: Any) -> Any:
        found = accept_residual(draft * 1, target, ids)
        return found.residual.sum() + found.mass.sum(), found

    arguments = tensors(dtype)
    total, found = compiled(verify, backend=backend)(*arguments)
    assert_same(found, accept_residual(*arguments))
    assert total == verify(*arguments)[0]
    assert [result.dtype for result in found] == [
        need("torch").float64,
        arguments[0].dtype,
        need("torch").float64,
    ]


def test_rows_within_a_module_compiled_to_code() -> None:
    """With Torch's own compiler, which fuses what is around the operator."""

    def verify(draft_logits: Any, target_logits: Any, ids: Any) -> Any:
        draft, target = draft_logits.softmax(-1), target_logits.softmax(-1)
        return draft, target, accept_residual(draft, target, ids)

    torch = need("torch")
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([0, 7, 49], dtype=torch.int32)
    draft, target, found = compiled(verify, backend="inductor")(*logits, ids)
    assert_same(found, accept_residual(draft, target, ids))


def test_shapes_that_change(torch: Any) -> None:
    counts: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        counts.append(len(graph.graph.nodes))
        return graph

    verify = compiled(accept_residual, backend=backend, dynamic=True)
    for shape in ((2, 3), (5, 600), (7, 20), (4, 257)):
        arguments = tensors("float32", shape)
        assert_same(verify(*arguments), accept_residual(*arguments))
    assert len(counts) == 1
    # No row, and rows whose memory has gaps.
    empty = torch.ones(0, 5)
    assert verify(empty, empty, torch.ones(0, dtype=torch.int64)).residual.shape == (0, 5)
    draft, target, ids = tensors("float32", (4, 600))
    assert_same(
        verify(draft.T[::2].T, target[:, ::2], ids * 0),
        accept_residual(draft.T[::2].T, target[:, ::2], ids * 0),
    )


def test_errors_come_when_there_are_values(torch: Any) -> None:
    verify = compiled(accept_residual)
    draft, target, ids = tensors()
    bad = draft.clone()
    bad[1, 3] = torch.nan
    assert_same(verify(draft, target, ids), accept_residual(draft, target, ids))
    for arguments in (
        (bad, target, ids),
        (draft, target, ids + 50),
        (draft, target[:2], ids),
        (draft, target.double(), ids),
        (draft, target, ids.float()),
        (draft, target, ids[:2]),
        (draft[0], target[0], ids),
    ):
        with pytest.raises((TypeError, ValueError)) as eager:
            accept_residual(*arguments)
        refused(type(eager.value), verify, *arguments, says=(str(eager.value),))
    unchecked = compiled(lambda *rows: accept_residual(*rows, check=False))
    assert unchecked(bad, target, ids).mass.isnan().tolist() == [False, True, False]


def test_other_forms_of_ids(torch: Any) -> None:
    draft, target, ids = tensors()
    expected = accept_residual(draft, target, ids)
    for form in (ids.tolist(), tuple(ids.tolist()), ids.to(torch.int32), ids.to(torch.uint8)):
        verify = compiled(lambda d, t, form=form: accept_residual(d, t, form))
        assert_same(verify(draft, target), expected)
    # Not of Torch: the graph breaks, and all is well.
    for form in (ids.numpy(), list(ids)):
        broken = compiled(lambda d, t, form=form: accept_residual(d, t, form), fullgraph=False)
        assert_same(broken(draft, target), expected)
    for wrong in ([0, 1.5, 2], [0, True, 2]):
        broken = compiled(lambda d, t, form=wrong: accept_residual(d, t, form), fullgraph=False)
        refused(TypeError, broken, draft, target, says=("draft_token_ids: expected",))


@BACKENDS
def test_residuals_go_into_out(backend: str, torch: Any) -> None:
    def verify(draft: Any, target: Any, ids: Any, out: Any) -> Any:
        found = accept_residual(draft, target, ids, out=out)
        return found.residual is out, found, out * 2

    draft, target, ids = tensors()
    expected = accept_residual(draft, target, ids)
    room = torch.ones(6, 50)
    call = compiled(verify, backend=backend)
    same, found, doubled = call(draft, target, ids, room[::2])
    assert same
    assert_same(found, expected)
    assert torch.equal(room[::2], expected.residual)
    assert (room[1::2] == 1).all()
    assert torch.equal(doubled, expected.residual * 2)
    says = ("out: expected", "float64")
    refused(TypeError, call, draft, target, ids, room[::2].double(), says=says)
    says = ("out: expected", "(2, 50)")
    refused(ValueError, call, draft, target, ids, torch.ones(2, 50), says=says)


def test_no_gradient_is_recorded(torch: Any) -> None:
    draft, target, ids = tensors()
    draft.requires_grad_()

    def loss(draft: Any) -> Any:
        return draft.sum() + accept_residual(draft, target, ids).residual.sum()

    for function in (loss, compiled(loss)):
        (gradient,) = torch.autograd.grad(function(draft), draft)
        assert torch.equal(gradient, torch.ones_like(draft))
    operator = torch.ops.draftverify.accept_residual
    assert not any(result.requires_grad for result in operator(draft, target, ids))


@pytest.mark.parametrize("check", [True, False])
def test_the_operator_is_as_torch_wants_it(check: bool, torch: Any) -> None:
    draft, target, ids = tensors()
    compiled(accept_residual)(draft, target, ids)  # which defines it
    for rows in ((draft, target), (draft[:, :1].expand(3, 50), target.T.contiguous().T)):
        torch.library.opcheck(torch.ops.draftverify.accept_residual.default, (*rows, ids, check))
        torch.library.opcheck(
            torch.ops.draftverify.accept_residual.default,
            (rows[0].clone().requires_grad_(), rows[1], ids, check),
        )
        torch.library.opcheck(
            torch.ops.draftverify.accept_residual_into.default,
            (*rows, ids, torch.ones(3, 50), check),
        )


def test_batches_of_vmap(torch: Any) -> None:
    pairs = [tensors(seed=seed) for seed in range(4)]
    draft, target, ids = (torch.stack(parts) for parts in zip(*pairs, strict=True))

    def verify(draft: Any, target: Any, ids: Any) -> Any:
        return tuple(torch.vmap(accept_residual, in_dims=(2, 0, None))(draft, target, ids))

    found = compiled(verify)(draft.movedim(0, 2), target, ids[0])
    for place in range(4):
        expected = accept_residual(draft[place] + 0, target[place], ids[0], check=False)
        assert_same([part[place] for part in found], list(expected))
    with pytest.raises(TypeError, match=r"^draft_probs: expected .* torch\.vmap"):
        verify(draft.movedim(0, 2), target, ids[0])


def other_calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Make a call of every other public function that takes arrays."""
    torch = need("torch")
    draft, target, ids = tensors("float32", (8, 50))
    rates = torch.tensor([0.25, 0.5, 0.75])
    chains = draft[:6].view(2, 3, 50), target.view(2, 4, 50), ids[:6].view(2, 3)
    uniforms = torch.linspace(0, 0.9, 8).view(2, 4)
    dv: Any = draftverify
    return {
        "speculative_decode_step": (dv.speculative_decode_step, (draft[0], target[0], int(ids[0]))),
        "accept_probs": (dv.accept_probs, (draft, target, ids)),
        "verify_chain": (dv.verify_chain, (*chains, uniforms)),
        "verify_chain_logits": (dv.verify_chain_logits, (*chains, uniforms)),
        "acceptance_rate": (dv.acceptance_rate, (draft, target)),
        "expected_tokens": (dv.expected_tokens, (rates, 3)),
        "speedup": (dv.speedup, (rates, 3, 0.1)),
        "best_draft_length": (dv.best_draft_length, (rates, 0.1)),
        "expected_tokens_by_position": (dv.expected_tokens_by_position, (rates,)),
        "expected_tokens_block": (dv.expected_tokens_block, (rates,)),
    }


NAMES = (
    "speculative_decode_step",
    "accept_probs",
    "verify_chain",
    "verify_chain_logits",
    "acceptance_rate",
    "expected_tokens",
    "speedup",
    "best_draft_length",
    "expected_tokens_by_position",
    "expected_tokens_block",
)
OTHERS = pytest.mark.parametrize("name", NAMES)


def test_all_other_functions_are_tried() -> None:
    assert tuple(other_calls()) == NAMES


def values(answer: Any) -> list[Any]:
    parts = answer.values() if isinstance(answer, dict) else answer
    parts = parts if isinstance(answer, dict | tuple) else [answer]
    return [np.asarray(part).tolist() for part in parts]


@OTHERS
def test_other_functions_break_the_graph(name: str, torch: Any) -> None:
    function, (first, *others) = other_calls()[name]
    call = compiled(lambda first: function(first * 1, *others), fullgraph=False)
    for _ in range(2):
        found, expected = call(first), function(first, *others)
        assert type(found) is type(expected)
        assert values(found) == values(expected)
        first = first.flip(-1).contiguous() if name != "speculative_decode_step" else first * 0.5
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="draftverify") as caught:
        compiled(lambda first: function(first * 1, *others))(first)
    if name != "speculative_decode_step":  # which is compiled itself, and says nothing to Torch
        assert "draftverify: expected a call that may break the graph, got one" in str(caught.value)


@OTHERS
def test_traces_that_cannot_break_refuse_other_functions(name: str, torch: Any) -> None:
    function, arguments = other_calls()[name]
    make_fx = need("torch.fx.experimental.proxy_tensor").make_fx
    first, *others = arguments
    for record in (
        lambda: torch.jit.trace(lambda first: values(function(first, *others)), (first,)),
        lambda: make_fx(lambda first: function(first, *others))(first),
        lambda: make_fx(lambda first: function(first, *others), pre_dispatch=True)(first),
    ):
        refused(TypeError, record, says=("arguments: expected", "torch.jit.trace"))


def test_other_records_hold_the_operator(torch: Any) -> None:
    class Verify(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *rows: Any) -> Any:
            return tuple(accept_residual(*rows))

    make_fx = need("torch.fx.experimental.proxy_tensor").make_fx
    arguments, later = tensors(), tensors(seed=1)
    verify = Verify()
    records = [torch.export.export(verify, arguments, strict=strict) for strict in (False, True)]
    calls = [record.module() for record in records]
    calls += [
        make_fx(verify, tracing_mode=mode, pre_dispatch=early)(*arguments)
        for mode in ("real", "fake")
        for early in (False, True)
    ]
    calls.append(torch.jit.trace(verify, arguments))
    for call in calls:
        assert_same(tuple(call(*later)), verify(*later))


def test_fake_tensors_outside_of_records() -> None:
    mode = need("torch._subclasses.fake_tensor").FakeTensorMode()
    rows = [mode.from_tensor(tensor) for tensor in tensors()]
    refused(TypeError, accept_residual, *rows, says=("draft_probs: expected", "FakeTensor"))
    refused(
        TypeError,
        speculative_decode_step,
        rows[0][0],
        rows[1][0],
        0,
        says=("draft_probs: expected", "FakeTensor"),
    )


def test_modes_that_only_watch() -> None:
    """A mode that counts or prints what operators do is no record."""
    watched: list[str] = []

    class Watch(need("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, _: Any, args: Any, kwargs: Any = None) -> Any:
            watched.append(str(operator))
            return operator(*args, **(kwargs or {}))

    arguments = tensors()
    expected = accept_residual(*arguments)
    with Watch():
        found = accept_residual(*arguments)
        step = speculative_decode_step(arguments[0][0], arguments[1][0], int(arguments[2][0]))
    assert_same(found, expected)
    assert step["accept_prob"] == expected.accept_prob[0]
