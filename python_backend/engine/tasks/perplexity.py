"""`python -m python_backend.engine.tasks.perplexity`: how well a model predicts a text, in each precision.

Perplexity is the exponential of the mean surprise at a token, given those before it. The text is cut into
windows that begin anew, and every token of a window but the first is counted. The logits are those of the
engine's own executor, on the device that would serve.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backend.engine.build import build_model
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.config import EngineConfig
from python_backend.engine.host.cache_dir import cache_dir
from python_backend.engine.host.device import Device, choose_device
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.models import load_weights
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.executor import ModelExecutor
from python_backend.engine.tasks.compilation import Compilation
from python_backend.engine.tasks.task import run_task, tell
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import PRECISIONS, EngineParameters, device_defaults, where_it_computes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Sequence as Row

    from numpy.typing import NDArray

    from python_backend.engine.models.decoder import DecoderWeights
    from python_backend.engine.steps.ports import Executor

FIXED_TEXT = Path(__file__).with_name("perplexity.txt")
WINDOW_TOKENS = 512
# Logits are computed for so many tokens at a time: a vocabulary has up to 256 Ki entries.
_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Score:
    surprise: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise / self.tokens)


def cut(token_ids: Row[int], begin: Row[int], window_tokens: int) -> list[list[int]]:
    """Windows of at most `window_tokens`, each behind `begin`; an end with nothing to predict is left out."""
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
    executor: Executor, pool: BlockPool, windows: Iterable[list[int]], progress: Callable[[int], None]
) -> Score:
    total, tokens = 0.0, 0
    for window in windows:
        sequence = Sequence(0, 0, GenerationRequest(window, 1, returns_context_logits=True), 1)
        pool.grow(sequence.table, len(window))
        pool.reach(sequence.table, len(window))
        for start in range(0, len(window) - 1, _CHUNK_TOKENS):
            count = min(_CHUNK_TOKENS, len(window) - 1 - start)
            (result,) = executor.launch([Chunk(sequence, start, count)], []).results()
            assert result.context_logits is not None
            logits = np.frombuffer(result.context_logits, np.float32).reshape(count, -1)
            total += surprise(logits, window[start + 1 : start + 1 + count])
            tokens += count
            progress(tokens)
        executor.release(sequence)
        pool.release(sequence.table)
    return Score(total, tokens)


@dataclass(frozen=True, slots=True)
class Variant:
    """How weights are kept, and keys and values."""

    precision: str
    kv_precision: str = "auto"

    @property
    def name(self) -> str:
        kept = "" if self.kv_precision == "auto" else f" with {self.kv_precision} keys and values"
        return f"{self.precision}{kept}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, on what; `gpu` and `packed_cache` are for the device that has a use for them."""

    path: Path
    weights: DecoderWeights
    windows: list[list[int]]
    gpu: int
    packed_cache: Path

    def score(self, executor: Executor, pool: BlockPool, variant: Variant) -> Score:
        return score(executor, pool, self.windows, lambda done: self.tell_measured(variant, done))

    def tell_measured(self, variant: Variant, done: int) -> None:
        total = sum(len(window) - 1 for window in self.windows)
        tell(stage="measuring", precision=variant.name, done=done, total=total)


def measure(told: Mapping[str, Any]) -> None:
    """`told` has parameters by the engine's names, and `text`: a file, or None for the fixed one.

    `precisions` are those to measure beside fp32; None: all that the device has. With an
    `inflight_kv_precision` each is measured once more, with keys and values in that.
    """
    gpu = int(told.get("gpu_device_ids") or 0)
    asked = told.get("inflight_device") or "auto"
    device = choose_device(asked, gpu)
    variants = _variants(told.get("precisions"), told.get("inflight_kv_precision") or "auto", device, asked)
    if device.notice:
        tell(notice=device.notice)
    checkpoint = Checkpoint(told["gpt_model_path"])
    weights = load_weights(checkpoint, WINDOW_TOKENS)
    windows = _windows(told, min(WINDOW_TOKENS, weights.shape.max_positions))
    packed_cache = Path(told.get("inflight_packed_cache_dir") or cache_dir() / "packed")
    subject = Subject(checkpoint.path, weights, windows, gpu, packed_cache)
    score_on = {"cpu": _score_on_cpu, "cuda": _score_on_gpu}[device.kind]
    exact = math.nan
    for variant in variants:
        found, weights_bytes = score_on(subject, variant)
        exact = found.perplexity if variant == Variant("fp32") else exact
        tell(
            precision=variant.name,
            weights_bytes=weights_bytes,
            perplexity=found.perplexity,
            change_percent=100 * (found.perplexity / exact - 1),
            tokens=found.tokens,
        )


def _variants(wanted: Row[str] | None, kv_precision: str, device: Device, asked: str) -> list[Variant]:
    found = [Variant(precision) for precision in _precisions(wanted, device, asked)]
    device.settings(EngineParameters("V1", "", inflight_device=asked, inflight_kv_precision=kv_precision))
    if kv_precision != "auto":
        found += [Variant(precision, kv_precision) for precision in wanted or device.precisions]
    return found


def _precisions(wanted: Row[str] | None, device: Device, asked: str) -> list[str]:
    """fp32 comes first: it is what the others are measured against."""
    for precision in wanted or ():
        if precision not in device.precisions:
            is_fp8_missing = precision in PRECISIONS[device.kind]
            why = device.why_no_fp8 if is_fp8_missing else where_it_computes(device.kind, asked)
            allowed = f"{', '.join(device.precisions)} ({why})"
            sentence = f"--precision is {precision!r}; allowed: {allowed}"
            raise InflightError(ErrorKind.INVALID_REQUEST, sentence, "--precision")
    return list(dict.fromkeys(["fp32", *(wanted or device.precisions)]))


def _score_on_cpu(subject: Subject, variant: Variant) -> tuple[Score, int]:
    """The score, and what the weights take."""
    # Imported here: numba takes a second, and need not be there on a machine with a GPU.
    from python_backend.engine.native.packed_model import (
        PASSING_PREFIX,
        load_packed,
        packed_dir,
        require_room,
    )
    from python_backend.engine.native.weights import packed_bytes

    path, weights, kept = subject.path, subject.weights, subject.packed_cache
    precision = variant.precision
    kept.mkdir(parents=True, exist_ok=True)
    tokens_per_block = device_defaults("cpu").tokens_per_block
    pool = BlockPool(WINDOW_TOKENS // tokens_per_block, tokens_per_block)
    # What serving has packed is used; what only this needs is not kept.
    with tempfile.TemporaryDirectory(prefix=PASSING_PREFIX, dir=kept) as passing:
        is_kept = packed_dir(path, precision, kept).is_dir()
        packed_cache = kept if is_kept else Path(passing)
        if not is_kept:
            require_room(weights.shape, precision, kept)
        config = EngineConfig(str(path), precision=precision, packed_cache_dir=str(packed_cache))
        compilation = Compilation(weights.shape)
        load_packed(weights, path, precision, packed_cache, partial(_tell_packed, precision))
        compilation.wait()
        model = build_model(config, weights, pool, WINDOW_TOKENS)
        found = subject.score(ModelExecutor(model), pool, variant)
        return found, packed_bytes(packed_dir(path, precision, packed_cache))


def _tell_packed(precision: str, done: int, total: int) -> None:
    tell(stage="packing", precision=precision, done=done, total=total)


def _score_on_gpu(subject: Subject, variant: Variant) -> tuple[Score, int]:
    """The score, and what the weights take."""
    # Importing torch takes seconds of it.
    tell(stage="loading", precision=variant.name, done=0, total=subject.weights.shape.layers + 1)
    from python_backend.engine.cuda.build import build_on_gpu
    from python_backend.engine.cuda.memory import allocated_bytes, free_unused

    # What the one before has left goes first: the next one may need its memory.
    free_unused()
    before_bytes = after_bytes = allocated_bytes(subject.gpu)

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal after_bytes
        if stage == "loading weights":
            after_bytes = allocated_bytes(subject.gpu)
            tell(stage="loading", precision=variant.name, done=done, total=total)

    config = EngineConfig(
        str(subject.path),
        precision=variant.precision,
        kv_precision=variant.kv_precision,
        device="cuda",
        gpu=subject.gpu,
        max_tokens_in_kv_cache=WINDOW_TOKENS,
        tokens_per_block=device_defaults("cuda").tokens_per_block,
        max_batch_size=1,
        max_step_tokens=_CHUNK_TOKENS,
        cuda_graphs=False,
    )
    try:
        pool, executor = build_on_gpu(config, subject.weights, WINDOW_TOKENS, watch)
    except InflightError as error:
        raise InflightError(error.kind, f"in {variant.name}, {error.message}") from None
    return subject.score(executor, pool, variant), after_bytes - before_bytes


def _windows(told: Mapping[str, Any], window_tokens: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    text = Path(told.get("text") or FIXED_TEXT).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(Path(told["tokenizer_dir"]) / "tokenizer.json"))
    begin = tokenizer.encode("").ids[:1]  # the token that every text begins with, where there is one
    windows = cut(tokenizer.encode(text, add_special_tokens=False).ids, begin, window_tokens)
    if not windows:
        raise InflightError(ErrorKind.INVALID_REQUEST, "the text is too short to measure perplexity on")
    return windows


if __name__ == "__main__":
    sys.exit(run_task(measure))
