"""Whole chains of drafted tokens, from logits."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftverify import _core, _tokens
from draftverify._arrays import rows_of
from draftverify._chains import ChainVerdict, Method, wrapped
from draftverify._compiling import eager
from draftverify._drafted import are_plain, method_of, numbers_of, requests_of

_ArrayT = TypeVar("_ArrayT")


@eager
def verify_chain_logits(  # noqa: PLR0913 - one request has as many parts
    draft_logits: _ArrayT | None,
    target_logits: _ArrayT,
    draft_token_ids: object,
    uniforms: object,
    *,
    temperature: object = 1.0,
    draft_temperature: object = None,
    top_k: object = None,
    top_p: object = None,
    min_p: object = None,
    filter_draft: bool = False,
    lengths: object = None,
    indptr: object = None,
    method: Method = "standard",
    bonus_token_ids: object = None,
) -> ChainVerdict[_ArrayT]:
    """Verify the drafted tokens of several requests, given logits.

    As `verify_chain` with ``softmax(logits / temperature)`` of every row, filtered if asked, but no
    array of probabilities is made: each row is summed where it lies, and only where it is needed.

    Parameters
    ----------
    draft_logits : array, shape (B, K, V) or (T, V), or None
        The logits that the tokens were drawn from, float16, bfloat16, float32 or float64; layouts
        and kinds as for `verify_chain`. None for proposals that were the only possible ones.
        ``-inf`` is a probability of 0.
    target_logits : array, shape (B, K + 1, V) or (T + B, V)
        The target model's logits; (B, K, V) or (T, V) with ``bonus_token_ids``.
    draft_token_ids : array or list of int, shape (B, K) or (T,)
        As for `verify_chain`.
    uniforms : array or list of float, shape (B, K + 1) or (T + B,), or None
        As for `verify_chain`: independent of each other and of all randomness that the tokens were
        drafted with. None is allowed where all requests are greedy.
    temperature : float or array of float, shape (B,), default 1.0
        What the target's logits are divided by: from 0 to 1e300. 0 verifies a request by
        ``method="greedy"``.
    draft_temperature : float or array of float, shape (B,), optional
        What the draft's logits are divided by; as ``temperature`` by default. Pass both where the
        target's logits were already divided, for example ``temperature=1.0,
        draft_temperature=0.7``. 0 for tokens that were the draft's most probable ones, of several
        the lowest id.
    top_k : int or array of int, shape (B,), optional
        Restrict the target's laws to so many of the largest logits, and all that are equal to the
        last of them. 0 and None keep all. The filters come after the temperature in the order
        top_k, top_p, min_p, each on what is left, renormalised. A bound that is missed by less
        than 1e-10 is reached.
    top_p : float or array of float, shape (B,), optional
        Restrict them to the fewest most probable ids whose probability reaches this, above 0 and up
        to 1; of equally probable ids the lowest. 1 and None keep all.
    min_p : float or array of float, shape (B,), optional
        Restrict them to ids of at least this fraction of the largest probability, from 0 to 1. 0
        and None keep all.
    filter_draft : bool, default False
        Whether the draft's laws were filtered in the same way.
    lengths : array or list of int, shape (B,), optional
        As for `verify_chain`.
    indptr : array or list of int, shape (B + 1,), optional
        As for `verify_chain`.
    method : {"standard", "block", "greedy"}, default "standard"
        As for `verify_chain`.
    bonus_token_ids : array or list of int, shape (B,), optional
        As for `verify_chain`.

    Returns
    -------
    ChainVerdict
        ``(num_accepted, token_ids)``, as of `verify_chain`.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `verify_chain` does; settings out of range. Of what is read: a drafted id whose draft
        logit is -inf or filtered away, logits that are NaN or +inf, rows of -inf alone.

    Notes
    -----
    The result is that of float64 arithmetic whatever the dtype of the logits, with an exponential
    of the library's own: a probability is off by less than 1e-10 of its value. Where float32 surely
    tells the same, it is found in float32. The bits are the same in any batch, layout and array
    kind, for any number of threads and any instructions of the processor.
    A token is accepted by the difference of logarithms, so that no finite logit is too small.

    An accepted token takes one pass over each of its two rows, a replacement one more; there are
    no temporary arrays beyond a few kilobytes, but for top_k and top_p a copy of what may be left.

    See `verify_chain` for the sources.

    Examples
    --------
    >>> import numpy as np
    >>> draft = np.log(np.array([[[0.8, 0.2]]]))
    >>> target = np.log(np.array([[[0.4, 0.6], [0.5, 0.5]]]))
    >>> verify_chain_logits(draft, target, [[0]], [[0.7, 0.3]])
    ChainVerdict(num_accepted=array([0], dtype=int32), token_ids=array([[ 1, -1]], dtype=int32))
    """
    if lengths is None and indptr is None and bonus_token_ids is None:
        plain = _core.verify_plain_logits_chains(
            draft_logits,
            target_logits,
            draft_token_ids,
            uniforms,
            method,
            (temperature, draft_temperature, top_k, top_p, min_p, filter_draft),
        )
        if plain is not None:
            return ChainVerdict(*plain)
    rule = method_of(method)
    if rule == "greedy":
        draft_logits = uniforms = None  # not read, and so not looked at
    arrays: dict[str, object] = {"draft_logits": draft_logits, "target_logits": target_logits}
    if draft_logits is None:
        del arrays["draft_logits"]
    rows = rows_of(arrays, "verify_chain_logits")
    target_temperature = _number("temperature", temperature)
    numbers = numbers_of(
        rule,
        draft_token_ids,
        uniforms,
        lengths,
        indptr,
        bonus_token_ids,
        greedy=rule == "greedy" or _is_zero(target_temperature),
    )
    settings = {
        "temperature": target_temperature,
        "draft_temperature": target_temperature
        if draft_temperature is None
        else _number("draft_temperature", draft_temperature),
        "top_k": 0 if top_k is None else _integer("top_k", top_k),
        "top_p": 1.0 if top_p is None else _number("top_p", top_p),
        "min_p": 0.0 if min_p is None else _number("min_p", min_p),
    }
    filtered = _tokens.as_flag("filter_draft", filter_draft)
    others = (temperature, draft_temperature, top_k, top_p, min_p, filter_draft)
    if not are_plain(draft_token_ids, uniforms, lengths, indptr, bonus_token_ids, *others):
        # Code of their classes has run: what it did to the arrays has to be seen.
        rows = rows_of(arrays, "verify_chain_logits")
    requests = requests_of(numbers, rows, tuple(arrays))
    for name, setting in settings.items():
        if isinstance(setting, np.ndarray) and setting.shape != (requests.number,):
            message = (
                f"{name}: expected one number or shape ({requests.number},), got {setting.shape}; "
                f"pass one for each request"
            )
            raise ValueError(message)
    verdict = _core.verify_logits_chains(
        None if draft_logits is None else rows.draft,
        rows.target,
        requests,
        rule,
        rows.bfloat16,
        (*settings.values(), filtered),
    )
    return wrapped(rows, verdict)


def _number(name: str, value: Any) -> float | NDArray[np.float64]:
    """Take a number, or an array of them."""
    if type(value) is float:
        return value
    numbers = _tokens.as_numbers(name, value, "a number, or one for each request")
    return numbers if numbers.ndim else float(numbers)


def _is_zero(numbers: float | NDArray[np.float64]) -> bool:
    """Whether a number is 0, or all of them are."""
    return numbers == 0 if isinstance(numbers, float) else not numbers.any()


def _integer(name: str, value: Any) -> int | NDArray[np.int64]:
    """Take a number of ids, or an array of them."""
    numbers = _tokens.as_integers(name, value, "an integer, or one for each request")
    negative = numbers < 0
    if negative.any():
        request = int(np.argmax(negative))
        message = (
            f"{name}: expected numbers >= 0, got {numbers.flat[request]} for request {request}; "
            f"pass 0 to keep all"
        )
        raise ValueError(message)
    return numbers if numbers.ndim else int(numbers)
