"""Make the extract of recorded logits that `python -m draftverify demo` walks.

    python tools/make_demo_data.py smollm2_chains.npz

The argument is a recording of SmolLM2-135M-Instruct (Apache-2.0) with these arrays:

- ``draft_logits`` (T, V) float16: one row per drafted token, requests one after the other;
- ``target_logits`` (T + B, V) float16: per request one row per drafted token and a bonus row;
- ``draft_token_ids`` (T,) int32: the drafted tokens, sampled from the softmax of the draft rows;
- ``indptr`` (B + 1,) int32: request b owns draft rows ``indptr[b]`` up to ``indptr[b + 1]`` and
  target rows ``indptr[b] + b`` to ``indptr[b + 1] + b`` inclusive;
- ``contexts``: a JSON list of B strings, the text before the first drafted token;
- ``vocab``: a JSON list of V strings, the token texts.

Three chains are kept, their rows bit by bit. Logits are incompressible in their low byte only, so
the two bytes of every entry go into planes of their own, which deflate packs far better than
float16 as it is. What is written is described in ``python/draftverify/data/README.md``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "python" / "draftverify" / "data"
LIMIT = 1_000_000

# Requests, the drafted token to start from and the one to end before: whole chains do not fit. Of
# request 1 the first two tokens go to the context. In request 6 a token that the target likes far
# better than the draft follows two that it likes less: there block verification gains.
CHAINS = ((5, 0, 1), (6, 0, 3), (1, 2, 4))

# Texts are kept of the ids that lead a row, and of all that a residual gives at least this much.
LEADERS = 16
LEAST_PROB = 1e-3


def main() -> None:
    """Write the extract and see that it reads back as it was."""
    parser = argparse.ArgumentParser(description="Make the extract that the demo walks.")
    parser.add_argument("source", type=Path, help="the recording, an .npz file")
    with np.load(parser.parse_args().source) as archive:
        source = dict(archive)
    contexts = json.loads(str(source["contexts"]))
    vocab = json.loads(str(source["vocab"]))
    ids, indptr = source["draft_token_ids"], source["indptr"]

    rows: list[int] = []
    target_rows: list[int] = []
    kept_contexts: list[str] = []
    kept_indptr = [0]
    for request, start, end in CHAINS:
        first = int(indptr[request])
        moved = "".join(vocab[token] for token in ids[first : first + start])
        kept_contexts.append(contexts[request] + moved)
        chain = range(first + start, first + end)
        rows.extend(chain)
        target_rows.extend(row + request for row in chain)
        kept_indptr.append(len(rows))
    draft, target = source["draft_logits"][rows], source["target_logits"][target_rows]

    DATA.mkdir(exist_ok=True)
    rows_file, texts_file = DATA / "smollm2_chains.npz", DATA / "smollm2_chains.json"
    np.savez_compressed(
        rows_file,
        draft_logits=planes(draft),
        target_logits=planes(target),
        draft_token_ids=ids[rows].astype(np.int32),
        indptr=np.array(kept_indptr, np.int32),
    )
    named = sorted(leading_ids(draft, target) | {int(token) for token in ids[rows]})
    texts = {
        "contexts": kept_contexts,
        "token_texts": {str(token): vocab[token] for token in named},
    }
    with texts_file.open("w", encoding="utf-8", newline="\n") as stream:
        json.dump(texts, stream, ensure_ascii=False, indent=1)
        stream.write("\n")

    with np.load(rows_file) as archive:
        for name, kept in (("draft_logits", draft), ("target_logits", target)):
            high, low = archive[name].astype(np.uint16)
            if not np.array_equal((high << 8) | low, kept.view(np.uint16)):
                message = f"{name}: the rows do not read back as they were"
                raise SystemExit(message)
    size = sum(file.stat().st_size for file in DATA.iterdir())
    if size > LIMIT:
        message = f"expected at most {LIMIT} bytes in {DATA}, got {size}; keep fewer rows"
        raise SystemExit(message)


def planes(logits: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Take float16 apart into a plane of high bytes and one of low bytes."""
    bits = logits.view(np.uint16)
    return np.stack([bits >> 8, bits & 0xFF]).astype(np.uint8)


def leading_ids(draft: NDArray[Any], target: NDArray[Any]) -> set[int]:
    """Find the ids that a reader of the rows may want to see as text."""
    draft_probs, target_probs = softmax(draft), softmax(target)
    residual = np.maximum(target_probs - draft_probs, 0)
    residual /= residual.sum(axis=1, keepdims=True)
    leaders = [np.argsort(-law)[:, :LEADERS] for law in (draft_probs, target_probs, residual)]
    likely = np.nonzero(residual >= LEAST_PROB)[1]
    return {int(token) for token in np.concatenate([*map(np.ravel, leaders), likely])}


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Turn rows of logits into probabilities."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probs: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return probs


if __name__ == "__main__":
    main()
