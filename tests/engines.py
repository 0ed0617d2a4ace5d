"""What the tests of all adapters share: a table worked out by hand, and a watch on copies.

Two drafted tokens over four ids. In the first row of the models 0 is kept with probability 1/2, and
1 and 2 always; in the second 0 never, and all others always. Both residuals leave 1 alone. Behind
them 2 and 3 are equally probable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kinds import need

DRAFT = [[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]]
TARGET = [[0.25, 0.5, 0.25, 0.0], [0.0, 0.5, 0.25, 0.25], [0.0, 0.0, 0.5, 0.5]]


class Case(NamedTuple):
    """A drafted chain, its uniforms, and what is to come of it."""

    ids: list[int]
    uniforms: list[float]
    emitted: list[int]
    # How many tokens pass the test of their position, each for itself.
    passing: int


CASES = [
    Case([0, 1], [0.25, 0.75, 0.25], [0, 1, 2], 2),  # u * draft is 1/8 and 3/16
    Case([0, 1], [0.75, 0.0, 0.75], [1], 1),  # 3/8 is above the target's 1/4
    Case([0, 0], [0.75, 0.0, 0.5], [1], 0),  # 0 < 0 is false
    Case([1, 0], [0.875, 0.5, 0.875], [1, 1], 1),
    Case([2, 2], [0.875, 0.875, 0.75], [2, 2, 3], 2),
    Case([1, 3], [0.5, 0.5, 0.0], [1, 3, 2], 2),
]
KEPT = [len(case.emitted) - 1 for case in CASES]
EMITTED = [[*case.emitted, -1, -1][:3] for case in CASES]


def tensor(values: Any, dtype: str = "float32") -> Any:
    """Make a Torch tensor."""
    torch = need("torch")
    return torch.tensor(values, dtype=getattr(torch, dtype))


def rows(dtype: str = "float32") -> tuple[Any, Any]:
    """Repeat both models' rows for each case: (B, 2, 4) and (B, 3, 4)."""
    number = len(CASES)
    return tensor([DRAFT] * number, dtype), tensor([TARGET] * number, dtype)


def ids(dtype: str = "int32") -> Any:
    return tensor([case.ids for case in CASES], dtype)


def uniforms(dtype: str = "float32") -> Any:
    return tensor([case.uniforms for case in CASES], dtype)


def large_results(call: Callable[[], object], entries: int, *inputs: Any) -> list[str]:
    """Name the Torch operations that make a tensor of so many entries in memory of its own."""
    mode: Any = need("torch.utils._python_dispatch").TorchDispatchMode
    known = {each.untyped_storage().data_ptr() for each in inputs}
    found: list[str] = []

    class Watch(mode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple | list) else [result]:
                size = getattr(each, "numel", int)()
                if size >= entries and each.untyped_storage().data_ptr() not in known:
                    found.append(str(func))
                    known.add(each.untyped_storage().data_ptr())
            return result

    with Watch():
        call()
    return found
