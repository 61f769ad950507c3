"""Runs a step's chunks on the GPU: launches everything, and tells the tokens when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.cuda.kernels.prefill_attention import prefill_tiles, prefill_tiling
from python_backend.engine.cuda.sampler import NOTHING_LEFT, SampledRow
from python_backend.engine.cuda.staging import Arrivals
from python_backend.engine.cuda.step import PrefillChunks, StepRows
from python_backend.engine.execution import ChunkResult
from python_backend.engine.faults import EngineBroken
from python_backend.engine.sampling import nothing_left

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.cuda.decoder import CudaDecoder
    from python_backend.engine.cuda.graphs import DecodeGraphs
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.sampler import Chosen, Sampler
    from python_backend.engine.cuda.slots import Slots
    from python_backend.engine.cuda.staging import Staging
    from python_backend.engine.scheduling.plan import BlockCopy, Chunk
    from python_backend.engine.sequence import Sequence

    Numbers = NDArray[np.int32]


class CudaExecutor:
    """Every step is launched behind the one before it, on one stream, so the device sees them in order.

    A step of single tokens is a recorded graph. One with longer chunks is launched operation by operation:
    it takes the device long enough for that.
    """

    depth = 2

    def __init__(
        self,
        decoder: CudaDecoder,
        cache: KvCache,
        slots: Slots,
        graphs: DecodeGraphs,
        sampler: Sampler,
        staging: Staging,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._graphs = graphs
        self._sampler = sampler
        self._staging = staging
        rows, device = slots.dummy, decoder.device
        self._tokens = Arrivals(device, rows, torch.int32)
        self._log_probs = Arrivals(device, rows, torch.float32)

    def warm_up(self) -> None:
        self._sampler.warm_up(self._staging)

    def release(self, sequence: Sequence) -> None:
        self._slots.release(sequence)

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> LaunchedStep:
        try:
            return self._launch(chunks, copies)
        except torch.AcceleratorError as error:
            # An error of the device itself, unlike its memory running out, stays with the process for good.
            raise EngineBroken(f"the GPU failed: {error}") from error

    @torch.inference_mode()
    def _launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> LaunchedStep:
        self._staging.begin_step()
        for slot, sequence in self._slots.take(chunks):
            self._sampler.begin(slot.number, sequence)
        self._slots.update_tables(chunks, self._staging)
        self._cache.copy(copies, self._staging)
        ordered = _singles_first(chunks)
        wants_more = any(chunk.sequence.request.returns_context_logits for chunk in chunks)
        context_logits: dict[int, torch.Tensor] = {}
        if ordered[-1].count == 1 and not wants_more:
            logits = self._decode(ordered)
        else:
            logits, context_logits = self._run_mixed(ordered)
        yielding, chosen = self._choose(ordered, logits)
        tokens = log_probs = None
        if chosen is not None:
            tokens = self._tokens.take(chosen.tokens)
            log_probs = None if chosen.log_probs is None else self._log_probs.take(chosen.log_probs)
        return LaunchedStep(chunks, yielding, chosen, tokens, log_probs, context_logits)

    def _decode(self, chunks: Row[Chunk]) -> torch.Tensor:
        self._slots.set_tokens(self._tokens_to_set(chunks), self._staging)
        rows = np.zeros((2, self._graphs.size_for(len(chunks))), np.int32)
        rows[0] = self._slots.dummy
        rows[0, : len(chunks)] = [self._slots.of(chunk.sequence).number for chunk in chunks]
        rows[1, : len(chunks)] = [chunk.start for chunk in chunks]
        return self._graphs.run(rows, len(chunks), self._staging)

    def _tokens_to_set(self, singles: Row[Chunk]) -> dict[int, int]:
        """Tokens of single rows that the device did not choose itself in the step before."""
        found = {}
        for chunk in singles:
            slot = self._slots.of(chunk.sequence)
            if slot.next_position != chunk.start:
                found[slot.number] = chunk.sequence.tokens[chunk.start]
        return found

    def _run_mixed(self, chunks: Row[Chunk]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Logits of the rows that yield a token, and those asked for of prompts, by the chunk's place."""
        singles = sum(chunk.count == 1 for chunk in chunks)
        self._slots.set_tokens(self._tokens_to_set(chunks[:singles]), self._staging)
        wanted = [_wanted_rows(chunk) for chunk in chunks]
        rows = self._mixed_rows(chunks, singles, wanted)
        count = sum(map(len, wanted))
        logits = torch.empty(
            count, self._decoder.shape.vocabulary, dtype=torch.float32, device=rows.slots.device
        )
        self._decoder.forward(rows, self._cache, self._slots.block_tables, logits)
        return _split_logits(chunks, wanted, logits)

    def _mixed_rows(self, chunks: Row[Chunk], singles: int, wanted: Row[range]) -> StepRows:
        counts = np.array([chunk.count for chunk in chunks], np.int32)
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        slots = np.array([self._slots.of(chunk.sequence).number for chunk in chunks], np.int32)
        first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        offsets = np.arange(first_rows[-1], dtype=np.int32) - np.repeat(first_rows[:-1], counts)
        tokens: list[int] = []
        for chunk in chunks[singles:]:
            tokens += chunk.sequence.tokens[chunk.start : chunk.end]
        row_slots = self._staging.upload(np.repeat(slots, counts))
        token_ids = self._staging.upload(np.array(tokens, np.int32))
        if singles:
            chosen = self._slots.last_tokens.index_select(0, row_slots[:singles])
            token_ids = torch.cat([chosen, token_ids])
        wanted_rows = [
            first + offset
            for first, part in zip(first_rows.tolist(), wanted, strict=False)
            for offset in part
        ]
        return StepRows(
            token_ids,
            row_slots,
            self._staging.upload(np.repeat(starts, counts) + offsets),
            singles,
            self._prefill_chunks(counts[singles:], starts[singles:], slots[singles:])
            if singles < len(chunks)
            else None,
            self._staging.upload(np.array(wanted_rows, np.int32)),
        )

    def _prefill_chunks(self, counts: Numbers, starts: Numbers, slots: Numbers) -> PrefillChunks:
        upload = self._staging.upload
        first_rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        shape = self._decoder.shape
        tiling = prefill_tiling(shape.head_dim, self._decoder.dtype)
        tiles = prefill_tiles(starts, counts, shape.heads // shape.kv_heads, tiling)
        return PrefillChunks(upload(slots), upload(first_rows), upload(starts), upload(tiles))

    def _choose(self, chunks: Row[Chunk], logits: torch.Tensor) -> tuple[list[Chunk], Chosen | None]:
        yielding = [chunk for chunk in chunks if chunk.yields_token]
        if not yielding:
            return yielding, None
        rows = []
        for chunk in yielding:
            slot = self._slots.of(chunk.sequence)
            slot.next_position = chunk.end
            rows.append(SampledRow(chunk.sequence, slot.number, chunk.end - chunk.sequence.prompt_tokens))
        slots = self._staging.upload(np.array([row.slot for row in rows], np.int32))
        return yielding, self._sampler.choose(logits, rows, slots, self._slots.last_tokens, self._staging)


class LaunchedStep:
    """A step under way; `tokens` and `log_probs` are on the host when it is over."""

    def __init__(
        self,
        chunks: Row[Chunk],
        yielding: Row[Chunk],
        chosen: Chosen | None,
        tokens: torch.Tensor | None,
        log_probs: torch.Tensor | None,
        context_logits: dict[int, torch.Tensor],
    ) -> None:
        self._chunks = chunks
        self._yielding = yielding
        self._chosen = chosen
        self._context_logits = context_logits
        self._tokens = tokens
        self._log_probs = log_probs
        self._is_over = _event_behind_everything()

    def results(self) -> list[ChunkResult]:
        if self._is_over is not None:
            self._is_over.synchronize()
        found = {id(chunk): ChunkResult() for chunk in self._chunks}
        if self._chosen is not None and self._tokens is not None:
            self._read_choices(found, self._chosen, self._tokens.tolist())
        for chunk_id, logits in self._context_logits.items():
            found[chunk_id].context_logits = logits.cpu().numpy().tobytes()
        return list(found.values())

    def _read_choices(self, found: dict[int, ChunkResult], chosen: Chosen, tokens: list[int]) -> None:
        log_probs = None if self._log_probs is None else self._log_probs.tolist()
        for row, (chunk, token_id) in enumerate(zip(self._yielding, tokens, strict=True)):
            result = found[id(chunk)]
            if row in chosen.errors:
                result.error = chosen.errors[row]
            elif token_id >= 0:
                result.token_id = token_id
                request = chunk.sequence.request
                if log_probs is not None and request.returns_log_probs:
                    result.log_prob = log_probs[row]
                if request.returns_generation_logits:
                    result.generation_logits = chosen.raw_logits[row].cpu().numpy().tobytes()
            elif token_id == NOTHING_LEFT:
                choice = nothing_left(chunk.sequence)
                result.ends_guide, result.error = choice.ends_guide, choice.error


def _event_behind_everything() -> torch.cuda.Event | None:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        return None
    # Blocking: the thread sleeps, and whoever prepares guides beside it has the processor.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
    event.record()
    return event


def _singles_first(chunks: Row[Chunk]) -> list[Chunk]:
    """Decoding rows, then longer chunks; the order within each stays."""
    return sorted(chunks, key=lambda chunk: chunk.count > 1)


def _wanted_rows(chunk: Chunk) -> range:
    """Rows of the chunk whose logits someone asked for: those of the prompt, or the last alone."""
    if chunk.sequence.request.returns_context_logits and chunk.start < chunk.sequence.prompt_tokens:
        return range(chunk.count)
    return range(chunk.count - 1, chunk.count) if chunk.yields_token else range(0)


def _split_logits(
    chunks: Row[Chunk], wanted: Row[range], logits: torch.Tensor
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Of all logits those that a token is chosen from, and those of prompts by their chunk's identity."""
    if all(len(rows) == chunk.yields_token for chunk, rows in zip(chunks, wanted, strict=True)):
        return logits, {}
    last_rows, of_prompts, row = [], {}, 0
    for chunk, rows in zip(chunks, wanted, strict=True):
        if chunk.sequence.request.returns_context_logits and len(rows):
            prompt_rows = min(chunk.end, chunk.sequence.prompt_tokens) - chunk.start
            if prompt_rows > 0:
                of_prompts[id(chunk)] = logits[row : row + prompt_rows].clone()
        row += len(rows)
        if chunk.yields_token:
            last_rows.append(logits[row - 1])
    return torch.stack(last_rows) if last_rows else logits[:0], of_prompts
