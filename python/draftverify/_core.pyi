"""The compiled part: the public function, and what `_api` calls."""

from collections.abc import Sequence
from typing import Any, Generic, SupportsIndex, TypedDict, TypeVar, overload, type_check_only

import numpy as np
from numpy.typing import NDArray

_ArrayT = TypeVar("_ArrayT")

@type_check_only
class _Step(TypedDict, Generic[_ArrayT]):
    accept_prob: float
    residual: _ArrayT

__version__: str

# A list is an array of its own kind to the second signature; the first one is tried first.
@overload
def speculative_decode_step(  # type: ignore[overload-overlap]
    draft_probs: Sequence[float], target_probs: Sequence[float], drafted_token: SupportsIndex
) -> _Step[NDArray[np.float64]]: ...
@overload
def speculative_decode_step(
    draft_probs: _ArrayT, target_probs: _ArrayT, drafted_token: SupportsIndex
) -> _Step[_ArrayT]: ...
def get_num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def accept_vectors(
    draft: NDArray[Any], target: NDArray[Any], token: int, bfloat16: bool
) -> tuple[float, NDArray[Any]]: ...
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
