"""The verification arithmetic of speculative decoding: exact, deterministic, fast."""

from draftverify._api import AcceptResidual, accept_probs, accept_residual
from draftverify._core import __version__, speculative_decode_step

__all__ = [
    "AcceptResidual",
    "__version__",
    "accept_probs",
    "accept_residual",
    "speculative_decode_step",
]

# The function is compiled; this is where users find it, and where pickle looks it up.
speculative_decode_step.__module__ = "draftverify"
