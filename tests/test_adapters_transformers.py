"""Transformers' assisted generation: values by hand, the law, and the function put in its place.

During `generate` nothing is left to chance: every draw of the assistant and every uniform goes
through all that it can decide, with exact weights, and the law of the output is compared with that
of the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import engines
from draftverify import testing
from draftverify.adapters import transformers as adapter
from draftverify.adapters.transformers import speculative_sampling, use_draftverify
from engines import CASES, DRAFT, TARGET, tensor
from everything import Everything
from kinds import need, refused

PROMPT = [[1, 0]]
# What Transformers says of its own arguments is not what is tested.
quiet = pytest.mark.filterwarnings("ignore")


def logits(probs: Any) -> Any:
    return tensor(probs, "float64").log().float()


@contextmanager
def drawn(monkeypatch: pytest.MonkeyPatch, values: Any) -> Iterator[list[Any]]:
    """Let `torch.rand` answer these numbers, and note what it is asked for."""
    torch = need("torch")
    asked: list[Any] = []

    def rand(shape: Any, **options: Any) -> Any:
        asked.append((shape, options))
        return torch.as_tensor(values, dtype=torch.float64).view(shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", rand)
        yield asked


@pytest.mark.parametrize("done", [False, True])
def test_values_by_hand(monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    torch = need("torch")
    candidate, new = logits([DRAFT]), logits([TARGET])
    if done:
        new[:, 2] = float("nan")  # nothing is drawn behind the last candidate
    for case in CASES:
        sequence = tensor([[7, 8, 9, *case.ids]], "int64")
        with drawn(monkeypatch, case.uniforms) as asked:
            valid, matches = speculative_sampling(
                sequence, candidate, 2, new, torch.tensor([done]) if done else False
            )
        kept = len(case.emitted) - 1
        complete = done and kept == 2
        assert valid.tolist() == [case.emitted[: 2 if complete else 3]]
        assert matches.tolist() == (1 if complete else kept)
        assert valid.shape[1] == matches + 1
        assert valid.dtype == matches.dtype == torch.int64
        assert matches.shape == ()
        ((shape, options),) = asked
        assert shape == (1, 3)
        assert options["dtype"] == torch.float64
        assert options["generator"] is None


def test_a_row_that_is_not_needed_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, new = logits([DRAFT]), logits([TARGET])
    candidate[:, 1], new[:, 1:] = float("-inf"), float("-inf")
    with drawn(monkeypatch, CASES[1].uniforms):
        valid, matches = speculative_sampling(tensor([[0, 1]], "int64"), candidate, 2, new)
    assert (valid.tolist(), int(matches)) == ([[1]], 0)


def test_uniforms_come_from_the_callers_generator() -> None:
    torch = need("torch")
    rng = np.random.default_rng(3)
    candidate, new = tensor(rng.normal(size=(1, 3, 50))), tensor(rng.normal(size=(1, 4, 50)))
    ids = tensor([[1, 2, 3]], "int64")

    def emitted(generator: Any = None) -> list[Any]:
        return [
            speculative_sampling(ids, candidate, 3, new, generator=generator)[0].tolist()
            for _ in range(20)
        ]

    torch.manual_seed(4)
    first = emitted()
    assert len({str(each) for each in first}) > 5
    torch.manual_seed(4)
    assert emitted() == first
    state = torch.get_rng_state()
    assert emitted(torch.Generator().manual_seed(4)) == first
    assert torch.get_rng_state().equal(state)


def test_narrower_candidate_logits_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need("torch")
    candidate = tensor([[[1.0, 3.0, 2.0, -1.0]] * 2])
    with drawn(monkeypatch, [0.5, 0.5, 0.5]):
        wide = speculative_sampling(tensor([[1, 2]], "int64"), candidate, 2, logits([TARGET]))
        for dtype in (torch.bfloat16, torch.float16):
            narrow = speculative_sampling(
                tensor([[1, 2]], "int64"), candidate.to(dtype), 2, logits([TARGET])
            )
            assert narrow[0].equal(wide[0])
        call = lambda: speculative_sampling(  # noqa: E731
            tensor([[1, 2]], "int64"), candidate, 2, logits([TARGET]).half()
        )
        refused(TypeError, call, says=("candidate_logits and new_logits",))


@pytest.mark.parametrize("method", ["standard", "block"])
def test_the_law(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    torch = need("torch")

    def verify(draft: Any, target: Any, ids: Any, uniforms: Any) -> Any:
        kept, emitted = np.zeros(len(ids), int), np.full(uniforms.shape, -1)
        for b in range(len(ids)):
            with drawn(monkeypatch, uniforms[b]):
                valid, matches = speculative_sampling(
                    ids[b : b + 1],
                    draft[b : b + 1],
                    ids.shape[1],
                    target[b : b + 1],
                    method=method,
                )
            kept[b] = matches
            emitted[b, : valid.shape[1]] = valid[0]
        return kept, emitted

    def convert(array: Any) -> Any:
        return torch.from_numpy(array)

    feed = testing.Feed(log_probs=True, tolerance=1e-9, convert=convert)
    instances = [testing.t3(2), testing.random_models(1, draft_length=2)]
    testing.assert_lossless(verify, method=method, feed=feed, instances=instances)


def test_no_copy_of_logits() -> None:
    rng = np.random.default_rng(0)
    candidate, new = tensor(rng.normal(size=(1, 3, 1000))), tensor(rng.normal(size=(1, 8, 1000)))
    new = new[:, ::2]
    ids = tensor([[1, 2, 3]], "int64")
    for done in (False, True):
        call = lambda: speculative_sampling(ids, candidate, 3, new, done)  # noqa: B023, E731
        assert engines.large_results(call, 1000, candidate, new) == []


def test_what_is_refused() -> None:
    candidate, new, ids = logits([DRAFT]), logits([TARGET]), tensor([[0, 1]], "int64")
    cases: list[tuple[type[Exception], tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = [
        (TypeError, (ids, candidate.numpy(), 2, new), {}, ("candidate_logits", "ndarray")),
        (ValueError, (ids[0], candidate, 2, new), {}, ("candidate_input_ids", "(2,)")),
        (
            ValueError,
            (tensor([[0, 1]] * 2, "int64"), candidate, 2, new),
            {},
            ("candidate_input_ids", "(2, 2)", "one sequence"),
        ),
        (ValueError, (ids, candidate, 3, new), {}, ("candidate_input_ids", "(1, 3)")),
        (ValueError, (ids, candidate, 1, new), {}, ("new_logits", "(1, 2, 4)")),
        (ValueError, (ids, candidate[..., :3], 2, new), {}, ("candidate_logits", "(1, 2, 3)")),
        (
            ValueError,
            (ids, candidate, 2, new),
            {"assistant_ensemble_weight": 0.5},
            ("assistant_ensemble_weight", "0.5", "another law"),
        ),
        (TypeError, (ids, candidate, 2, new, 0.5), {}, ("is_done_candidate", "a float")),
        (ValueError, (ids, candidate, 2, new), {"method": "greedy"}, ("method", "'greedy'")),
        (TypeError, (ids, candidate, 2, new), {"generator": 1}, ("generator", "got int")),
    ]
    for error, arguments, options, says in cases:
        call = lambda: speculative_sampling(*arguments, **options)  # noqa: B023, E731
        refused(error, call, says=says)


# Within Transformers.


@pytest.fixture(scope="module")
def transformers() -> Any:
    return need("transformers")


@pytest.fixture
def utils(transformers: Any) -> Iterator[Any]:
    assert transformers
    torch = need("torch")
    found = need("transformers.generation.utils")
    before, threads = found._speculative_sampling, torch.get_num_threads()
    torch.set_num_threads(1)
    yield found
    torch.set_num_threads(threads)
    assert found._speculative_sampling is before


def tiny(transformers: Any, seed: int, vocabulary: int) -> Any:
    """Make a random model whose next-token laws depend on the context."""
    torch = need("torch")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=1.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.assistant_confidence_threshold = 0.0
    model.generation_config.num_assistant_tokens = 2
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


def generate(model: Any, assistant: Any, tokens: int, **options: Any) -> list[int]:
    torch = need("torch")
    output = model.generate(
        torch.tensor(PROMPT),
        attention_mask=torch.ones((1, 2), dtype=torch.int64),
        assistant_model=assistant,
        do_sample=True,
        max_new_tokens=tokens,
        **{"top_k": 0, **options},
    )
    ids: list[int] = output[0, len(PROMPT[0]) :].tolist()
    return ids


def law_of_generate(
    monkeypatch: pytest.MonkeyPatch, once: Any, method: str = "standard"
) -> Everything:
    """Find the law of what is generated, with all draws replaced by branches."""
    torch = need("torch")
    everything = Everything()
    pending: list[Any] = []
    verify = vars(adapter)["verify_chain_logits"]

    def multinomial(probs: Any, num_samples: int, **_: Any) -> Any:
        assert num_samples == 1
        return torch.tensor([[everything.choose(row)] for row in probs.double().tolist()])

    def rand(shape: Any, **_: Any) -> Any:
        # The cells depend on the rows, which the call that follows is handed.
        pending.append(shape)
        return None

    def watched(candidate: Any, new: Any, ids: Any, uniforms: Any, **options: Any) -> Any:
        assert uniforms is None
        assert pending.pop() == (1, ids.shape[1] + 1)
        target = new
        if options["bonus_token_ids"] is not None:  # any bonus row will do
            target = torch.cat([new, torch.zeros_like(new[:, :1])], dim=1)
        numbers = everything.uniforms(candidate, target, ids[0].numpy(), method)
        return verify(candidate, new, ids, tensor([numbers], "float64"), **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        patch.setattr(torch, "rand", rand)
        patch.setattr(adapter, "verify_chain_logits", watched)
        everything.run(once)
    return everything


def plain_law(model: Any, tokens: int, vocabulary: int, **filters: Any) -> dict[Any, float]:
    """Compute the law of plain sampling from forward passes of the target alone."""
    torch = need("torch")
    law: dict[Any, float] = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for sequence, probability in law.items():
            with torch.no_grad():
                output = model(torch.tensor([[*PROMPT[0], *sequence]])).logits[0, -1]
            row = filtered(output.double().numpy(), **filters)
            for token in range(vocabulary):
                if row[token] > 0:
                    longer[*sequence, token] = probability * row[token]
        law = longer
    return law


def filtered(row: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Any:
    """Apply temperature, top-k and top-p; no two entries are equal."""
    powers = np.exp(row / temperature - (row / temperature).max())
    order = np.argsort(-powers)
    powers[order[top_k or len(row) :]] = 0
    probs = powers / powers.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= top_p]] = 0
    return probs / probs.sum()


def assert_same_law(found: dict[Any, float], expected: dict[Any, float]) -> None:
    assert set(found) == set(expected)
    assert abs(sum(found.values()) - 1) < 1e-5
    for sequence, probability in expected.items():
        # The model runs in float32, with and without its cache.
        assert abs(found[sequence] - probability) < 2e-5, sequence


@quiet
@pytest.mark.parametrize(
    ("vocabulary", "tokens", "method", "filters"),
    [
        (3, 2, "standard", {}),
        (2, 3, "standard", {}),
        (2, 3, "block", {}),
        (4, 2, "standard", {"temperature": 0.7, "top_k": 3}),
        (4, 2, "standard", {"temperature": 1.5, "top_p": 0.8}),
    ],
)
def test_generate_follows_the_target_exactly(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    transformers: Any,
    utils: Any,
    vocabulary: int,
    tokens: int,
    method: Any,
    filters: dict[str, Any],
) -> None:
    assert utils
    model, assistant = tiny(transformers, 1, vocabulary), tiny(transformers, 2, vocabulary)

    def once() -> list[int]:
        with use_draftverify(method=method):
            return generate(model, assistant, tokens, **filters)

    found = law_of_generate(monkeypatch, once, method)
    assert found.verified >= vocabulary * tokens
    expected = plain_law(model, tokens, vocabulary, **filters)
    assert_same_law(found.law, expected)
    # It is not the assistant's law.
    other = plain_law(assistant, tokens, vocabulary, **filters)
    assert sum(abs(other.get(key, 0) - value) for key, value in expected.items()) > 0.1


@quiet
def test_the_enumeration_sees_a_wrong_verification(
    monkeypatch: pytest.MonkeyPatch, transformers: Any, utils: Any
) -> None:
    model, assistant = tiny(transformers, 1, 3), tiny(transformers, 2, 3)

    def careless(*arguments: Any, **options: Any) -> Any:
        arguments = (arguments[0], arguments[1] * 0.5, *arguments[2:])
        return speculative_sampling(*arguments, **options)

    monkeypatch.setattr(utils, "_speculative_sampling", careless)
    found = law_of_generate(monkeypatch, lambda: generate(model, assistant, 2))
    expected = plain_law(model, 2, 3)
    assert max(abs(found.law[key] - value) for key, value in expected.items()) > 1e-3
    monkeypatch.undo()


@quiet
def test_it_is_in_place_within_the_block_alone(transformers: Any, utils: Any) -> None:
    torch = need("torch")
    model, assistant = tiny(transformers, 1, 11), tiny(transformers, 2, 11)
    original = utils._speculative_sampling
    with use_draftverify(method="block", generator=torch.Generator().manual_seed(9)):
        inner = utils._speculative_sampling
        assert inner is not original
        assert inner.func is speculative_sampling
        assert inner.keywords["method"] == "block"
        with use_draftverify():  # another one within
            assert utils._speculative_sampling is not inner
        assert utils._speculative_sampling is inner
        torch.manual_seed(0)
        first = generate(model, assistant, 12)
    assert utils._speculative_sampling is original
    # The same seeds, the same text.
    torch.manual_seed(0)
    with use_draftverify(method="block", generator=torch.Generator().manual_seed(9)):
        assert generate(model, assistant, 12) == first
    assert len(first) == 12
    torch.manual_seed(0)
    with use_draftverify(method="block", generator=torch.Generator().manual_seed(10)):
        assert generate(model, assistant, 12) != first


@pytest.mark.usefixtures("transformers")
def test_choices_are_looked_at_on_entry(utils: Any) -> None:
    before, wrong = utils._speculative_sampling, "greedy"
    for options, error in (({"method": wrong}, ValueError), ({"generator": 1}, TypeError)):
        with pytest.raises(error, match=f"^{next(iter(options))}: expected "):
            use_draftverify(**options).__enter__()
        assert utils._speculative_sampling is before


@quiet
def test_it_is_taken_out_after_an_exception(transformers: Any, utils: Any) -> None:
    model, assistant = tiny(transformers, 1, 11), tiny(transformers, 2, 11)
    original = utils._speculative_sampling
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"new_logits: expected .* got nan"), use_draftverify():
        generate(model, assistant, 12)
    assert utils._speculative_sampling is original
    with pytest.raises(KeyError, match="other"), use_draftverify():
        raise KeyError("other")
    assert utils._speculative_sampling is original


@quiet
def test_an_ensemble_is_refused_during_generate(transformers: Any, utils: Any) -> None:
    assert utils
    model, assistant = tiny(transformers, 1, 11), tiny(transformers, 2, 11)
    if not hasattr(model.generation_config, "assistant_ensemble_weight"):
        with pytest.raises(ValueError, match="assistant_ensemble_weight"), use_draftverify():
            generate(model, assistant, 12, assistant_ensemble_weight=0.5)
        return
    model.generation_config.assistant_ensemble_weight = 0.5
    message = "assistant_ensemble_weight: expected None, got 0.5"
    with pytest.raises(ValueError, match=message), use_draftverify():
        generate(model, assistant, 12)


@quiet
def test_an_end_token_ends_the_text(transformers: Any, utils: Any) -> None:
    torch = need("torch")
    assert utils
    model, assistant = tiny(transformers, 1, 3), tiny(transformers, 2, 3)
    lengths = set()
    for last, seed in [(last, seed) for last in range(3) for seed in range(8)]:
        torch.manual_seed(seed)
        with use_draftverify():
            ids = generate(model, assistant, 6, eos_token_id=last)
        assert last not in ids[:-1]
        assert len(ids) == 6 or ids[-1] == last
        lengths.add(len(ids))
    assert len(lengths) > 2


# What looks different is refused.


def changed(
    candidate_input_ids: Any,
    candidate_logits: Any,
    candidate_length: Any,
    new_logits: Any,
    is_done_candidate: Any,
) -> None:
    """Have the signature, and nothing else."""


def test_a_function_that_looks_different_is_refused(
    monkeypatch: pytest.MonkeyPatch, transformers: Any, utils: Any
) -> None:
    for other in (changed, None, len):
        with monkeypatch.context() as patch:
            patch.setattr(utils, "_speculative_sampling", other)
            with pytest.raises(RuntimeError) as caught, use_draftverify():
                pytest.fail("the block must not run")
            assert utils._speculative_sampling is other
        message = str(caught.value)
        assert message.startswith("transformers: expected _speculative_sampling")
        for part in (*adapter._KNOWN.values(), f"got version {transformers.__version__}", "; "):
            assert part in message


def test_a_caller_that_looks_different_is_refused(
    monkeypatch: pytest.MonkeyPatch, utils: Any
) -> None:
    for other in (lambda self: self, None):
        with monkeypatch.context() as patch:
            if other is None:
                patch.delattr(utils.GenerationMixin, "_assisted_decoding")
            else:
                patch.setattr(utils.GenerationMixin, "_assisted_decoding", other)
            with pytest.raises(RuntimeError, match="looks different"), use_draftverify():
                pytest.fail("the block must not run")


def test_comments_and_docstrings_make_no_difference() -> None:
    def first() -> Any:
        def function(x: int) -> int:
            """Add one."""
            return x + 1

        return function

    def second() -> Any:
        def function(x: int) -> int:
            """Add one.

            Nothing else.
            """
            # And nothing here.
            return x + 1

        return function

    def third() -> Any:
        def function(x: int) -> int:
            """Add one."""
            return x + 2

        return function

    looks = [adapter._look(each()) for each in (first, second, third)]
    assert looks[0] == looks[1] != looks[2]
    assert looks[0] is not None
    assert adapter._look(len) is None
