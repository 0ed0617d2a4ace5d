"""The example `examples/generate.py`: its loop emits the target's law; with weights, it runs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everything import Everything, softmax
from kinds import lacking, need, need_weights

EXAMPLES = Path(__file__).parents[1] / "examples"
VOCABULARY = 3


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    need("torch")
    if not EXAMPLES.exists():
        lacking("examples are not beside the tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("generate")


def table(seed: int) -> Any:
    """Make a model whose row depends on the last two tokens."""
    return need("torch").from_numpy(np.random.default_rng(seed).normal(0, 1.5, (3, 3, VOCABULARY)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("method", ["standard", "block"])
def test_the_loop_emits_the_law_of_plain_sampling(
    monkeypatch: pytest.MonkeyPatch, example: Any, method: str, temperature: float
) -> None:
    torch = need("torch")
    draft, target = table(1), table(2)
    everything = Everything()
    verify = example.verify_chain_logits

    class Branches:
        def token(self, probs: Any) -> int:
            return everything.choose(probs.tolist())

        def uniforms(self, number: int) -> Any:
            return np.zeros(number)

    def watched(rows: Any, others: Any, ids: Any, uniforms: Any, **options: Any) -> Any:
        scaled = rows / options["temperature"], others / options["temperature"]
        numbers = everything.uniforms(*scaled, np.array(ids[0]), method)
        assert np.shape(uniforms) == (1, len(numbers))
        return verify(rows, others, ids, [numbers], **options)

    monkeypatch.setattr(example, "verify_chain_logits", watched)

    def rows_of(context: list[int], drafted: int) -> Any:
        ends = range(len(context) - drafted, len(context) + 1)
        return torch.stack([target[context[end - 2], context[end - 1]] for end in ends])

    def once() -> list[int]:
        context = [0, 1]
        while len(context) < 5:
            step = example.speculate(
                context,
                lambda ids: draft[ids[-2], ids[-1]],
                rows_of,
                Branches(),
                draft_length=min(2, 5 - len(context)),
                method=method,
                temperature=temperature,
            )
            context = context + step.emitted
        return context[2:5]

    everything.run(once)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        law = {
            (*ids, token): share
            * float(softmax(target[tuple([0, 1, *ids][-2:])] / temperature)[token])
            for ids, share in law.items()
            for token in range(VOCABULARY)
        }
    assert set(everything.law) == set(law)
    for ids, share in law.items():
        assert abs(everything.law[ids] - share) < 1e-9, ids


def test_greedy_emits_the_most_probable_tokens(example: Any) -> None:
    torch = need("torch")
    draft, target = table(1), table(2)
    context = [0, 1]
    for _ in range(5):
        step = example.speculate(
            context,
            lambda ids: draft[ids[-2], ids[-1]],
            lambda ids, n: torch.stack(
                [target[ids[e - 2], ids[e - 1]] for e in range(len(ids) - n, len(ids) + 1)]
            ),
            None,
            draft_length=3,
            method="greedy",
        )
        context = context + step.emitted
    for at in range(2, len(context)):
        assert context[at] == int(target[context[at - 2], context[at - 1]].argmax())


def test_both_sources_of_randomness_are_independent_and_repeatable(example: Any) -> None:
    torch = need("torch")
    probs = torch.full((1000,), 1e-3, dtype=torch.float64)

    def numbers(seed: int) -> Any:
        source = example.Randomness(seed)
        return [source.token(probs) for _ in range(500)], source.uniforms(500)

    drafted, uniforms = numbers(3)
    assert numbers(3)[0] == drafted
    assert numbers(3)[1].tolist() == uniforms.tolist()
    assert numbers(4)[0] != drafted
    assert abs(np.corrcoef(drafted, uniforms)[0, 1]) < 0.15


def test_the_command_line_refuses_what_makes_no_sense(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--draft-length", "0"], ["--temperature", "nan"], ["--seed", "-1"]):
        with pytest.raises(SystemExit) as caught:
            example.options_of(arguments)
        assert caught.value.code == 2
        assert f"{arguments[0]}: expected a number" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # of Transformers' own
def test_it_runs_with_real_weights(example: Any) -> None:
    need_weights()
    model = example.installed_model(window=8)
    compare = example.transformers_verification()

    def steps(*arguments: str) -> list[Any]:
        options = example.options_of(["--tokens", "12", "--draft-length", "3", *arguments])
        return list(example.generate(model, "The Moon is", options, compare))

    first = steps("--method", "block")
    report = example.report_of(first, example.options_of(["--method", "block"]))
    assert report["tokens"] == sum(len(step.emitted) for step in first) == 12
    assert 0 < report["acceptance_rate"] < 1
    assert 1 < report["tokens_per_target_call"] <= 4
    assert report["verification_ms_per_call"] > 0
    # The same seed, the same text.
    emitted = [step.emitted for step in first]
    assert [step.emitted for step in steps("--method", "block")] == emitted
    # What is kept was drafted, and greedy text is the target's own.
    for step in first:
        assert step.emitted[:-1] == step.drafted[: len(step.emitted) - 1]
    greedy = [token for step in steps("--method", "greedy") for token in step.emitted]
    context = model.tokenizer("The Moon is")["input_ids"]
    model.begin()
    rows = model.target_logits([*context, *greedy], len(greedy))
    assert rows[:-1].argmax(dim=-1).tolist() == greedy


def test_marks_and_rate_where_the_text_ends_within_a_step(example: Any) -> None:
    for emitted, kinds in (
        ([5, 6, 7], ["kept", "kept", "replaced"]),
        ([5, 6], ["kept", "kept"]),
        ([5], ["kept"]),
        ([], []),
    ):
        assert example.Step([5, 6, 8, 9], 2, emitted, 0.0, 0.0).kinds == kinds
    whole = example.Step([5, 6], 2, [5, 6, 7], 0.0, 0.0)
    assert whole.kinds == ["kept", "kept", "bonus"]
    cut = whole._replace(emitted=[5])
    options = example.options_of(["--tokens", "4"])
    report = example.report_of([whole, cut], options)
    assert (report["tokens"], report["acceptance_rate"]) == (4, 1.0)
