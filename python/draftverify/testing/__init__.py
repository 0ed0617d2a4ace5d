r"""Prove that a verification emits exactly the target's law: yours, not only this package's.

Speculative decoding promises that what is emitted follows the target model exactly. Bugs in it do
not crash, and samples do not show them: a bias of a thousandth needs ten million samples to be
seen. Here nothing is sampled. Small vocabularies are gone through completely: a rule in fractions
by `emitted_law`, floating-point code by `law_of`, which hands it chosen uniforms and counts. What
comes out is the law as exact fractions, and `check` compares it.

This sampler draws the replacement of a rejected token from the target's row, which looks right
and is not:

>>> import numpy as np
>>> from draftverify import testing
>>> def careless(draft_probs, target_probs, draft_token_ids, uniforms):
...     num_accepted, token_ids = np.zeros(len(uniforms), int), np.full(uniforms.shape, -1)
...     for b, chain in enumerate(draft_token_ids):
...         draft, target, n = draft_probs[b], target_probs[b], 0
...         while n < len(chain) and uniforms[b, n] * draft[n, chain[n]] < target[n, chain[n]]:
...             n += 1
...         num_accepted[b], token_ids[b, :n] = n, chain[:n]
...         running = np.cumsum(target[n])  # wrong: should be of np.maximum(target - draft, 0)
...         token_ids[b, n] = np.searchsorted(running, uniforms[b, -1] * running[-1], "right")
...     return num_accepted, token_ids
>>> print(testing.check(careless, instances=[testing.t3(draft_length=1)]))
not lossless
  T3 with 1 drafted: WRONG, total variation 3/20 (0.15), keeps 7/10
    the law differs in the first token
      token 0: 7/20 (0.35) instead of 1/2 (0.5)
      token 1: 39/100 (0.39) instead of 3/10 (0.3)
      token 2: 13/50 (0.26) instead of 1/5 (0.2)
    most too often: (1, 0), 39/200 (0.195) instead of 3/20 (0.15)
    most too seldom: (0, 0), 7/40 (0.175) instead of 1/4 (0.25)
The same comes of: nothing_subtracted, replacement_from_the_next_row.

`assert_lossless` is the same for a test suite. `Feed` says in which dtypes and layout code is fed,
`functools.partial` binds other arguments. Whether an engine's random numbers are independent is
another question: see `law_of_step` and `shared_noise`.

Exact rules: `standard`, `block`, `greedy`, `one_hot` of them. Known wrong ones: `WRONG_RULES`, and
`as_chain` with wrong comparisons; `COUPLINGS` for shared noise. Models: `t2`, `t3`, `t4`, `dyadic`,
`random_models`.
"""

from draftverify.testing._check import assert_lossless, check, ready_instances
from draftverify.testing._feed import Feed
from draftverify.testing._grid import law_of
from draftverify.testing._instances import (
    Instance,
    context_free,
    dyadic,
    random_models,
    t2,
    t3,
    t4,
)
from draftverify.testing._laws import Emitted, emitted_law, target_law, total_variation
from draftverify.testing._noise import COUPLINGS, Dependence, law_of_step, shared_noise, speculate
from draftverify.testing._report import Finding, Report
from draftverify.testing._rules import Thresholds, block, greedy, one_hot, standard
from draftverify.testing._wrong import WRONG_RULES, as_chain

__all__ = [
    "COUPLINGS",
    "WRONG_RULES",
    "Dependence",
    "Emitted",
    "Feed",
    "Finding",
    "Instance",
    "Report",
    "Thresholds",
    "as_chain",
    "assert_lossless",
    "block",
    "check",
    "context_free",
    "dyadic",
    "emitted_law",
    "greedy",
    "law_of",
    "law_of_step",
    "one_hot",
    "random_models",
    "ready_instances",
    "shared_noise",
    "speculate",
    "standard",
    "t2",
    "t3",
    "t4",
    "target_law",
    "total_variation",
]
