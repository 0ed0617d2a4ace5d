"""The compiled part: the public function, and what `_api` calls."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, SupportsIndex, TypeVar, overload, type_check_only

import numpy as np
from numpy.typing import NDArray

from draftverify._drafted import Requests

__all__ = [
    "__version__",
    "accept_entries",
    "accept_plain_rows",
    "accept_rows",
    "accept_vectors",
    "get_num_threads",
    "plain_tensor",
    "rate_rows",
    "set_num_threads",
    "speculative_decode_step",
    "verify_chains",
    "verify_logits_chains",
    "verify_plain_chains",
    "verify_plain_logits_chains",
]

_ArrayT = TypeVar("_ArrayT")

# A plain dictionary at run time. Not a TypedDict: mypy takes the entries of a generic one for
# `object` where an argument of the overloaded function is Any.
@type_check_only
class _Step(dict[str, Any], Generic[_ArrayT]):
    @overload
    def __getitem__(self, key: Literal["accept_prob"], /) -> float: ...
    @overload
    def __getitem__(self, key: Literal["residual"], /) -> _ArrayT: ...
    @overload
    def __getitem__(self, key: str, /) -> Any: ...

__version__: str

# A list is an array of its own kind to the second signature; the first one is tried first.
@overload
def speculative_decode_step(
    draft_probs: Sequence[float], target_probs: Sequence[float], drafted_token: SupportsIndex
) -> _Step[NDArray[np.float64]]: ...
@overload
def speculative_decode_step(
    draft_probs: _ArrayT, target_probs: _ArrayT, drafted_token: SupportsIndex
) -> _Step[_ArrayT]: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def plain_tensor(tensor: object) -> NDArray[Any] | None: ...
def accept_vectors(
    draft: NDArray[Any], target: NDArray[Any], token: int, bfloat16: bool
) -> tuple[float, NDArray[Any]]: ...
def accept_plain_rows(
    draft: object, target: object, token_ids: object, out: object, check: object
) -> tuple[Any, Any, Any] | None: ...
def accept_rows(
    draft: NDArray[Any],
    target: NDArray[Any],
    token_ids: NDArray[np.int64],
    out: NDArray[Any],
    check: bool,
    bfloat16: bool,
) -> list[NDArray[np.float64]]: ...
def accept_entries(
    draft: NDArray[Any], target: NDArray[Any], token_ids: NDArray[np.int64], bfloat16: bool
) -> NDArray[np.float64]: ...
def verify_chains(
    draft: NDArray[Any] | None,
    target: NDArray[Any],
    requests: Requests,
    method: str,
    bfloat16: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def verify_logits_chains(
    draft: NDArray[Any] | None,
    target: NDArray[Any],
    requests: Requests,
    method: str,
    bfloat16: bool,
    settings: tuple[Any, ...],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def verify_plain_chains(
    draft: object, target: object, token_ids: object, uniforms: object, method: object
) -> tuple[Any, Any] | None: ...
def verify_plain_logits_chains(
    draft: object,
    target: object,
    token_ids: object,
    uniforms: object,
    method: object,
    settings: tuple[object, ...],
) -> tuple[Any, Any] | None: ...
def rate_rows(draft: NDArray[Any], target: NDArray[Any], bfloat16: bool) -> NDArray[np.float64]: ...
