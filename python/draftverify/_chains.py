"""Whole chains of drafted tokens: the step that a server takes."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

from draftverify import _core
from draftverify._arrays import Rows, rows_of
from draftverify._compiling import eager
from draftverify._drafted import are_plain, method_of, numbers_of, requests_of

_ArrayT = TypeVar("_ArrayT")
Method = Literal["standard", "block", "greedy"]


class ChainVerdict(NamedTuple, Generic[_ArrayT]):
    """What `verify_chain` answers, in the library of the rows.

    Attributes
    ----------
    num_accepted : array, shape (B,), int32
        How many drafted tokens of each request are kept.
    token_ids : array, shape (B, K + 1), int32
        What is emitted for each request: the accepted ids, one more, then -1. In the flat layout
        K is the longest request's number of drafted tokens.
    """

    num_accepted: _ArrayT
    token_ids: _ArrayT


@eager
def verify_chain(  # noqa: PLR0913 - one request has as many parts
    draft_probs: _ArrayT | None,
    target_probs: _ArrayT,
    draft_token_ids: object,
    uniforms: object,
    *,
    lengths: object = None,
    indptr: object = None,
    method: Method = "standard",
    bonus_token_ids: object = None,
) -> ChainVerdict[_ArrayT]:
    """Verify the drafted tokens of several requests: how many are kept, and what follows.

    Per request, drafted tokens are accepted from left to right; at the first rejection the
    replacement is drawn from that position's residual; if all are accepted, a bonus token is drawn
    from the target's last row. What is emitted follows ``target_probs`` exactly.

    Two layouts. *Padded*: requests of up to K drafted tokens, in arrays with K places for each.
    *Flat*, with ``indptr``: T drafted tokens in all, those of request ``b`` from ``indptr[b]`` to
    ``indptr[b + 1]``; its rows of the target are ``indptr[b] + b`` to ``indptr[b + 1] + b``, the
    last one included.

    Parameters
    ----------
    draft_probs : array, shape (B, K, V) or (T, V), or None
        The probabilities that the tokens were drawn from: NumPy, Torch or JAX arrays on the CPU, or
        lists, of the dtypes that `speculative_decode_step` takes. None for proposals that were the
        only possible ones (greedy, n-gram or suffix drafts): a token is then accepted with its
        probability in the target, and replaced by any other one.
    target_probs : array, shape (B, K + 1, V) or (T + B, V)
        The target model's probabilities: a row for each drafted token and one behind them. With
        ``bonus_token_ids`` there is none behind: (B, K, V) or (T, V).
    draft_token_ids : array or list of int, shape (B, K) or (T,)
        The drafted tokens, in any integer dtype and any array library. In the padded layout without
        ``lengths`` a run of -1 at the end of a request is padding.
    uniforms : array or list of float, shape (B, K + 1) or (T + B,), or None
        Numbers in [0, 1), float32 or float64; a list of ints alone is refused as such an array is.
        For a request of ``n`` drafted tokens the first ``n`` decide about these, and number ``n``,
        counted from 0, draws the final token whatever was rejected; so also with
        ``bonus_token_ids``. They must be independent of each other and of all randomness that the
        tokens were drafted with: a number that has already decided what is drafted says something
        about what should be accepted, and the law of the output is no longer the target's. None is
        allowed for ``method="greedy"``, which uses none.
    lengths : array or list of int, shape (B,), optional
        How many drafted tokens each request has. Behind them come the target's row and the uniform
        of the final draw; what is behind these is padding, and is never read.
    indptr : array or list of int, shape (B + 1,), optional
        The flat layout: 0 and the running totals of drafted tokens.
    method : {"standard", "block", "greedy"}, default "standard"
        ``"standard"`` accepts token by token. ``"block"`` looks at the chain as a whole; it accepts
        at least as many tokens on average, and what is emitted follows the same law; it has to read
        more rows. ``"greedy"`` accepts the target's most probable token alone (of several the
        lowest id); draft rows and uniforms are not looked at, and may be anything.
    bonus_token_ids : array or list of int, shape (B,), optional
        What is emitted after full acceptance, for engines that draw it elsewhere: any id from 0 up,
        also for requests that turn out not to need it.

    Returns
    -------
    ChainVerdict
        ``(num_accepted, token_ids)``: int32 arrays of shapes (B,) and (B, K + 1), in the rows'
        library.

    Raises
    ------
    TypeError
        Arrays of another kind or dtype, or of two; ids that are not integers, uniforms that are not
        float32 or float64.
    ValueError
        Shapes that do not fit; both ``lengths`` and ``indptr``; a -1 with an id behind it; ids
        outside the vocabulary; uniforms outside [0, 1). Of what is read: a drafted id with
        ``draft_probs == 0``, entries that are NaN, infinite or negative, a row to be drawn from
        that is all zero. Request and position are named; nothing partial is returned.
    NotImplementedError
        Arrays on another device than the CPU.

    Notes
    -----
    Only what is needed is read, and only what is read is checked. ``"standard"`` reads two entries
    for each accepted token and the row or rows of the final draw; ``"block"`` reads in addition the
    rows behind its last accepted token; ``"greedy"`` reads target rows up to the first difference.

    A token is accepted if ``u * draft < target`` in float64. The final draw is an inverse CDF over
    the unnormalised weights, with sums in float64 in a fixed order: the result has the same bits in
    any batch, layout, array kind and number of threads. An id of zero probability is never drawn.
    Where rows do not sum to one, a rejection can find an all-zero residual; the replacement is then
    drawn from the target's row.

    ``"standard"`` is Leviathan, Kalman and Matias, ICML 2023, algorithm 1 (arXiv 2211.17192), and
    Chen et al. 2023 (arXiv 2302.01318); ``"block"`` is Sun et al., "Block Verification Accelerates
    Speculative Decoding", ICLR 2025, algorithm 2 (arXiv 2403.10444).

    Examples
    --------
    Two requests, the second with one drafted token:

    >>> import numpy as np
    >>> draft = np.array([[[0.8, 0.2], [0.5, 0.5]], [[0.5, 0.5], [0.0, 0.0]]])
    >>> target = np.array([[[0.4, 0.6], [0.5, 0.5], [0.1, 0.9]], [[0.5, 0.5], [0.9, 0.1], [0, 0]]])
    >>> ids = np.array([[0, 1], [1, -1]])
    >>> uniforms = np.array([[0.7, 0.2, 0.3], [0.6, 0.4, 0.0]])
    >>> verify_chain(draft, target, ids, uniforms)
    ChainVerdict(num_accepted=array([0, 1], dtype=int32), token_ids=array([[ 1, -1, -1],
           [ 1,  0, -1]], dtype=int32))
    """
    if lengths is None and indptr is None and bonus_token_ids is None:
        plain = _core.verify_plain_chains(
            draft_probs, target_probs, draft_token_ids, uniforms, method
        )
        if plain is not None:
            return ChainVerdict(*plain)
    rule = method_of(method)
    if rule == "greedy":
        draft_probs = uniforms = None  # not read, and so not looked at
    arrays: dict[str, object] = {"draft_probs": draft_probs, "target_probs": target_probs}
    if draft_probs is None:
        del arrays["draft_probs"]
    rows = rows_of(arrays, "verify_chain")
    numbers = numbers_of(
        rule,
        draft_token_ids,
        uniforms,
        lengths,
        indptr,
        bonus_token_ids,
        greedy=rule == "greedy",
    )
    if not are_plain(draft_token_ids, uniforms, lengths, indptr, bonus_token_ids):
        # Code of their classes has run: what it did to the arrays has to be seen.
        rows = rows_of(arrays, "verify_chain")
    requests = requests_of(numbers, rows, tuple(arrays))
    verdict = _core.verify_chains(
        None if draft_probs is None else rows.draft, rows.target, requests, rule, rows.bfloat16
    )
    return wrapped(rows, verdict)


def wrapped(rows: Rows, verdict: tuple[Any, Any]) -> ChainVerdict[Any]:
    """Hand the answers over to the rows' library."""
    return ChainVerdict(*(rows.kind.wrap(part, "int32", rows.device) for part in verdict))
