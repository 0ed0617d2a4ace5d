"""Ready pairs of models that are small enough to be verified exactly.

`t2`, `t3` and `t4` are for paper and pencil. `dyadic` has only numbers that every float dtype holds
and that no operation of a verification rounds, so that code can be held to the last bit. The
models of `random_models` depend on the context, with zeros and residuals of several tokens:
errors that cancel out where every row is the same do not cancel out there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count

from draftverify.testing._laws import Context, Model
from draftverify.testing._rules import Row

# Weights of the random rows, from 0 on: small, so that zeros and equal entries are common.
_WEIGHTS = 5
_TWO = 2  # atoms of a residual


@dataclass(frozen=True)
class Instance:
    """A draft model, a target model, and how many tokens are drafted a step.

    Attributes
    ----------
    name : str
        What a report calls it.
    draft, target : callable
        From a context, a tuple of ids, to the row of the next token as fractions.
    draft_length : int
        Drafted tokens a step.
    """

    name: str
    draft: Model
    target: Model
    draft_length: int

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.target(()))

    def __str__(self) -> str:
        return f"{self.name} with {self.draft_length} drafted"


def context_free(*weights: int) -> Model:
    """Make a model that gives the same row after every context, proportional to the weights."""
    row = tuple(Fraction(weight, sum(weights)) for weight in weights)
    return lambda _: row


def t2(draft_length: int = 2) -> Instance:
    """Two tokens: target (1/3, 2/3), draft (2/3, 1/3), the example of Sun et al."""
    return Instance("T2", context_free(2, 1), context_free(1, 2), draft_length)


def t3(draft_length: int = 2) -> Instance:
    """Three tokens: target (1/2, 3/10, 1/5), draft (1/5, 3/10, 1/2)."""
    return Instance("T3", context_free(2, 3, 5), context_free(5, 3, 2), draft_length)


def t4(draft_length: int = 2) -> Instance:
    """Four tokens: target (4, 3, 2, 1) / 10, draft (1, 2, 3, 4) / 10; a residual of two tokens."""
    return Instance("T4", context_free(1, 2, 3, 4), context_free(4, 3, 2, 1), draft_length)


def dyadic(draft_length: int = 2) -> Instance:
    """Four tokens, context-dependent, in eighths; exact in every float dtype.

    The draft's probabilities and all residual masses of the standard rule are powers of two, and
    its thresholds are 0, 1/2, 3/4 and 1; those of the block rule are as simple for two drafted
    tokens. Products and quotients are then exact, and so is every comparison, also for the uniform
    numbers next to a threshold. Some target entries are 0, and some residuals have two tokens.
    """
    # By the number of tokens before: weights in eighths of the draft and of the target. The
    # context rotates both alike.
    rows = [
        ((4, 2, 1, 1), (3, 3, 1, 1)),
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((2, 2, 2, 2), (3, 0, 3, 2)),
        ((4, 2, 1, 1), (2, 4, 1, 1)),
    ]

    def model(which: int) -> Model:
        def row(context: Context) -> Row:
            weights = rows[len(context) % len(rows)][which]
            turn = sum(context) % len(weights)
            return tuple(Fraction(each, 8) for each in (*weights[turn:], *weights[:turn]))

        return row

    return Instance("dyadic", model(0), model(1), draft_length)


def random_models(seed: int, vocabulary: int = 3, draft_length: int = 2) -> Instance:
    """Make models whose rows look random and depend on the whole context.

    At every context the residual has at least two tokens; at the first the target has a zero. The
    same seed gives the same models everywhere: rows are made from a hash, not from a generator.

    Parameters
    ----------
    seed : int
        Any number.
    vocabulary : int
        Tokens, from 3 to 16. The work of all exact checks grows with its power.
    draft_length : int
        Drafted tokens a step.

    Returns
    -------
    Instance
        Its models answer for contexts of any length.

    Raises
    ------
    ValueError
        Where the vocabulary is too small to have such rows, or too large to be made of one hash.

    Examples
    --------
    >>> from draftverify import testing
    >>> models = testing.random_models(seed=1)
    >>> print(*models.target(()))
    3/5 2/5 0
    >>> print(*models.draft(()))
    1/5 1/5 3/5
    """
    if not 3 <= vocabulary <= 16:  # noqa: PLR2004 - as the docstring has it
        message = f"vocabulary: expected 3 to 16 tokens, got {vocabulary}"
        raise ValueError(message)

    @cache
    def rows(context: Context) -> tuple[Row, Row]:
        for attempt in count():
            text = repr((seed, vocabulary, context, attempt)).encode()
            weights = [byte % _WEIGHTS for byte in hashlib.sha256(text).digest()]
            draft, target = weights[:vocabulary], weights[vocabulary : 2 * vocabulary]
            if not any(draft) or not any(target):
                continue
            pair = tuple(tuple(Fraction(w, sum(row)) for w in row) for row in (draft, target))
            atoms = sum(b > a for a, b in zip(*pair, strict=True))
            if atoms >= _TWO and (context or 0 in target):
                return pair[0], pair[1]
        raise AssertionError  # `count` does not end

    name = f"random models {seed} of {vocabulary} tokens"
    return Instance(name, lambda c: rows(tuple(c))[0], lambda c: rows(tuple(c))[1], draft_length)
