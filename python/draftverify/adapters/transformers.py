"""Transformers' assisted generation, with the verification of this library.

Written from ``transformers/generation/utils.py`` (``_speculative_sampling``, and its caller
``GenerationMixin._assisted_decoding``) of Transformers 4.57.6, 5.16.1 and 5.24.0: three signatures,
one rule. The tests have also passed with 4.57.1 and 5.0.0. `use_draftverify` puts
`speculative_sampling` in its place while a block runs:

>>> from draftverify.adapters.transformers import use_draftverify
>>> def generate(model, assistant, **inputs):
...     with use_draftverify():
...         return model.generate(**inputs, assistant_model=assistant, do_sample=True)

Random numbers come from Torch's global generator, as Transformers draws them and as
``torch.manual_seed`` seeds it, or from a `torch.Generator` of the caller's.

The output follows the target model if ``candidate_logits`` are those that the candidates were drawn
from. With ``generate(assistant_model=...)`` they are: the assistant's scores behind all logits
processors, so temperature, top-k and top-p are in them as they are in the target's. The
``SinglePositionMultiTokenCandidateGenerator`` of 5.24.0 takes the most probable tokens instead, and
hands over their logits all the same: what is sampled with it is biased, whoever verifies.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from draftverify import verify_chain_logits
from draftverify._chains import Method
from draftverify._tokens import as_index
from draftverify.adapters._torch import (
    Tensor,
    expect_ndim,
    expect_tensors,
    in_words_of_the_engine,
)

_NAME = "_speculative_sampling"
# What the function looks like, by version, as `_look` has it.
_KNOWN = {
    "bdb4aee7c4db6ea5": "4.46.3 to 5.8.1",
    "7085bc12df2c3d89": "5.16.1",
    "c85ad22773c23ef3": "5.24.0",
}
_NOT_WORDS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@in_words_of_the_engine(
    draft_logits="candidate_logits",
    target_logits="new_logits",
    draft_token_ids="candidate_input_ids",
)
def speculative_sampling(  # noqa: PLR0913, PLR0917 - Transformers' arguments
    candidate_input_ids: Tensor,
    candidate_logits: Tensor,
    candidate_length: int,
    new_logits: Tensor,
    is_done_candidate: Any = False,
    assistant_ensemble_weight: float | None = None,
    *,
    method: Method = "standard",
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """Verify candidates as Transformers' ``_speculative_sampling`` does.

    Parameters
    ----------
    candidate_input_ids : Tensor, shape (1, length), int64
        The sequence with the candidates at its end. Transformers assists one sequence at a time.
    candidate_logits : Tensor, shape (1, candidate_length, vocab_size)
        The assistant's scores that the candidates were drawn from. A narrower dtype than that of
        ``new_logits`` is widened.
    candidate_length : int
        How many candidates there are.
    new_logits : Tensor, shape (1, candidate_length + 1, vocab_size), float32
        The target's scores for them and for one token more.
    is_done_candidate : bool or Tensor of one, default False
        Of Transformers up to 5.16: generation ends with the last candidate, and nothing is drawn
        behind it. The last row of ``new_logits`` is not read then.
    assistant_ensemble_weight : float, optional
        Of Transformers from 5.16 on. It changes the law of the output: anything but None is
        refused.
    method : {"standard", "block"}, default "standard"
        As of `draftverify.verify_chain`: Transformers' rule, or one that accepts more by the same
        law.
    generator : torch.Generator, optional
        Where the uniforms come from: Torch's global generator by default. One that is seeded as
        another that the candidates come from makes the output follow another law.

    Returns
    -------
    valid_tokens : Tensor, shape (1, n_matches + 1), int64
        The accepted candidates and one token more.
    n_matches : Tensor, shape (), int64
        How many candidates are accepted; one less where all are and ``is_done_candidate``.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As of `draftverify.verify_chain_logits`: so for vocabularies that differ and candidates that
        the assistant cannot have drawn. No Torch tensors; more than one sequence;
        ``assistant_ensemble_weight``.

    Notes
    -----
    All uniforms of a call are drawn at once, as float64, ``candidate_length + 1`` of them: a
    sequence is not the one that Transformers itself draws from the same seed. What is not needed is
    not read: so the target's last row, which may be all -inf, if a candidate is rejected.

    Examples
    --------
    >>> import torch
    >>> candidate_logits = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]).log()
    >>> new_logits = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]]).log()
    >>> speculative_sampling(torch.tensor([[0, 1, 1]]), candidate_logits, 2, new_logits)
    (tensor([[1, 0]]), tensor(1))
    """
    _expect_choices(method, generator)
    expect_tensors(
        candidate_input_ids=candidate_input_ids,
        candidate_logits=candidate_logits,
        new_logits=new_logits,
    )
    import torch  # noqa: PLC0415 - the caller has imported it

    if assistant_ensemble_weight is not None:
        message = (
            f"assistant_ensemble_weight: expected None, got {assistant_ensemble_weight}: a mixture "
            f"of both models is another law than the target's; leave it out of the generation "
            f"config"
        )
        raise ValueError(message)
    if isinstance(is_done_candidate, float):
        message = (
            "is_done_candidate: expected a bool, got a float; pass assistant_ensemble_weight by "
            "its name"
        )
        raise TypeError(message)
    expect_ndim("candidate_logits", candidate_logits, "(B, K, V)", "assist one sequence at a time")
    expect_ndim("new_logits", new_logits, "(B, K, V)", "assist one sequence at a time")
    length = as_index("candidate_length", candidate_length)
    total = candidate_input_ids.shape[-1] if candidate_input_ids.ndim else 0
    if candidate_input_ids.ndim != 2 or len(candidate_input_ids) != 1 or not 0 <= length <= total:  # noqa: PLR2004
        message = (
            f"candidate_input_ids: expected shape (1, {length}) or longer, got "
            f"{tuple(candidate_input_ids.shape)}; assist one sequence at a time"
        )
        raise ValueError(message)
    ids = candidate_input_ids[:, total - length :]
    if torch.promote_types(candidate_logits.dtype, new_logits.dtype) == new_logits.dtype:
        candidate_logits = candidate_logits.to(new_logits.dtype)
    done = bool(is_done_candidate)
    verdict = verify_chain_logits(
        candidate_logits,
        new_logits[:, :length] if done else new_logits,
        ids,
        torch.rand(
            (1, length + 1), dtype=torch.float64, device=new_logits.device, generator=generator
        ),
        method=method,
        bonus_token_ids=[0] if done else None,  # it is not handed on
    )
    n_matches = verdict.num_accepted[0].long()
    if done and n_matches == length:
        return ids, n_matches - 1
    return verdict.token_ids[:, : n_matches + 1].to(ids.dtype), n_matches


@contextmanager
def use_draftverify(*, method: Method = "standard", generator: Any = None) -> Iterator[None]:
    """Let Transformers verify candidates with `speculative_sampling` while a block runs.

    Parameters
    ----------
    method : {"standard", "block"}, default "standard"
        As of `speculative_sampling`.
    generator : torch.Generator, optional
        As of `speculative_sampling`.

    Yields
    ------
    None
        Afterwards Transformers is as it was, also after an exception.

    Raises
    ------
    ImportError
        Without Transformers.
    TypeError, ValueError
        For another generator or method.
    RuntimeError
        Where the function to be replaced, or its caller, is none of those that this was written
        for: comments and docstrings apart, it has to be the same.

    Notes
    -----
    It concerns all threads of the process, and sampling alone: greedy assisted generation compares
    tokens, and Transformers goes on doing so. The module's own text shows its use.
    """
    _expect_choices(method, generator)
    utils = importlib.import_module("transformers.generation.utils")
    found = getattr(utils, _NAME, None)
    if not (isinstance(found, partial) and found.func is speculative_sampling):
        _expect_known(utils, found)
    setattr(utils, _NAME, partial(speculative_sampling, method=method, generator=generator))
    try:
        yield
    finally:
        setattr(utils, _NAME, found)


def _expect_choices(method: object, generator: object) -> None:
    torch = importlib.import_module("torch")
    if generator is not None and not isinstance(generator, torch.Generator):
        message = (
            f"generator: expected a torch.Generator, got {type(generator).__name__}; pass "
            f"torch.Generator().manual_seed(...), or none"
        )
        raise TypeError(message)
    if method not in {"standard", "block"}:
        message = (
            f"method: expected 'standard' or 'block', got {method!r}; any other would sample "
            f"from another law"
        )
        raise ValueError(message)


def _expect_known(utils: Any, function: object) -> None:
    """Refuse to replace a function that may expect or answer something else."""
    caller = inspect.unwrap(getattr(utils.GenerationMixin, "_assisted_decoding", _expect_known))
    if _look(function) not in _KNOWN or _NAME not in caller.__code__.co_names:
        version = importlib.import_module("transformers").__version__
        message = (
            f"transformers: expected {_NAME} of generation/utils.py as in the versions "
            f"{', '.join(_KNOWN.values())}, got version {version}, where it looks different; "
            f"install one of these"
        )
        raise RuntimeError(message)


def _look(function: object) -> str | None:
    """Condense the source of a function, without comments and docstring."""
    try:
        source = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    words = (token.string for token in tokens if token.type not in _NOT_WORDS)
    code = " ".join(word for word in words if not word.startswith('"""'))
    return hashlib.sha256(code.encode()).hexdigest()[:16]
