"""`draftverify.testing`: what is shared between drafting and verifying is found."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import plain_chain
from draftverify import testing
from draftverify.testing import COUPLINGS, Instance, total_variation

Floats = NDArray[np.float64]
ROWS = 4096


def error(instance: Instance, coupling: str, cells: int) -> Fraction:
    length = instance.draft_length

    def step(noise: Floats) -> Any:
        draft_noise, uniforms = COUPLINGS[coupling](noise, length)
        return testing.speculate(plain_chain.verify_chain, instance, draft_noise, uniforms)

    grid = [cells] * (2 * length + 1)
    found = testing.law_of_step(step, instance.target, length, grid)
    return total_variation(found.law, testing.target_law(instance.target, length + 1))


@pytest.mark.parametrize(
    ("coupling", "two", "three"),
    [
        ("independent", "0", "0"),
        # T2 by hand: the first token is drafted below 2/3 and then accepted below 1/2, that is
        # with 3/4 and not 1/2: the law of the first token is (1/2, 1/2) and not (1/3, 2/3).
        ("draft and acceptance", "1/6", "1/5"),
        ("acceptance and replacement", "1/9", "1/10"),
        ("draft and replacement", "1/6", "7/20"),
    ],
)
def test_shared_numbers_change_the_law(coupling: str, two: str, three: str) -> None:
    assert error(testing.t2(1), coupling, 6) == Fraction(two)
    assert error(testing.t3(1), coupling, 10) == Fraction(three)
    # All thresholds of these models are eighths.
    eighths = error(testing.dyadic(1), coupling, 8)
    assert (eighths == 0) is (coupling == "independent")


def test_every_way_of_sharing_is_tried() -> None:
    assert len(COUPLINGS) == 4
    noise = np.random.default_rng(1).random((5, 5))
    for name, coupling in COUPLINGS.items():
        draft_noise, uniforms = coupling(noise, 2)
        assert (draft_noise.shape, uniforms.shape) == ((5, 2), (5, 3))
        used = [*draft_noise.T.tolist(), *uniforms.T.tolist()]
        repeated = len(used) - len({tuple(column) for column in used})
        assert (repeated > 0) is (name != "independent")


def test_two_drafted_tokens_in_a_step() -> None:
    models = testing.t2(2)
    assert error(models, "draft and acceptance", 6) == Fraction(1, 6)

    def step(noise: Floats) -> Any:  # one number drafts both tokens
        draft_noise = np.repeat(noise[:, :1], 2, axis=1)
        return testing.speculate(plain_chain.verify_chain, models, draft_noise, noise[:, 1:])

    found = testing.law_of_step(step, models.target, 2, (3, 2, 2, 3))
    assert total_variation(found.law, testing.target_law(models.target, 3)) > 0


def recorded(columns: int = 5, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).random((ROWS, columns))


def test_independent_numbers_pass() -> None:
    for seed in range(5):
        numbers = recorded(6, seed)
        assert testing.shared_noise(numbers[:, :2], numbers[:, 2:]) == []
    gumbel = -np.log(-np.log(recorded(12, 99).reshape(ROWS, 3, 4)))
    assert testing.shared_noise(gumbel, recorded(4)) == []
    assert testing.shared_noise(recorded(1, 7)[:, 0], recorded(2, 8).astype(np.float32)) == []


SHARED: dict[str, Callable[[Floats], NDArray[Any]]] = {
    "equal": lambda u: u,
    "equal in float32": lambda u: u.astype(np.float32),
    "one minus": lambda u: 1 - u,
    "exponential": lambda u: -np.log(u),
    "exponential of one minus": lambda u: -np.log1p(-u),
    "Gumbel": lambda u: -np.log(-np.log(u)),
    "the next rows": lambda u: np.roll(u, -3),
    "one minus the next rows": lambda u: 1 - np.roll(u, -3),
    "half of the rows": lambda u: np.where(np.arange(ROWS) % 2, u, recorded(1, 5)[:, 0]),
    "distance from the middle": lambda u: abs(u - 0.4),
    "lower bits": lambda u: u * 4 % 1,
    "a fifth of another": lambda u: 0.2 * u + 0.8 * recorded(1, 6)[:, 0],
}
KINDS = {
    "equal": "equal",
    "equal in float32": "equal",
    "the next rows": "reused",
    "one minus": "reused",
    "one minus the next rows": "reused",
    "half of the rows": "equal",
    "distance from the middle": "rank",
    "lower bits": "rank",
}


@pytest.mark.parametrize("how", SHARED)
def test_what_is_shared_is_found(how: str) -> None:
    numbers = recorded(5)
    uniforms = numbers[:, 2:].copy()
    shared = SHARED[how](numbers[:, 1])
    uniforms[:, 1] = shared
    found = testing.shared_noise(numbers[:, :2], uniforms)
    assert [(each.first, each.second) for each in found] == [
        ("draft_noise[:, 1]", "uniforms[:, 1]")
    ]
    assert found[0].kind == KINDS.get(how, "rank")
    assert str(found[0]).startswith("draft_noise[:, 1] and uniforms[:, 1] depend on each other: ")
    # The same between what accepts and what replaces.
    uniforms = numbers[:, 1:].copy()
    uniforms[:, 2] = shared
    found = testing.shared_noise(numbers[:, :1], uniforms)
    assert [(each.first, each.second) for each in found] == [("uniforms[:, 0]", "uniforms[:, 2]")]


def test_dependence_without_correlation_is_found() -> None:
    numbers = recorded(3)
    uniforms = numbers[:, 1:].copy()
    uniforms[:, 0] = abs(numbers[:, 0] - 0.5)
    (found,) = testing.shared_noise(numbers[:, :1], uniforms)
    assert found.kind == "table"
    assert found.strength > 1


def test_gumbel_noise_of_one_entry_of_the_vocabulary() -> None:
    numbers = recorded(8)
    noise = -np.log(-np.log(numbers[:, :6].reshape(ROWS, 2, 3)))
    (found,) = testing.shared_noise(noise, numbers[:, [4, 7]])
    assert (found.first, found.second) == ("draft_noise[:, 1, 1]", "uniforms[:, 0]")
    assert (found.kind, round(found.strength, 6)) == ("rank", 1.0)


def test_records_that_say_nothing_are_refused() -> None:
    numbers = recorded(2)
    with pytest.raises(ValueError, match="draft_noise: expected at least 512 rows, got 511"):
        testing.shared_noise(numbers[:511], numbers[:511])
    with pytest.raises(ValueError, match=r"uniforms: expected as many rows .* \[4095, 4096\]"):
        testing.shared_noise(numbers, numbers[1:])
    for bad in (np.full((ROWS, 1), np.nan), np.arange(ROWS) // 3):
        with pytest.raises(ValueError, match=r"uniforms\[:.*: expected numbers that differ"):
            testing.shared_noise(numbers, bad)
