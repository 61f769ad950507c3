"""`python -m python_backend.engine.perplexity`: how well a model foresees a text, in each precision.

Perplexity is the exponential of the mean surprise at a token, given those before it. The text is cut into
windows that begin anew, and every token of a window but the first is counted.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backend.engine.blocks import BlockPool
from python_backend.engine.build import build_model
from python_backend.engine.cache_dir import cache_dir
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.engine import EngineConfig
from python_backend.engine.models import load_weights
from python_backend.engine.native.packed_model import PASSING_PREFIX, load_packed, packed_dir, require_room
from python_backend.engine.native.weights import packed_bytes
from python_backend.engine.prepare import tell_if_compiling
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.task import run_task, tell
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Sequence as Row

    from numpy.typing import NDArray

    from python_backend.engine.executor import StepModel

FIXED_TEXT = Path(__file__).with_name("perplexity.txt")
WINDOW_TOKENS = 512
# Logits are computed for so many tokens at a time: a vocabulary has up to 256 Ki entries.
_CHUNK_TOKENS = 128
_TOKENS_PER_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Score:
    surprise: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise / self.tokens)


def cut(token_ids: Row[int], begin: Row[int], window_tokens: int) -> list[list[int]]:
    """Windows of at most `window_tokens`, each behind `begin`; an end with nothing to foresee is left out."""
    step = window_tokens - len(begin)
    windows = [[*begin, *token_ids[at : at + step]] for at in range(0, len(token_ids), step)]
    return [window for window in windows if len(window) > max(1, len(begin))]


def surprise(logits: NDArray[np.float32], token_ids: Row[int]) -> float:
    """The negative logarithms of what each row gives to its token, added up."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    chosen = exact[np.arange(len(token_ids)), token_ids]
    return float(np.sum(np.log(np.exp(exact).sum(axis=1)) - chosen))


def score(
    model: StepModel, pool: BlockPool, windows: Iterable[list[int]], progress: Callable[[int], None]
) -> Score:
    total, tokens = 0.0, 0
    for window in windows:
        sequence = Sequence(0, 0, GenerationRequest(window, 1), 1)
        pool.grow(sequence.table, len(window))
        for start in range(0, len(window) - 1, _CHUNK_TOKENS):
            count = min(_CHUNK_TOKENS, len(window) - 1 - start)
            logits = model.forward([Chunk(sequence, start, count)], [], range(count))
            total += surprise(logits, window[start + 1 : start + 1 + count])
            tokens += count
            progress(tokens)
        pool.release(sequence.table)
    return Score(total, tokens)


def measure(told: Mapping[str, Any]) -> None:
    """`told` has paths by the engine's names, `precisions`, and `text`: a file, or None for the fixed one."""
    checkpoint = Checkpoint(told["gpt_model_path"])
    weights = load_weights(checkpoint, WINDOW_TOKENS)
    pool = BlockPool(WINDOW_TOKENS // _TOKENS_PER_BLOCK, _TOKENS_PER_BLOCK)
    windows = _windows(told, min(WINDOW_TOKENS, weights.shape.max_positions))
    kept = Path(told.get("inflight_packed_cache_dir") or cache_dir() / "packed")
    kept.mkdir(parents=True, exist_ok=True)
    exact = math.nan
    # fp32 comes first: it is what the others are measured against.
    for precision in dict.fromkeys(["fp32", *told["precisions"]]):
        # What serving has packed is used; what only this needs is not kept.
        with tempfile.TemporaryDirectory(prefix=PASSING_PREFIX, dir=kept) as passing:
            is_kept = packed_dir(checkpoint.path, precision, kept).is_dir()
            packed_cache = kept if is_kept else Path(passing)
            if not is_kept:
                require_room(weights.shape, precision, kept)
            config = EngineConfig(
                str(checkpoint.path), precision=precision, packed_cache_dir=str(packed_cache)
            )
            load_packed(weights, checkpoint.path, precision, packed_cache, _teller("packing", precision))
            tell_if_compiling()
            model = build_model(config, weights, pool, WINDOW_TOKENS)
            found = _score(model, pool, windows, precision)
            size_bytes = packed_bytes(packed_dir(checkpoint.path, precision, packed_cache))
        exact = found.perplexity if precision == "fp32" else exact
        tell(
            precision=precision,
            weights_bytes=size_bytes,
            perplexity=found.perplexity,
            change_percent=100 * (found.perplexity / exact - 1),
            tokens=found.tokens,
        )


def _windows(told: Mapping[str, Any], window_tokens: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    text = Path(told.get("text") or FIXED_TEXT).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(Path(told["tokenizer_dir"]) / "tokenizer.json"))
    begin = tokenizer.encode("").ids[:1]  # the token that every text begins with, where there is one
    windows = cut(tokenizer.encode(text, add_special_tokens=False).ids, begin, window_tokens)
    if not windows:
        raise InflightError(ErrorKind.INVALID_REQUEST, "the text is too short to measure anything on")
    return windows


def _score(model: StepModel, pool: BlockPool, windows: list[list[int]], precision: str) -> Score:
    total = sum(len(window) - 1 for window in windows)
    report = _teller("measuring", precision)
    return score(model, pool, windows, lambda done: report(done, total))


def _teller(stage: str, precision: str) -> Callable[[int, int], None]:
    return lambda done, total: tell(stage=stage, precision=precision, done=done, total=total)


if __name__ == "__main__":
    sys.exit(run_task(measure))
