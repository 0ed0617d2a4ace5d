"""Negative controls: rules that look right and are not, each one met in released code or in papers.

A test bench is worth what it catches: all of these must be caught. Those that are wrong in their
arithmetic are rules in exact terms; `as_chain` makes code of any rule, and is also where
comparisons can be made wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftverify.testing._rules import (
    ONE,
    Row,
    Rule,
    Thresholds,
    block,
    capped,
    mass,
    ratios,
    residual,
    single,
    standard,
)

Ids = tuple[int, ...]
Rows = tuple[Row, ...]
Compare = Callable[[float, float], bool]


def token_dependent_truncation(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Drop a drafted token because its own probability is low, and draw a bonus token in its place.

    Seen where the number of verified tokens is chosen from the drafted tokens' confidences. Whether
    to go on may depend on the tokens before, never on the token itself. Here a token is dropped
    that is not the draft's most probable one.
    """
    right = standard(token_ids, draft, target)
    passes, finals = list(right.passes), list(right.finals)
    for i, token in enumerate(token_ids):
        if draft[i][token] < max(draft[i]):
            passes[i], finals[i] = Fraction(0), target[i]
    return Thresholds(tuple(passes), tuple(finals))


def mixed_proposals(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Accept with the draft's row, but replace as if the drafted token had been a certain proposal.

    xLLM, pull request 2175.
    """
    removed = (single(len(row), t) for row, t in zip(target, token_ids, strict=False))
    finals = tuple(map(residual, removed, target[:-1]))
    return Thresholds(standard(token_ids, draft, target).passes, (*finals, target[-1]))


def one_hot_acceptance(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Accept as if the drafted token had been a certain proposal, but replace with the draft's row.

    The converse of `mixed_proposals`: a draft whose probabilities get lost on one of two ways.
    """
    passes = tuple(target[i][t] for i, t in enumerate(token_ids))
    return Thresholds(passes, standard(token_ids, draft, target).finals)


def block_early_stop(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Stop a block at the first position that does not pass, as in token verification.

    vllm-ascend, issue 7807, is of the kind. In a block the last position that passes decides.
    """
    right = block(token_ids, draft, target)
    return Thresholds(right.passes, right.finals)


def block_unscaled_residual(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Replace from max(target - draft, 0) in a block: the joint ratio is forgotten.

    vllm-ascend, issue 7807.
    """
    right = block(token_ids, draft, target)
    return Thresholds(right.passes, standard(token_ids, draft, target).finals, longest=True)


def block_mass_of_the_same_row(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Take the residual mass at the row of the drafted token, not at the row behind it.

    vllm-ascend, issue 7807.
    """
    joint = capped(ratios(token_ids, draft, target))
    passes = list(block(token_ids, draft, target).passes)
    for i in range(len(token_ids) - 1):
        excess = mass(draft[i], target[i], joint[i + 1])
        whole = excess + ONE - joint[i + 1]
        passes[i] = excess / whole if whole else ONE
    return Thresholds(tuple(passes), block(token_ids, draft, target).finals, longest=True)


def block_uncapped_last_ratio(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Let the last position of a block pass with the joint ratio that was not capped on the way.

    The released code of hierarchical speculative decoding (arXiv 2601.05724); it keeps more tokens
    than any lossless rule can.
    """
    right = block(token_ids, draft, target)
    joint = ONE
    for each in ratios(token_ids, draft, target):
        joint *= each
    passes = (*right.passes[:-1], min(ONE, joint)) if token_ids else ()
    return Thresholds(passes, right.finals, longest=True)


def nothing_subtracted(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Replace a rejected token from the target, not from what the target has more of.

    The first bug of nearly everyone who writes a sampler: it looks right, since each token is drawn
    from a right model.
    """
    return Thresholds(standard(token_ids, draft, target).passes, target)


def overlap_normalised(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Replace a rejected token from min(target, draft): the part that has been accepted already."""
    finals = tuple(
        tuple(map(min, a, b)) if any(map(min, a, b)) else b
        for a, b in zip(draft, target[:-1], strict=True)
    )
    return Thresholds(standard(token_ids, draft, target).passes, (*finals, target[-1]))


def names_swapped(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Take the draft for the target and the target for the draft.

    Papers and engines use the letters p and q both ways round.
    """
    passes = tuple(
        min(ONE, draft[i][t] / target[i][t]) if target[i][t] else ONE
        for i, t in enumerate(token_ids)
    )
    finals = tuple(map(residual, target[:-1], draft))
    return Thresholds(passes, (*finals, target[-1]))


def replacement_from_the_next_row(token_ids: Ids, draft: Rows, target: Rows) -> Thresholds:
    """Replace a rejected token from the row behind it: an index that is off by one."""
    right = standard(token_ids, draft, target)
    return Thresholds(right.passes, (*right.finals[1:], right.finals[-1]))


WRONG_RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        token_dependent_truncation,
        mixed_proposals,
        one_hot_acceptance,
        block_early_stop,
        block_unscaled_residual,
        block_mass_of_the_same_row,
        block_uncapped_last_ratio,
        nothing_subtracted,
        overlap_normalised,
        names_swapped,
        replacement_from_the_next_row,
    )
}


def as_chain(
    rule: Rule, *, accepts: Compare = operator.lt, exceeds: Compare = operator.gt
) -> Callable[..., tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Make code of a rule: a callable with the arguments of a chain verification.

    Parameters
    ----------
    rule : callable
        In exact terms. It is asked once for each chain; the uniforms are compared as floats.
    accepts : callable
        How a uniform is compared with a threshold. The right one is `operator.lt`. With
        `operator.le` a uniform of 0 accepts a token of probability 0 (vLLM V1, transformers and
        ONNX Runtime compare so).
    exceeds : callable
        How a running sum is compared with the final uniform. The right one is `operator.gt`; with
        `operator.ge` a uniform of 0 draws the first token whatever its probability.

    Returns
    -------
    callable
        ``verify(draft_probs, target_probs, draft_token_ids, uniforms)`` in the padded layout;
        ``draft_probs`` may be None, and a trailing run of -1 in the ids is padding.

    Examples
    --------
    >>> import operator
    >>> from draftverify import testing
    >>> exact = [testing.dyadic()]
    >>> testing.check(testing.as_chain(testing.standard), instances=exact).ok
    True
    >>> wrong = testing.as_chain(testing.standard, accepts=operator.le)
    >>> testing.check(wrong, instances=exact).ok
    False
    """
    known: dict[bytes, tuple[list[float], list[NDArray[np.float64]], bool]] = {}

    def verify(
        draft_probs: Any, target_probs: Any, draft_token_ids: Any, uniforms: Any
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        num_accepted = np.zeros(len(draft_token_ids), np.int32)
        token_ids = np.full((len(draft_token_ids), draft_token_ids.shape[1] + 1), -1, np.int32)
        for b, chain in enumerate(draft_token_ids):
            chain = [int(t) for t in chain if t >= 0]  # noqa: PLW2901 - without its padding
            length = len(chain)
            target = np.asarray(target_probs[b, : length + 1])
            if draft_probs is None:
                draft = np.eye(target.shape[1])[chain]
            else:
                draft = np.asarray(draft_probs[b, :length])
            key = repr((target.dtype, chain)).encode() + draft.tobytes() + target.tobytes()
            if key not in known:
                known[key] = _floats(rule(tuple(chain), _exact(draft), _exact(target)))
            passes, running, longest = known[key]
            passed = [accepts(float(u), h) for u, h in zip(uniforms[b], passes, strict=False)]
            if longest:
                kept = max((i + 1 for i, each in enumerate(passed) if each), default=0)
            else:
                kept = next((i for i, each in enumerate(passed) if not each), length)
            drawn = [exceeds(each, float(uniforms[b, length])) for each in running[kept]]
            # The last that has a weight where rounding, or a uniform of 1, leaves none.
            final = drawn.index(True) if any(drawn) else int(np.argmax(running[kept]))
            num_accepted[b] = kept
            token_ids[b, : kept + 1] = [*chain[:kept], final]
        return num_accepted, token_ids

    return verify


def _exact(rows: NDArray[Any]) -> Rows:
    return tuple(tuple(Fraction(float(entry)) for entry in row) for row in rows)


def _floats(thresholds: Thresholds) -> tuple[list[float], list[NDArray[np.float64]], bool]:
    """Round thresholds and running sums, each once."""
    running = []
    for weights in thresholds.finals:
        total, partial = sum(weights), Fraction(0)
        sums = [float((partial := partial + weight) / total) for weight in weights]
        running.append(np.array(sums))
    return [float(each) for each in thresholds.passes], running, thresholds.longest
