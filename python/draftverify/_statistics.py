"""What is kept: of a token, of chains of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from draftverify import _arrays, _core
from draftverify._compiling import eager
from draftverify._numbers import Floats, Numbers


@overload
def acceptance_rate(draft_probs: Sequence[float], target_probs: Sequence[float]) -> float: ...
@overload
def acceptance_rate(
    draft_probs: Sequence[Sequence[float]], target_probs: Sequence[Sequence[float]]
) -> Floats: ...
@overload
def acceptance_rate(draft_probs: object, target_probs: object) -> Any: ...
@eager
def acceptance_rate(draft_probs: object, target_probs: object) -> Any:
    """Answer how probable it is that a token drawn from the draft is kept.

    Parameters
    ----------
    draft_probs, target_probs : array, shape (V,) or (N, V)
        Probabilities of the draft and of the target model, NumPy, Torch or JAX
        arrays on the CPU, or lists, of any strides and the dtypes that `speculative_decode_step`
        takes. N may be 0.

    Returns
    -------
    float or array, shape (N,), float64
        The sum of ``min(draft_probs, target_probs)`` of each row: a Python float for one row, an
        array in the library of the rows for many.

    Raises
    ------
    TypeError
        Arrays of another kind or dtype, or of two.
    ValueError
        Shapes that differ or are not (V,) or (N, V) with V >= 1; entries that are NaN, infinite or
        negative: the lowest row is named.
    NotImplementedError
        Tensors on another device than the CPU.

    Notes
    -----
    Leviathan, Kalman and Matias, ICML 2023, corollary 3.6 (arXiv 2211.17192). The sum is float64 in
    the order of the ``mass`` of `accept_residual`, with the same bits everywhere. Rows are used as
    given: those that sum to a little more than one can have a rate above 1. Where both sum to one,
    ``1 - mass`` is the same number, less exact where the mass is small.

    Examples
    --------
    >>> acceptance_rate([0.75, 0.25], [0.5, 0.5])
    0.75
    """
    rows = _arrays.pair(draft_probs, target_probs, "acceptance_rate")
    draft, target = rows.draft.shape, rows.target.shape
    if draft != target or len(draft) not in (1, 2) or draft[-1] == 0:
        message = (
            f"draft_probs and target_probs: expected one shape (V,) or (N, V) with V >= 1, got "
            f"{draft} and {target}; pass rows over the same vocabulary, chains as rows (N, V)"
        )
        raise ValueError(message)
    rates = _core.rate_rows(rows.draft, rows.target, rows.bfloat16)
    return rates.item() if len(draft) == 1 else rows.kind.wrap(rates, "float64", rows.device)


@overload
def expected_tokens_by_position(rates: Sequence[float]) -> float: ...
@overload
def expected_tokens_by_position(rates: object) -> Any: ...
@eager
def expected_tokens_by_position(rates: object) -> Any:
    """Answer how many tokens a step emits on average, given a rate for every position.

    Parameters
    ----------
    rates : array or list, shape (K,) or (N, K)
        How probable it is that the drafted token of each position is kept if all before it are. K
        and N may be 0. Rates of 0 fill up chains that are shorter than others.

    Returns
    -------
    float or array, shape (N,), float64
        One plus the sum over the positions of the product of the rates so far. A Python float for
        one chain, an array of the caller's library for many.

    Raises
    ------
    TypeError
        No array or list, or one that does not hold numbers.
    ValueError
        Rates outside 0 to 1; another shape.
    NotImplementedError
        Tensors on another device than the CPU.

    Notes
    -----
    With ``min(1, target_probs[t] / draft_probs[t])`` of the drafted tokens as rates, as
    `accept_probs` answers it, this is the average over the uniforms alone: an estimate that varies
    less than counting does.

    Examples
    --------
    >>> expected_tokens_by_position([0.5, 0.5])
    1.75
    >>> expected_tokens_by_position([[0.5, 0.5], [1.0, 0.0]])
    array([1.75, 2.  ])
    """
    numbers = Numbers()
    chains = _chains("rates", numbers.rates("rates", rates))
    total = np.ones(chains.shape[:-1])
    with np.errstate(under="ignore"):
        for position in reversed(range(chains.shape[-1])):
            total = 1 + chains[..., position] * total
    return numbers.answer(np.asarray(total))


@overload
def expected_tokens_block(ratios: Sequence[float]) -> float: ...
@overload
def expected_tokens_block(ratios: object) -> Any: ...
@eager
def expected_tokens_block(ratios: object) -> Any:
    """Estimate from drafted chains how many tokens block verification emits on average.

    Parameters
    ----------
    ratios : array or list, shape (K,) or (N, K)
        ``target_probs[t] / draft_probs[t]`` at every drafted token, not capped at 1; also behind
        the first one that was rejected. K and N may be 0. Ratios of 0 fill up chains that are
        shorter than others.

    Returns
    -------
    float or array, shape (N,), float64
        One estimate for each chain, with the right mean over the drafts: average them. A Python
        float for one chain, an array of the caller's library for many.

    Raises
    ------
    TypeError
        No array or list, or one that does not hold numbers.
    ValueError
        Ratios that are NaN, infinite or negative; another shape.
    NotImplementedError
        Tensors on another device than the CPU.

    Notes
    -----
    Sun et al., ICLR 2025 (arXiv 2403.10444): given the first ``i`` drafted tokens, block
    verification keeps all of them with probability ``joint[i] = min(1, joint[i-1] * ratios[i])``,
    ``joint[0] = 1``. The estimate is one plus their sum. For the same chain,
    ``expected_tokens_by_position(numpy.minimum(ratios, 1))`` is that of token by token
    verification, and never more: the difference is what block verification would gain.

    Examples
    --------
    >>> import numpy as np
    >>> ratios = np.array([[0.5, 4.0], [2.0, 0.5]])
    >>> expected_tokens_block(ratios)
    array([2.5, 2.5])
    >>> expected_tokens_by_position(np.minimum(ratios, 1))
    array([2. , 2.5])
    """
    numbers = Numbers()
    cure = "pass target_probs[t] / draft_probs[t], with draft_probs[t] > 0"
    chains = _chains("ratios", numbers.finite("ratios", ratios, cure))
    joint, total = np.ones(chains.shape[:-1]), np.ones(chains.shape[:-1])
    with np.errstate(under="ignore"):
        for position in range(chains.shape[-1]):
            joint = np.minimum(joint * chains[..., position], 1.0)
            total = total + joint
    return numbers.answer(np.asarray(total))


def _chains(name: str, values: Floats) -> Floats:
    if values.ndim not in (1, 2):
        message = (
            f"{name}: expected shape (K,) or (N, K), got {values.shape}; pass one number for each "
            f"drafted token"
        )
        raise ValueError(message)
    return values
