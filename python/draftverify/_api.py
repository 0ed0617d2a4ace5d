"""The public functions: what they mean, what they check, where the work goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from draftverify import _arrays, _compiling, _core, _tokens

_ArrayT = TypeVar("_ArrayT")
_ScalarT = TypeVar("_ScalarT", bound=np.generic)
_RowsT = TypeVar("_RowsT")
_VectorT = TypeVar("_VectorT")
_Lists = Sequence[Sequence[float]]
_Float64s = NDArray[np.float64]


class AcceptResidual(NamedTuple, Generic[_RowsT, _VectorT]):
    """What `accept_residual` answers, in the library of the rows.

    Attributes
    ----------
    accept_prob : array, shape (N,), float64
        The probability of keeping each drafted token.
    residual : array, shape (N, V), dtype of the rows
        The law that the replacement of a rejected token is drawn from.
    mass : array, shape (N,), float64
        The sum of ``max(target_probs - draft_probs, 0)`` of each row: one minus the acceptance
        rate where both rows sum to one.
    """

    accept_prob: _VectorT
    residual: _RowsT
    mass: _VectorT


def step(draft_probs: object, target_probs: object, drafted_token: object) -> dict[str, Any]:
    """Answer or refuse a `speculative_decode_step` that the compiled function handed on."""
    if _compiling.recording(draft_probs):
        return _compiling.unrecorded(step, draft_probs, target_probs, drafted_token)
    if type(drafted_token) is not int:
        expect_shapes(_arrays.pair(draft_probs, target_probs), "(V,)", 1)
        # Code of the token's class runs here. What it does to the arrays is seen by what follows.
        return step(draft_probs, target_probs, _tokens.as_index("drafted_token", drafted_token))
    rows = _arrays.pair(draft_probs, target_probs)
    expect_shapes(rows, "(V,)", 1)
    if rows.backend is not None:
        if rows.views:
            _tokens.within("drafted_token", drafted_token, rows.draft.shape[0])
        return rows.backend.step(draft_probs, target_probs, drafted_token)
    token = _tokens.in_int64("drafted_token", drafted_token, rows.draft.shape[0])
    accept_prob, residual = _core.accept_vectors(rows.draft, rows.target, token, rows.bfloat16)
    return {
        "accept_prob": accept_prob,
        "residual": rows.kind.wrap(residual, rows.dtype, rows.device),
    }


@overload
def accept_residual(
    draft_probs: _Lists,
    target_probs: _Lists,
    draft_token_ids: object,
    *,
    out: _Float64s | None = None,
    check: bool = True,
) -> AcceptResidual[_Float64s, _Float64s]: ...
@overload
def accept_residual(
    draft_probs: NDArray[_ScalarT],
    target_probs: NDArray[_ScalarT],
    draft_token_ids: object,
    *,
    out: NDArray[_ScalarT] | None = None,
    check: bool = True,
) -> AcceptResidual[NDArray[_ScalarT], _Float64s]: ...
@overload
def accept_residual(
    draft_probs: _ArrayT,
    target_probs: _ArrayT,
    draft_token_ids: object,
    *,
    out: _ArrayT | None = None,
    check: bool = True,
) -> AcceptResidual[_ArrayT, _ArrayT]: ...
def accept_residual(
    draft_probs: object,
    target_probs: object,
    draft_token_ids: object,
    *,
    out: object = None,
    check: bool = True,
) -> AcceptResidual[Any, Any]:
    """Verify one drafted token per row, rows in parallel.

    Row ``i`` has the bits that `speculative_decode_step` gives for it alone.

    Parameters
    ----------
    draft_probs, target_probs : array, shape (N, V)
        Probabilities of the draft and of the target model, of the kinds and dtypes that
        `speculative_decode_step` takes. N may be 0. Rows may have any strides.
    draft_token_ids : array or list of int, shape (N,)
        The proposals, one a row, in any integer dtype and any array library.
    out : array, shape (N, V), optional
        Where the residuals go: same library, dtype and device as the rows, any strides, writable,
        sharing no memory with the inputs. It is the object returned as ``residual``. A serving loop
        that passes the same one each time saves the page faults of fresh memory.
    check : bool, default True
        Raise on rows that cannot be answered. With False such a row answers NaN as its
        ``accept_prob``, as its ``mass`` and in all of its residual. Shapes, dtypes and the range of
        the ids are checked either way.

    Returns
    -------
    AcceptResidual
        ``(accept_prob, residual, mass)``: float64 of shape (N,), the residuals, float64 of shape
        (N,).

    Raises
    ------
    TypeError
        Arrays of another kind or dtype, or of two; ids that are not integers; a ``check`` that is
        no bool, Python's or NumPy's.
    ValueError
        Shapes that do not fit; ids outside the vocabulary; an ``out`` that cannot be written to or
        overlaps an input. With ``check``, a drafted id with ``draft_probs == 0``, and entries
        that are NaN, infinite or negative: the lowest row is named, all ids before any entries.
        ``out`` is as it was, unless the error is about entries: then its content is unspecified.
    ImportError, NotImplementedError
        ``DRAFTVERIFY_BACKEND=cupy`` in the environment, and no CuPy that works; another device.

    Notes
    -----
    Leviathan, Kalman and Matias, ICML 2023, algorithm 1 (arXiv 2211.17192), row by row.

    On a GPU the work is queued on the caller's current stream. With ``check`` the call waits for
    the answers, once; without it nothing waits, and ids that are on the GPU are not looked at
    before: a row whose id is outside the vocabulary answers NaN too. Calls without ``check``, with
    ids of int64 on the GPU, can be captured in a CUDA graph.

    Arrays of other libraries, and on a GPU without CuPy, are computed by the operators of their own
    library, with the same bits where those round exactly. Where a device has no float64,
    ``accept_prob`` and ``mass`` are float32.

    Examples
    --------
    >>> import numpy as np
    >>> draft = np.array([[0.8, 0.2], [0.5, 0.5]])
    >>> target = np.array([[0.4, 0.6], [0.5, 0.5]])
    >>> accept_residual(draft, target, [0, 1])
    AcceptResidual(accept_prob=array([0.5, 1. ]), residual=array([[0., 1.],
           [0., 0.]]), mass=array([0.4, 0. ]))
    """
    if _compiling.recording(draft_probs):
        recorded: AcceptResidual[Any, Any] = _compiling.accept_residual(
            draft_probs, target_probs, draft_token_ids, out, check
        )
        return recorded
    plain = _core.accept_plain_rows(draft_probs, target_probs, draft_token_ids, out, check)
    if plain is not None:
        return AcceptResidual(*plain)
    rows = _arrays.pair(draft_probs, target_probs)
    expect_shapes(rows, "(N, V)", 2)
    if rows.backend is not None:
        flag = _tokens.as_flag("check", check)
        answer = rows.backend.accept_residual(draft_probs, target_probs, draft_token_ids, out, flag)
        return AcceptResidual(*answer)
    ids = _tokens.as_indices(draft_token_ids, *rows.draft.shape)
    if type(check) is not bool:
        check = _tokens.as_flag("check", check)
    if type(draft_token_ids) is not np.ndarray:
        # Code of the ids' classes has run: what it did to the arrays has to be seen.
        rows = _arrays.pair(draft_probs, target_probs)
        expect_shapes(rows, "(N, V)", 2)
    if out is None:
        residual = np.empty(rows.draft.shape, rows.draft.dtype.newbyteorder("="))
    else:
        inputs = {
            "draft_probs": draft_probs,
            "target_probs": target_probs,
            "draft_token_ids": draft_token_ids,
        }
        residual = _arrays.output(out, rows, inputs)
    accept_prob, mass = _core.accept_rows(
        rows.draft, rows.target, ids, residual, check, rows.bfloat16
    )
    if out is not None:
        rows.kind.written(out)
    return AcceptResidual(
        rows.kind.wrap(accept_prob, "float64", rows.device),
        rows.kind.wrap(residual, rows.dtype, rows.device) if out is None else out,
        rows.kind.wrap(mass, "float64", rows.device),
    )


@overload
def accept_probs(
    draft_probs: _Lists, target_probs: _Lists, draft_token_ids: object
) -> _Float64s: ...
@overload
def accept_probs(
    draft_probs: NDArray[Any], target_probs: NDArray[Any], draft_token_ids: object
) -> _Float64s: ...
@overload
def accept_probs(
    draft_probs: _ArrayT, target_probs: _ArrayT, draft_token_ids: object
) -> _ArrayT: ...
def accept_probs(draft_probs: object, target_probs: object, draft_token_ids: object) -> Any:
    """Answer the accept probabilities alone: two entries of every row are read.

    For engines that report accept tests behind the first rejection, where no residual is needed.

    Parameters
    ----------
    draft_probs, target_probs : array, shape (N, V)
        As for `accept_residual`.
    draft_token_ids : array or list of int, shape (N,)
        As for `accept_residual`.

    Returns
    -------
    array, shape (N,), float64
        ``min(1, target_probs[i, t_i] / draft_probs[i, t_i])``, in the library of the rows.

    Raises
    ------
    TypeError, ValueError, ImportError, NotImplementedError
        As `accept_residual` does with ``check=True``; of the entries, those read are checked.

    Examples
    --------
    >>> import numpy as np
    >>> accept_probs(np.array([[0.8, 0.2]]), np.array([[0.4, 0.6]]), [0])
    array([0.5])
    """
    if _compiling.recording(draft_probs):
        return _compiling.unrecorded(accept_probs, draft_probs, target_probs, draft_token_ids)
    rows = _arrays.pair(draft_probs, target_probs)
    expect_shapes(rows, "(N, V)", 2)
    if rows.backend is not None:
        return rows.backend.accept_probs(draft_probs, target_probs, draft_token_ids)
    ids = _tokens.as_indices(draft_token_ids, *rows.draft.shape)
    rows = _arrays.pair(draft_probs, target_probs)  # anew, as in `accept_residual`
    expect_shapes(rows, "(N, V)", 2)
    accepted = _core.accept_entries(rows.draft, rows.target, ids, rows.bfloat16)
    return rows.kind.wrap(accepted, "float64", rows.device)


def expect_shapes(rows: _arrays.Rows, expected: str, ndim: int) -> None:
    """Expect the rows of both models to be of one shape with so many axes."""
    if not rows.views:
        return  # the backend looks at them
    draft, target = tuple(rows.draft.shape), tuple(rows.target.shape)
    if draft != target or len(draft) != ndim or draft[-1] == 0:
        if len(draft) == len(target) == 3:  # noqa: PLR2004 - as the cure says
            cure = "call verify_chain for chains (B, K, V), or reshape"
        elif len(draft) == len(target) != ndim:
            other = (
                "speculative_decode_step for one row" if ndim > 1 else "accept_residual for rows"
            )
            cure = f"call {other}, or reshape"
        elif draft[1:] == target[1:] != ():
            cure = "pass as many rows of each as there are drafted tokens"
        else:
            cure = "pass rows over the same vocabulary"
        message = (
            f"draft_probs and target_probs: expected one shape {expected} with V >= 1, got {draft} "
            f"and {target}; {cure}"
        )
        raise ValueError(message)
