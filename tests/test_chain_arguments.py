"""Numbers that go with chains, from whichever library and wherever they lie, and odd ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from draftverify import accept_residual, verify_chain, verify_chain_logits
from kinds import need, refused

RNG = np.random.default_rng(7)
DRAFT = RNG.normal(0.0, 1.0, (3, 2, 40)).astype(np.float32)
TARGET = RNG.normal(0.0, 1.0, (3, 3, 40)).astype(np.float32)
# Numbers that bfloat16 has, and that matter here.
ARGUMENTS: dict[str, Any] = {
    "draft_token_ids": DRAFT.argmax(axis=-1),
    "uniforms": np.array([[0.5, 0.75, 0.25], [0.125, 0.875, 0.5], [0.75, 0.25, 0.625]]),
    "temperature": np.array([1.5, 0.5, 1.0]),
    "draft_temperature": np.array([0.75, 1.0, 2.0]),
    "top_k": np.array([12, 0, 30]),
    "top_p": np.array([0.75, 0.875, 1.0]),
    "min_p": np.array([0.0, 0.0625, 0.125]),
    "lengths": np.array([2, 1, 2]),
}
FLOATS = ("temperature", "draft_temperature", "top_p", "min_p")
INTEGERS = ("draft_token_ids", "top_k", "lengths")


def verdict(**changes: Any) -> list[Any]:
    found = verify_chain_logits(DRAFT, TARGET, **(ARGUMENTS | changes))
    return [found.num_accepted.tolist(), found.token_ids.tolist()]


def changed(name: str, value: Any) -> list[Any]:
    return verdict(**{name: value})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_settings_are_their_numbers(name: str, dtype: str) -> None:
    torch = need("torch")
    numbers = torch.tensor(ARGUMENTS[name], dtype=getattr(torch, dtype))
    expected = verdict()
    assert verdict(**{name: numbers}) == expected
    assert verdict(**{name: numbers.repeat_interleave(2)[::2]}) == expected
    assert verdict(**{name: numbers[0]}) == verdict(**{name: float(numbers[0])})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_torch_floats_are_no_integers(dtype: str) -> None:
    torch = need("torch")
    for name in INTEGERS:
        floats = torch.tensor(ARGUMENTS[name], dtype=getattr(torch, dtype))
        refused(TypeError, changed, name, floats, says=(name, f"got dtype {dtype}"))
    ids, rows = torch.tensor([1, 2], dtype=getattr(torch, dtype)), np.full((2, 4), 0.25)
    refused(TypeError, accept_residual, rows, rows, ids, says=("draft_token_ids", dtype))
    uniforms = torch.tensor(ARGUMENTS["uniforms"], dtype=getattr(torch, dtype))
    if dtype == "float32":
        assert verdict(uniforms=uniforms) == verdict()
    else:
        refused(TypeError, changed, "uniforms", uniforms, says=("uniforms", f"got dtype {dtype}"))


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_numbers_may_lie_anywhere(name: str) -> None:
    """At an odd address, in the other byte order, with gaps, from the end to the front."""
    numbers, expected = ARGUMENTS[name], verdict()
    buffer = np.zeros(numbers.nbytes + 1, np.uint8)
    odd = buffer[1:].view(numbers.dtype).reshape(numbers.shape)
    odd[...] = numbers
    assert not odd.flags.aligned
    read_only = odd.copy()
    read_only.flags.writeable = False
    others = [
        odd,
        numbers.astype(numbers.dtype.newbyteorder()),
        np.repeat(numbers, 2, axis=-1)[..., ::2],
        numbers[::-1].copy()[::-1],
        np.asfortranarray(numbers),
        read_only,
    ]
    for other in others:
        assert verdict(**{name: other}) == expected


def test_ids_of_rows_may_lie_at_an_odd_address() -> None:
    rows = np.full((2, 4), 0.25)
    ids = np.zeros(17, np.uint8)[1:].view(np.int64)
    ids[:] = [1, 3]
    assert not ids.flags.aligned
    assert accept_residual(rows, rows, ids).accept_prob.tolist() == [1.0, 1.0]


HUGE, OTHERS = 10**30, 10**1200


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("draft_token_ids", [[3, 17], [39, HUGE], [5, 6]], f"got {HUGE} at index 1, 1"),
        ("draft_token_ids", [[3, 17], [39], [5, 6]], "of one length"),
        ("draft_token_ids", np.array([[3, 2], [1, 2], [2**63, 1]], np.uint64), "at index 2, 0"),
        ("lengths", [2, HUGE, 2], f"got {HUGE} at index 1"),
        ("lengths", [2, OTHERS, 2], "one of 3987 bits at index 1"),
        ("top_k", HUGE, f"got {HUGE}"),
        ("top_k", OTHERS, "one of 3987 bits"),
        ("top_k", [-HUGE, 0, 0], f"got {-HUGE} at index 0"),
        ("uniforms", [[0.5, 0.5], [0.5], [0.5, 0.5]], "of one length"),
        ("uniforms", [[0.5] * 3, [0.5] * 3, [0.5, 0.5, 10**400]], "beyond float64"),
        ("temperature", [1.0, 10**400, 1.0], "beyond float64"),
        ("temperature", 10**400, "one of 1329 bits"),
        ("temperature", 1e301, "up to 1e300"),
        ("draft_temperature", np.nextafter(1e300, np.inf), "up to 1e300"),
        ("top_p", -OTHERS, "one of 3987 bits"),
        ("min_p", [[0.5], [0.5, 0.5]], "of one length"),
        ("method", "Standard", "got 'Standard'"),
    ],
)
def test_numbers_out_of_range(name: str, value: Any, says: str) -> None:
    refused(ValueError, changed, name, value, says=(f"{name}: ", says))


def endless() -> list[Any]:
    """Make a list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("name", ["draft_token_ids", "uniforms", "temperature", "lengths", "top_k"])
def test_lists_without_end(name: str) -> None:
    refused(TypeError, changed, name, endless(), says=(f"{name}: ",))


def test_rows_without_end() -> None:
    refused(
        TypeError,
        lambda: verify_chain(endless(), endless(), [[0]], [[0.5, 0.5]]),
        says=("draft_probs: ", "deep"),
    )


@pytest.mark.parametrize("value", [np.ones(2), None, "yes", 1, [True]])
def test_flags_are_bools(value: Any) -> None:
    refused(TypeError, changed, "filter_draft", value, says=("filter_draft: ", "True or False"))
    assert verdict(filter_draft=np.True_) == verdict(filter_draft=True)


@pytest.mark.parametrize("value", [np.array(["block"]), None, 1, ["block"], b"block"])
def test_methods_are_names(value: Any) -> None:
    refused(TypeError, changed, "method", value, says=("method: ", "standard, block, greedy"))


def test_the_name_of_a_method_runs_no_code() -> None:
    """A subclass of str is taken for its characters, whatever it says of itself."""

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            message = "code of the caller ran"
            raise AssertionError(message)

        def __hash__(self) -> int:
            message = "code of the caller ran"
            raise AssertionError(message)

        __str__ = __repr__ = __hash__  # type: ignore[assignment]

    assert verdict(method=Name("block")) == verdict(method="block")


def test_traced_numbers_are_refused_in_one_line() -> None:
    jax = need("jax")

    def traced(numbers: Any) -> Any:
        refused(
            TypeError,
            changed,
            "draft_token_ids",
            numbers,
            says=("draft_token_ids: ", "jax.pure_callback"),
        )
        return numbers

    jax.jit(traced)(ARGUMENTS["draft_token_ids"].astype(np.int32))


def test_tensors_that_a_mode_forbids_to_read() -> None:
    torch = need("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows, ids = torch.full((1, 2, 4), 0.25), torch.tensor([[0]])
    uniforms, draft = torch.full((1, 2), 0.5), rows[:, :1]
    with FakeTensorMode():
        refused(
            TypeError,
            lambda: verify_chain(draft, rows, ids, uniforms),
            says=("draft_probs",),
        )
        refused(
            TypeError,
            lambda: verify_chain(np.ones((1, 1, 4)), np.ones((1, 2, 4)), ids, [[0.5, 0.5]]),
            says=("draft_token_ids",),
        )


@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 3.0])
def test_what_just_reaches_a_filter_is_kept(temperature: float) -> None:
    """Probabilities in whole hundredths by way of their logarithms: ties are no matter of luck."""
    weights = np.array([0.4, 0.2, 0.2, 0.1, 0.06, 0.04])
    logits = np.log(weights)[None, None] * temperature

    def drawn(uniform: float, **filters: Any) -> int:
        found = verify_chain_logits(
            None, logits, np.empty((1, 0), int), [[uniform]], temperature=temperature, **filters
        )
        return int(found.token_ids[0, 0])

    for last, weight in enumerate(weights):
        equal = int((weights >= weight).sum()) - 1
        assert drawn(np.nextafter(1.0, 0.0), min_p=weight / weights[0]) == equal
        assert drawn(np.nextafter(1.0, 0.0), top_p=min(1.0, weights[: last + 1].sum())) == last


def test_other_float_environments_change_nothing() -> None:
    """Chains of the smallest probabilities, with subnormal numbers switched off by the caller."""
    need("torch")
    code = """
import numpy as np, torch
from draftverify import verify_chain, verify_chain_logits
draft = np.array([[[1e-310, 1.0 - 1e-310]]])
target = np.array([[[2e-310, 1.0 - 2e-310], [0.5, 0.5]]])
def verdicts():
    return [
        verify_chain(draft, target, [[0]], [[uniform, 0.5]], method=method).token_ids.tolist()
        for method in ("standard", "block") for uniform in (0.0, 0.75, 1e-310)
    ] + smallest()
one, tiny = np.array([[[1.0, 0.0]]]), np.array([[[1e-41, 1.0], [0.5, 0.5]]])
single, ids = np.array([[1e-40, 0.25]], np.float32), np.array([[0]])
def smallest():
    found = []
    for numbers in (single, torch.from_numpy(single), torch.from_numpy(single)[None, 0, :]):
        for tokens in (ids, [[0]], torch.from_numpy(ids)):
            found.append(verify_chain(one, tiny, tokens, numbers).num_accepted.tolist())
    for call in (
        lambda: verify_chain(one, tiny, ids, np.array([[-1e-310, 0.25]])),
        lambda: verify_chain(one, tiny, ids, -single),
        lambda: verify_chain_logits(one, tiny, ids, single, temperature=-5e-324),
        lambda: verify_chain_logits(one, tiny, ids, single, draft_temperature=-5e-324),
    ):
        try:
            found.append(call())
        except ValueError as error:
            found.append(str(error))
    return found
expected = verdicts()
assert expected[-13:-4] == [[0]] * 9
assert all(" expected " in words for words in expected[-4:]), expected
assert torch.set_flush_denormal(True)
assert verdicts() == expected, (verdicts(), expected)
assert np.float64(1e-310) * 1 == 0, "switched off"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_memory_is_an_error() -> None:
    """A process that runs out of memory gets an exception and lives on."""
    code = """
import resource
import numpy as np
from draftverify import accept_residual, verify_chain, verify_chain_logits
from draftverify import acceptance_rate, set_num_threads
set_num_threads(1)
def limit(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
many = 500_000
rows = np.broadcast_to(np.full((1, 1), 1.0), (many, 1))
ids, uniforms = np.zeros(many, np.int64), np.full(2 * many, 0.5)
indptr = np.arange(many + 1)
calls = [
    lambda: verify_chain(rows, rows, ids, uniforms, indptr=indptr, bonus_token_ids=ids),
    lambda: verify_chain_logits(rows, rows, ids, uniforms, indptr=indptr, bonus_token_ids=ids),
    lambda: verify_chain(rows[:many], rows[:many], ids, uniforms[:many + 1], indptr=[0, many],
        method="block", bonus_token_ids=[0]),
    lambda: verify_chain_logits(rows, rows, ids, uniforms[:many + 1], indptr=[0, many],
        bonus_token_ids=[0]),
    lambda: acceptance_rate(rows, rows),
    lambda: accept_residual(rows, rows, ids),
]
failed = 0
for call in calls:
    for size in 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256:
        limit(size << 20)
        try:
            call()
        except MemoryError:
            failed += 1
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(failed)
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of memory are Linux'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
