"""How code under test is called: what it is handed, and what its answers must look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from draftverify._kinds import type_name
from draftverify._tokens import as_integers
from draftverify.testing._instances import Instance
from draftverify.testing._laws import Context, Model, Path
from draftverify.testing._rules import RULES, ZERO, Row, Rule, most_probable, one_hot


@dataclass(frozen=True)
class Feed:
    """How code under test is fed.

    Attributes
    ----------
    one_hot : bool
        Pass None for the draft's rows: the drafted tokens are certain proposals.
    log_probs : bool
        Pass logarithms of the probabilities, -inf for 0, as logits.
    dtype, uniform_dtype : dtype
        Of the rows and of the uniforms.
    interval : str
        ``"[0,1)"``, or ``"(0,1]"`` for code that expects uniforms as cuRAND makes them.
    padding : int
        So many positions more than drafted tokens: ids of -1, rows and uniforms of NaN.
    tolerance : float, optional
        How far from the exact thresholds, in a uniform, the code may change its mind. By default
        not at all where all numbers are exact in the dtype, else a few of its rounding errors.
        Code with exponentials of its own needs as much as these are off: 1e-10 for
        `draftverify.verify_chain_logits` with float64 rows.
    convert : callable, optional
        From a NumPy array to one of the library that the code takes, as `torch.from_numpy`.
    """

    one_hot: bool = False
    log_probs: bool = False
    dtype: DTypeLike = np.float64
    uniform_dtype: DTypeLike = np.float64
    interval: Literal["[0,1)", "(0,1]"] = "[0,1)"
    padding: int = 0
    tolerance: float | None = None
    convert: Callable[[NDArray[Any]], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what would make right code look wrong."""
        object.__setattr__(self, "interval", str(self.interval).replace(" ", ""))
        if self.interval not in {"[0,1)", "(0,1]"}:
            message = f"interval: expected '[0,1)' or '(0,1]', got {self.interval!r}; pass one"
            raise ValueError(message)
        for name in ("dtype", "uniform_dtype"):
            dtype = np.dtype(getattr(self, name))
            if dtype.kind != "f" and dtype.name != "bfloat16":
                message = f"{name}: expected a floating dtype, got {dtype.name}; pass one"
                raise TypeError(message)
        if type(self.padding) is not int or self.padding < 0:
            message = (
                f"padding: expected a number of positions >= 0, got {self.padding!r}; pass one"
            )
            raise ValueError(message)
        if self.convert is not None and not callable(self.convert):
            message = f"convert: expected a function, got {type_name(self.convert)}; pass one"
            raise TypeError(message)


PLAIN = Feed()
_BOTH = "answer both as draftverify.verify_chain does"


def expect_callable(verify: object) -> None:
    """Refuse what cannot be called, before it is called."""
    if not callable(verify):
        message = (
            f"verify: expected a function that verifies chains, got {type_name(verify)}; pass one "
            f"with the arguments and the answer of draftverify.verify_chain"
        )
        raise TypeError(message)


def rule_of(method: str, feed: Feed = PLAIN) -> Rule:
    """Find the right rule for a method by its name."""
    if method not in RULES:
        message = f"method: expected one of {', '.join(RULES)}, got {method!r}"
        raise ValueError(message)
    return one_hot(RULES[method]) if feed.one_hot else RULES[method]


def target_of(instance: Instance, method: str) -> Model:
    """Give the model whose law is to be emitted: of greedy verification, that of the argmax."""
    if method != "greedy":
        return instance.target
    return lambda context: most_probable(instance.target(context))


class Probe(NamedTuple):
    """Uniforms for one drafted chain and what each row of them counts."""

    path: Path
    uniforms: NDArray[np.float64]
    weights: NDArray[np.object_]
    denominator: int


def answers(
    verify: Callable[..., Any], probes: list[Probe], vocabulary: int, feed: Feed
) -> dict[tuple[Context, int], Fraction]:
    """Let the code verify, check the form of its answers, and weigh them."""
    return weighed(probes, *asked(verify, probes, vocabulary, feed), vocabulary)


def asked(
    verify: Callable[..., Any], probes: list[Probe], vocabulary: int, feed: Feed
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Let the code verify: how many tokens it keeps for each row of uniforms, and the final id."""
    length = len(probes[0].path.token_ids)
    repeats = [len(probe.uniforms) for probe in probes]
    ids = np.repeat(
        np.array([probe.path.token_ids for probe in probes], np.int64).reshape(len(probes), length),
        repeats,
        axis=0,
    )
    arrays: list[NDArray[Any] | None] = [
        None
        if feed.one_hot
        else _rows([probe.path.draft_rows for probe in probes], repeats, vocabulary, feed),
        _rows([probe.path.target_rows for probe in probes], repeats, vocabulary, feed),
        _padded(ids, feed.padding, -1),
        _padded(
            np.concatenate([probe.uniforms for probe in probes]).astype(feed.uniform_dtype),
            feed.padding,
            np.nan,
        ),
    ]
    convert = feed.convert or (lambda array: array)
    answer = verify(*(None if array is None else convert(array) for array in arrays))
    kept, emitted = verdicts(answer, ids, vocabulary, feed.padding)
    return kept, emitted[np.arange(len(kept)), kept]


def weighed(
    probes: list[Probe],
    kept: NDArray[np.int64],
    finals: NDArray[np.int64],
    vocabulary: int,
) -> dict[tuple[Context, int], Fraction]:
    """Add up what the rows of uniforms with one answer count."""
    tally: dict[tuple[Context, int], Fraction] = {}
    start = 0
    for probe in probes:
        rows = slice(start, start := start + len(probe.uniforms))
        codes = kept[rows] * vocabulary + finals[rows]
        for code in np.unique(codes).tolist():
            n, final = divmod(code, vocabulary)
            count = int(probe.weights[codes == code].sum())
            key = ((*probe.path.token_ids[:n], final), n)
            share = probe.path.probability * Fraction(count, probe.denominator)
            tally[key] = tally.get(key, ZERO) + share
    return tally


def _rows(
    of_probes: list[tuple[Row, ...]], repeats: list[int], vocabulary: int, feed: Feed
) -> NDArray[Any]:
    """Make the rows of a batch in the dtype of the feed."""
    floats = np.array([[[float(x) for x in row] for row in rows] for rows in of_probes])
    floats = floats.reshape(len(of_probes), len(of_probes[0]), vocabulary)
    if feed.log_probs:
        with np.errstate(divide="ignore"):
            floats = np.log(floats)
    return _padded(np.repeat(floats.astype(feed.dtype), repeats, axis=0), feed.padding, np.nan)


def _padded(array: NDArray[Any], padding: int, fill: float) -> NDArray[Any]:
    """Add positions that must not be read."""
    if not padding:
        return array
    shape = (array.shape[0], padding, *array.shape[2:])
    return np.concatenate([array, np.full(shape, fill).astype(array.dtype)], axis=1)


def verdicts(
    answer: Any, ids: NDArray[np.int64], vocabulary: int, padding: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Take num_accepted and token_ids to NumPy; raise if they cannot be what was asked for."""
    if not isinstance(answer, tuple | list):
        message = f"verify: expected (num_accepted, token_ids), got {type_name(answer)}; {_BOTH}"
        raise TypeError(message)
    if len(answer) != 2:  # noqa: PLR2004 - as the message says
        message = f"verify: expected (num_accepted, token_ids), got {len(answer)} of them; {_BOTH}"
        raise ValueError(message)
    kept, emitted = (
        as_integers(f"{name} of verify", each)
        for name, each in zip(("num_accepted", "token_ids"), answer, strict=True)
    )
    rows, length = ids.shape
    expected = (rows, length + padding + 1)
    if kept.shape != (rows,) or emitted.shape != expected:
        message = (
            f"verify: expected num_accepted of shape ({rows},) and token_ids of shape {expected}, "
            f"got {kept.shape} and {emitted.shape}; {_BOTH}"
        )
        raise ValueError(message)
    column = np.arange(length + padding + 1)
    proposed = np.concatenate([ids, np.zeros((rows, padding + 1), np.int64)], axis=1)
    n = kept[:, None]
    within = (emitted >= 0) & (emitted < vocabulary)
    wrong = {
        f"expected num_accepted from 0 to {length}": (kept < 0) | (kept > length),
        "expected the kept ids to be the drafted ones": ((column < n) & (emitted != proposed)).any(
            1
        ),
        f"expected a final id from 0 to {vocabulary - 1}": ((column == n) & ~within).any(1),
        "expected -1 behind the final id": ((column > n) & (emitted != -1)).any(1),
    }
    for expectation, rows_wrong in wrong.items():
        if rows_wrong.any():
            b = int(np.argmax(rows_wrong))
            message = (
                f"verify: {expectation} for the drafted {ids[b].tolist()}, got num_accepted "
                f"{kept[b]} and token_ids {emitted[b].tolist()}; {_BOTH}"
            )
            raise ValueError(message)
    return kept, emitted
