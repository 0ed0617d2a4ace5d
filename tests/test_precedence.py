"""Several things wrong at once: which one is reported.

Kinds and dtypes come before devices, these before shapes, shapes before the token, the token before
values, the draft before the target.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from draftverify import accept_probs, accept_residual, speculative_decode_step
from kinds import elsewhere, need, refused

BOTH = "draft_probs and target_probs: expected"
# In the order in which they are reported, with what the message begins with.
FAULTS: dict[str, tuple[type[Exception], str]] = {
    "kind of draft": (TypeError, "draft_probs: expected a NumPy array"),
    "kind of target": (TypeError, "target_probs: expected a NumPy array"),
    "library": (TypeError, f"{BOTH} arrays of one library"),
    "dtype": (TypeError, f"{BOTH} one dtype"),
    "device": (ValueError, f"{BOTH} one device"),
    "shape": (ValueError, f"{BOTH} one shape"),
    "token is no integer": (TypeError, "draft"),
    "token is outside": (ValueError, "draft"),
    "draft cannot propose it": (ValueError, "draft"),
    "value of draft": (ValueError, "draft_probs: expected finite"),
    "value of target": (ValueError, "target_probs: expected finite"),
}
# A list has neither dtype nor device; a token is wrong in one way, and so is the entry there.
EXCLUSIVE = [
    {"library", "dtype"},
    {"library", "device"},
    *map(set, combinations([fault for fault in FAULTS if fault.startswith("token")], 2)),
    {"draft cannot propose it", "value of draft"},
]
SINGLES = [*product(["numpy", "torch"], FAULTS)]
SINGLES.remove(("numpy", "device"))  # NumPy has one only
PAIRS = [
    (library, first, second)
    for (library, first), second in product(SINGLES, FAULTS)
    if (library, second) in SINGLES
    and (first, second) in [*combinations(FAULTS, 2)]
    and {first, second} not in EXCLUSIVE
]
CALLS: dict[str, Callable[..., Any]] = {
    "step": speculative_decode_step,
    "rows": accept_residual,
    "probs": accept_probs,
}


def with_faults(library: str, faults: set[str], as_rows: bool) -> tuple[Any, Any, Any]:
    """Make the arguments of a call with these things wrong."""
    draft = np.array([0.5, 0.25, 0.25], np.float32)
    target = np.array([0.25, 0.25, 0.5], np.float32)
    token: Any = 1
    if "value of draft" in faults:
        draft[1] = -1.0
    if "value of target" in faults:
        target[1] = np.nan
    if "draft cannot propose it" in faults:
        draft[1] = 0.0
    if "token is outside" in faults:
        token = -1
    if "token is no integer" in faults:
        token = 1.5
    if "shape" in faults:
        target = np.append(target, np.float32(0))
    if "dtype" in faults:
        target = target.astype(np.float64)
    rows: list[Any] = [draft[None], target[None]] if as_rows else [draft, target]
    if library == "torch":
        rows = [need("torch").from_numpy(row) for row in rows]
    if "device" in faults:
        place = 1 if "kind of draft" in faults else 0  # the one whose kind is right
        rows[place] = elsewhere(rows[place])
    for place, name in enumerate(("draft", "target")):
        if f"kind of {name}" in faults:
            row = rows[place]
            rows[place] = row.to_sparse() if library == "torch" else np.ma.array(row)
    if "library" in faults:
        place = 1 if "kind of draft" in faults else 0
        rows[place] = [[1.0]] if as_rows else [1.0]
    return rows[0], rows[1], [token] if as_rows else token


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("library", "first", "second"), PAIRS)
def test_the_first_fault_is_reported(library: str, first: str, second: str, call: str) -> None:
    need(library)
    arguments = with_faults(library, {first, second}, as_rows=call != "step")
    error, beginning = FAULTS[first]
    refused(error, CALLS[call], *arguments, says=(beginning,))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("library", "fault"), SINGLES)
def test_each_fault_alone_is_reported(library: str, fault: str, call: str) -> None:
    """Without this, a fault that goes unnoticed would look like one that comes late."""
    need(library)
    arguments = with_faults(library, {fault}, as_rows=call != "step")
    error, beginning = FAULTS[fault]
    refused(error, CALLS[call], *arguments, says=(beginning,))


@pytest.mark.parametrize("call", [accept_residual, accept_probs])
def test_ids_of_all_rows_come_before_what_the_draft_cannot_propose(call: Any) -> None:
    """And these before any entries: of each sort the lowest row is named."""
    draft = np.full((4, 3), 0.25)
    target = np.full((4, 3), 0.25)
    target[0, 0], draft[1, 1], draft[2, 1] = np.nan, 0.0, 0.0
    refused(
        ValueError, call, draft, target, [0, 1, 1, -1], says=("draft_token_ids", "got -1 in row 3")
    )
    refused(
        ValueError, call, draft, target, [0, 1, 1, 2], says=("draft_token_ids", "got 1 in row 1")
    )
    refused(ValueError, call, draft, target, [0, 0, 0, 2], says=("target_probs", "in row 0"))
