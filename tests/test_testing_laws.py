"""The exact part of `draftverify.testing`: rules in fractions, against known numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from draftverify import testing
from draftverify.testing import Emitted, Instance, Thresholds, total_variation

RULES = {"standard": testing.standard, "block": testing.block}
LENGTHS = [1, 2, 3]
RANDOM = [testing.random_models(seed, vocabulary=3 + seed % 2) for seed in range(4)]
SMALL = [testing.t2(), testing.t3(), testing.t4(), testing.dyadic(), *RANDOM]
# Wrong rules and where they show. T2 and T3 are blind to some: their residual is one token.
SHOWING = {
    "token_dependent_truncation": testing.t3(1),
    "mixed_proposals": testing.t3(1),
    "one_hot_acceptance": testing.t3(1),
    "block_early_stop": testing.t2(2),
    "block_unscaled_residual": testing.t4(2),
    "block_mass_of_the_same_row": testing.dyadic(2),
    "block_uncapped_last_ratio": testing.t2(2),
    "nothing_subtracted": testing.t2(1),
    "overlap_normalised": testing.t2(1),
    "names_swapped": testing.t2(1),
    "replacement_from_the_next_row": testing.t2(1),
}


def emitted(rule: Any, instance: Instance) -> Emitted:
    return testing.emitted_law(rule, instance.draft, instance.target, instance.draft_length)


def distance(found: Emitted, instance: Instance) -> Fraction:
    law = testing.target_law(instance.target, instance.draft_length + 1)
    return total_variation(found.law, law)


def first_token(found: Emitted) -> list[str]:
    shares: dict[int, Fraction] = {}
    for sequence, probability in found.law.items():
        shares[sequence[0]] = shares.get(sequence[0], Fraction(0)) + probability
    return [str(share) for _, share in sorted(shares.items())]


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("instance", SMALL, ids=str)
def test_right_rules_emit_the_law_of_the_target(
    instance: Instance, name: str, one_hot: bool
) -> None:
    rule = testing.one_hot(RULES[name]) if one_hot else RULES[name]
    found = emitted(rule, instance)
    assert distance(found, instance) == 0
    assert sum(found.law.values()) == sum(found.outcomes.values()) == 1


GOLDEN = [
    # instance, drafted, kept by token verification, kept by block verification
    (testing.t2, 2, "10/9", "11/9"),
    (testing.t2, 3, "38/27", "5/3"),
    (testing.t2, 4, "130/81", "166/81"),
    (testing.t2, 5, "422/243", "64/27"),
    (testing.t3, 2, "119/100", "5/4"),
    (testing.t3, 3, "1533/1000", "339/200"),
    (testing.t4, 2, "24/25", "103/100"),
    (testing.t4, 3, "147/125", "673/500"),
]


@pytest.mark.parametrize(("make", "length", "token", "block"), GOLDEN)
def test_kept_tokens_as_published(make: Any, length: int, token: str, block: str) -> None:
    instance = make(length)
    assert emitted(testing.standard, instance).expected_accepted == Fraction(token)
    assert emitted(testing.block, instance).expected_accepted == Fraction(block)


def test_the_outcomes_of_two_drafted_tokens_in_a_block() -> None:
    found = emitted(testing.block, testing.t2(2))
    assert {key: str(value) for key, value in found.outcomes.items()} == {
        (0, 0, 0): "1/27",
        (0, 0, 1): "2/27",
        (0, 1, 0): "2/27",
        (0, 1, 1): "4/27",
        (1,): "1/3",
        (1, 0, 0): "1/27",
        (1, 0, 1): "2/27",
        (1, 1): "1/9",
        (1, 1, 0): "1/27",
        (1, 1, 1): "2/27",
    }
    token = emitted(testing.standard, testing.t2(2)).outcomes
    different = {
        key for key in found.outcomes.keys() | token if token.get(key) != found.outcomes.get(key)
    }
    assert {key: str(token[key]) for key in sorted(different)} == {
        (0, 1): "1/9",
        (0, 1, 0): "1/27",
        (0, 1, 1): "2/27",
    }


@pytest.mark.parametrize("instance", SMALL, ids=str)
def test_a_block_keeps_at_least_as_many_tokens(instance: Instance) -> None:
    for length in LENGTHS[: 3 if instance.vocabulary < 4 else 2]:
        each = Instance(instance.name, instance.draft, instance.target, length)
        block = emitted(testing.block, each).expected_accepted
        token = emitted(testing.standard, each).expected_accepted
        assert block == token if length == 1 else block >= token
        certain = [emitted(testing.one_hot(rule), each) for rule in RULES.values()]
        assert certain[0].expected_accepted == certain[1].expected_accepted


def test_greedy_verification_emits_the_most_probable_tokens() -> None:
    instance = testing.dyadic(2)
    found = emitted(testing.greedy, instance)
    # The first row is (3, 3, 1, 1) / 8: the lowest id of two. The second is (4, 4, 0, 0) / 8.
    assert {key[0] for key in found.outcomes} == {0}
    kept = instance.draft(())[0] * (1 + instance.draft((0,))[0])
    assert found.expected_accepted == kept
    assert found.outcomes[0, 0, 0] == kept - instance.draft(())[0]


def test_every_wrong_rule_has_a_place_where_it_shows() -> None:
    assert SHOWING.keys() == testing.WRONG_RULES.keys()


@pytest.mark.parametrize("name", SHOWING)
def test_wrong_rules_are_caught(name: str) -> None:
    rule = testing.WRONG_RULES[name]
    assert distance(emitted(rule, SHOWING[name]), SHOWING[name]) > 0


def test_random_models_show_every_wrong_rule() -> None:
    models = testing.ready_instances()[-1]
    errors = {distance(emitted(rule, models), models) for rule in testing.WRONG_RULES.values()}
    assert 0 not in errors
    assert len(errors) == len(testing.WRONG_RULES)


def test_wrong_rules_err_by_the_known_amounts() -> None:
    wrong = testing.WRONG_RULES
    for length, kept, error in ((2, "4/3", "1/9"), (3, "16/9", "5/81")):
        two = testing.t2(length)
        found = emitted(wrong["block_uncapped_last_ratio"], two)
        assert found.expected_accepted == Fraction(kept)
        assert found.expected_accepted > emitted(testing.block, two).expected_accepted
        assert distance(found, two) == Fraction(error)
    three = testing.t3(1)
    found = emitted(wrong["mixed_proposals"], three)
    assert first_token(found) == ["31/80", "33/80", "1/5"]
    assert distance(found, three) == Fraction(9, 80)
    found = emitted(wrong["token_dependent_truncation"], three)
    assert first_token(found) == ["11/20", "3/20", "3/10"]
    assert distance(found, three) == Fraction(3, 20)


def test_a_rule_may_be_given_by_its_outcomes() -> None:
    def ignore_the_draft(
        _: tuple[int, ...], __: tuple[Any, ...], target: tuple[Any, ...]
    ) -> dict[tuple[int, int], Fraction]:
        return {(0, final): share for final, share in enumerate(target[0])}

    for instance in SMALL:
        found = emitted(ignore_the_draft, instance)
        assert distance(found, instance) == 0
        assert found.expected_accepted == 0


def test_random_models_are_what_they_promise() -> None:
    for seed in range(20):
        vocabulary = 3 + seed % 4
        models = testing.random_models(seed, vocabulary)
        contexts = [(), *((t,) for t in range(vocabulary)), (0, 1), (1, 0)]
        for context in contexts:
            draft, target = models.draft(context), models.target(context)
            assert sum(draft) == sum(target) == 1
            assert len(draft) == len(target) == vocabulary
            assert sum(b > a for a, b in zip(draft, target, strict=True)) >= 2
        assert 0 in models.target(())
        assert len({(models.draft(c), models.target(c)) for c in contexts}) > len(contexts) // 2
        again = testing.random_models(seed, vocabulary)
        assert [again.target(c) for c in contexts] == [models.target(c) for c in contexts]
    assert any(0 in testing.random_models(seed).draft(()) for seed in range(20))
    for vocabulary in (2, 17):
        with pytest.raises(
            ValueError, match=f"vocabulary: expected 3 to 16 tokens, got {vocabulary}"
        ):
            testing.random_models(1, vocabulary)


def test_dyadic_models_are_what_they_promise() -> None:
    powers = {Fraction(1, 2**k) for k in range(4)}
    models = testing.dyadic(2)
    zeros, atoms = set(), set()
    for context in [(), *((t,) for t in range(4)), (1, 2), (3, 3)]:
        draft, target = models.draft(context), models.target(context)
        assert powers.issuperset(draft)
        excess = [max(b - a, Fraction(0)) for a, b in zip(draft, target, strict=True)]
        assert sum(excess) in powers
        zeros.add(target.count(Fraction(0)))
        atoms.add(len(excess) - excess.count(Fraction(0)))
        allowed = {Fraction(each, 4) for each in (0, 2, 3, 4)}
        for token in range(4):
            assert testing.standard((token,), (draft,), (target, target)).passes[0] in allowed
    assert max(zeros) == 2
    assert max(atoms) == 2
    found = {
        each
        for first in range(4)
        for second in range(4)
        for each in testing.block(
            (first, second),
            (models.draft(()), models.draft((first,))),
            tuple(models.target(c) for c in ((), (first,), (first, second))),
        ).passes
    }
    assert found == {Fraction(0), Fraction(1, 2), Fraction(1)}


def test_thresholds_without_drafted_tokens_draw_from_the_target() -> None:
    for rule in (testing.standard, testing.block, *testing.WRONG_RULES.values()):
        found = emitted(rule, testing.t3(0))
        assert list(found.law.values()) == list(testing.t3().target(()))


def test_what_is_no_distribution_is_refused() -> None:
    two = testing.t2(1)
    half = Fraction(1, 2)

    def nothing(*_: object) -> Thresholds:
        return Thresholds((half,), ((half, half), (half, half)))

    with pytest.raises(ValueError, match=r"model: expected fractions .* got \(1/2, 1/3\)"):
        testing.emitted_law(nothing, two.draft, lambda _: (half, Fraction(1, 3)), 1)
    with pytest.raises(ValueError, match=r"draft: expected rows of 3 entries"):
        testing.emitted_law(nothing, two.draft, testing.t3().target, 1)
    for outcomes, message in (
        ({(0, 0): half}, r"expected probabilities that sum to 1 for \(0,\), got 1/2"),
        ({(2, 0): Fraction(1)}, "expected 0 to 1 kept tokens and an id below 2 .* got 2 and 0"),
        ({(0, 2): Fraction(1)}, "expected 0 to 1 kept tokens and an id below 2 .* got 0 and 2"),
    ):
        with pytest.raises(ValueError, match=message):
            testing.emitted_law(lambda *_, o=outcomes: o, two.draft, two.target, 1)
