"""The verification arithmetic of speculative decoding: exact, deterministic, fast."""

from draftverify._api import AcceptResidual, accept_probs, accept_residual
from draftverify._chains import ChainVerdict, verify_chain
from draftverify._core import (
    __version__,
    get_num_threads,
    set_num_threads,
    speculative_decode_step,
)
from draftverify._draft_lengths import best_draft_length, expected_tokens, speedup
from draftverify._logits import verify_chain_logits
from draftverify._statistics import (
    acceptance_rate,
    expected_tokens_block,
    expected_tokens_by_position,
)

__all__ = [
    "AcceptResidual",
    "ChainVerdict",
    "__version__",
    "accept_probs",
    "accept_residual",
    "acceptance_rate",
    "best_draft_length",
    "expected_tokens",
    "expected_tokens_block",
    "expected_tokens_by_position",
    "get_num_threads",
    "set_num_threads",
    "speculative_decode_step",
    "speedup",
    "verify_chain",
    "verify_chain_logits",
]

# This is where users find them, and where pickle looks them up.
for _public in (
    accept_probs,
    accept_residual,
    acceptance_rate,
    best_draft_length,
    expected_tokens,
    expected_tokens_block,
    expected_tokens_by_position,
    get_num_threads,
    set_num_threads,
    speculative_decode_step,
    speedup,
    verify_chain,
    verify_chain_logits,
):
    _public.__module__ = "draftverify"
del _public
