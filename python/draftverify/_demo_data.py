"""The recorded chains that the demo walks; `data/README.md` says where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Extract(NamedTuple):
    """Recorded rows: chain b owns the rows indptr[b] up to indptr[b + 1]."""

    draft_probs: NDArray[np.float32]
    target_probs: NDArray[np.float32]
    draft_token_ids: NDArray[np.int32]
    indptr: NDArray[np.int32]
    contexts: list[str]
    token_texts: dict[int, str]

    def rows(self, chain: int) -> slice:
        """Tell which rows a chain owns."""
        return slice(*self.indptr[chain : chain + 2].tolist())

    def ratios(self, rows: slice) -> list[float]:
        """Divide the target's probabilities of drafted tokens by the draft's, in float64."""
        tokens = self.draft_token_ids[rows, None]
        draft, target = (
            np.take_along_axis(probs[rows], tokens, axis=1)[:, 0].astype(np.float64)
            for probs in (self.draft_probs, self.target_probs)
        )
        ratios: list[float] = (target / draft).tolist()
        return ratios

    def text(self, token: int) -> str:
        """Look a token up; the extract has the texts of those likely to be seen."""
        return self.token_texts.get(token, f"<id {token}>")


def load() -> Extract:
    """Read the recorded logits and turn them into probabilities."""
    data = Path(__file__).with_name("data")
    texts = json.loads((data / "smollm2_chains.json").read_text(encoding="utf-8"))
    with np.load(data / "smollm2_chains.npz") as rows:
        return Extract(
            _softmax(rows["draft_logits"]),
            _softmax(rows["target_logits"]),
            rows["draft_token_ids"],
            rows["indptr"],
            texts["contexts"],
            {int(token): text for token, text in texts["token_texts"].items()},
        )


def _softmax(planes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn float16 logits, their high and their low bytes apart, into probabilities."""
    high, low = planes.astype(np.uint16)
    logits = ((high << 8) | low).view(np.float16).astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)
