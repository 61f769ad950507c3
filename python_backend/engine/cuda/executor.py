"""Runs a step's chunks on the GPU: launches everything, and tells the tokens when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.cuda.graphs import whole_tiles
from python_backend.engine.cuda.host_rows import host_rows
from python_backend.engine.cuda.pinned_memory import Arrivals, copy_to_host
from python_backend.engine.cuda.prompt_results import PromptResults, prompt_rows, rows_at_a_time, wanted_rows
from python_backend.engine.cuda.sampler import NOTHING_LEFT, SampledRow
from python_backend.engine.report import EngineBroken
from python_backend.engine.sampling.tokens import nothing_left
from python_backend.engine.steps.ports import ChunkResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.cuda.decoder import CudaDecoder
    from python_backend.engine.cuda.graphs import StepGraphs
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.cuda.sampler import Chosen, Sampler
    from python_backend.engine.cuda.slots import Slots
    from python_backend.engine.cuda.top_log_probs import TopLogProbs
    from python_backend.engine.kv.blocks import BlockCopy
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence
    from python_backend.wire.errors import InflightError

    Numbers = NDArray[np.int32]


class CudaExecutor:
    """Every step is launched behind the one before it, on one stream, so the device sees them in order.

    A step of single tokens is a recorded graph, and so is one with prompts unless it has many rows: then it
    is launched operation by operation, which takes the device long enough for that.
    """

    depth = 2

    def __init__(
        self,
        decoder: CudaDecoder,
        cache: KvCache,
        slots: Slots,
        graphs: StepGraphs,
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
        except Exception:
            self._forget(chunks)
            raise

    def _forget(self, chunks: Row[Chunk]) -> None:
        """A launch stopped half-way: nothing of it is to be seen by the next try, which begins anew."""
        if self._decoder.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        for chunk in chunks:
            self._slots.release(chunk.sequence)

    @torch.inference_mode()
    def _launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> LaunchedStep:
        self._staging.begin_step()
        for slot, sequence in self._slots.take(chunks):
            self._sampler.begin(slot.number, sequence)
        self._slots.update_tables(chunks, self._staging)
        self._cache.copy(copies, self._staging)
        ordered = _singles_first(chunks)
        of_prompts: dict[int, PromptResults] = {}
        if all(chunk.count == 1 and chunk.yields_token and not prompt_rows(chunk) for chunk in ordered):
            logits = self._decode(ordered)
        else:
            logits, of_prompts = self._run_mixed(ordered)
        yielding, chosen = self._choose(ordered, logits)
        return LaunchedStep(chunks, yielding, self._arriving(chosen), of_prompts)

    def _arriving(self, chosen: Chosen | None) -> Choices | None:
        if chosen is None:
            return None
        return Choices(
            self._tokens.take(chosen.tokens),
            None if chosen.log_probs is None else self._log_probs.take(chosen.log_probs),
            None if chosen.top_log_probs is None else chosen.top_log_probs.to_host(),
            {row: copy_to_host(logits) for row, logits in chosen.raw_logits.items()},
            chosen.errors,
        )

    def _decode(self, chunks: Row[Chunk]) -> torch.Tensor:
        self._slots.set_tokens(self._tokens_to_set(chunks), self._staging)
        slots = [self._slots.of(chunk.sequence).number for chunk in chunks]
        return self._graphs.run_singles(slots, [chunk.start for chunk in chunks], self._staging)

    def _tokens_to_set(self, singles: Row[Chunk]) -> dict[int, int]:
        """Tokens of single rows that the device did not choose itself in the step before."""
        found = {}
        for chunk in singles:
            slot = self._slots.of(chunk.sequence)
            if slot.next_position != chunk.start:
                found[slot.number] = chunk.sequence.tokens[chunk.start]
        return found

    def _run_mixed(self, chunks: Row[Chunk]) -> tuple[torch.Tensor, dict[int, PromptResults]]:
        """Logits of the rows that yield a token, and what was asked of prompts, by the chunk's identity."""
        singles = sum(chunk.count == 1 for chunk in chunks)
        self._slots.set_tokens(self._tokens_to_set(chunks[:singles]), self._staging)
        wanted = [wanted_rows(chunk) for chunk in chunks]
        found = self._forward(chunks, wanted)
        of_prompts: dict[int, PromptResults] = {}
        last_rows, first = [], 0
        for chunk, part in zip(chunks, wanted, strict=True):
            if count := prompt_rows(chunk):
                of_prompts[id(chunk)] = self._of_prompt(chunk, found[first : first + count])
            first += len(part)
            if chunk.yields_token:
                last_rows.append(first - 1)
        if of_prompts:
            found = found.index_select(0, self._staging.upload(self._filled_up(last_rows)))
        return self._logits(found)[: len(last_rows)], of_prompts

    def _forward(self, chunks: Row[Chunk], wanted: Row[range]) -> torch.Tensor:
        rows = host_rows(chunks, [self._slots.of(chunk.sequence).number for chunk in chunks])
        firsts = itertools.accumulate((chunk.count for chunk in chunks), initial=0)
        chosen = [first + offset for first, part in zip(firsts, wanted, strict=False) for offset in part]
        index = self._filled_up(chosen)
        if self._graphs.has_room(rows):
            return self._graphs.run_mixed(rows, self._staging).index_select(0, self._staging.upload(index))
        if self._graphs.is_recorded:
            rows = rows.filled_up(whole_tiles(len(rows)), self._slots.dummy)
        return self._graphs.launch(rows, index, self._staging)

    def _filled_up(self, rows: list[int]) -> Numbers:
        """With repetitions, to a number of rows for which a graph was recorded: its kernels are loaded.

        A library has many for some hundreds of rows. To load one waits until the device has nothing to do: at
        its end a step would wait for itself, and the tokens of the one before it with it.
        """
        count = len(rows)
        size = self._graphs.size_for(count) if 0 < count <= self._slots.dummy else count
        return np.array(rows + rows[:1] * (size - count), np.int32)

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        size = (len(rows), self._decoder.shape.vocabulary)
        logits = torch.empty(size, dtype=torch.float32, device=rows.device)
        if len(rows):
            self._decoder.write_logits(rows, logits)
        return logits

    def _of_prompt(self, chunk: Chunk, rows: torch.Tensor) -> PromptResults:
        found, count = PromptResults(), rows_at_a_time(chunk)
        for first in range(0, len(rows), count):
            found.add(chunk, first, self._logits(rows[first : first + count]), self._staging)
        return found

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


@dataclass(frozen=True, slots=True)
class Choices:
    """As `Chosen`, in memory of the host that is filled when the step is over."""

    tokens: torch.Tensor
    log_probs: torch.Tensor | None
    top_log_probs: TopLogProbs | None
    raw_logits: dict[int, torch.Tensor]
    errors: dict[int, InflightError]


class LaunchedStep:
    """A step in flight; what it gives is on the host when it is over."""

    def __init__(
        self,
        chunks: Row[Chunk],
        yielding: Row[Chunk],
        choices: Choices | None,
        of_prompts: dict[int, PromptResults],
    ) -> None:
        self._chunks = chunks
        self._yielding = yielding
        self._choices = choices
        self._of_prompts = of_prompts
        self._end = _event_behind_everything()

    @property
    def is_over(self) -> bool:
        return self._end is None or bool(self._end.query())  # type: ignore[no-untyped-call]  # as below

    def results(self) -> list[ChunkResult]:
        if self._end is not None:
            self._end.synchronize()
        found = {id(chunk): ChunkResult() for chunk in self._chunks}
        if self._choices is not None:
            self._read_choices(found, self._choices)
        for chunk in self._chunks:
            if (of_prompt := self._of_prompts.get(id(chunk))) is not None:
                of_prompt.tell(chunk, found[id(chunk)])
        return list(found.values())

    def _read_choices(self, found: dict[int, ChunkResult], choices: Choices) -> None:
        log_probs = None if choices.log_probs is None else choices.log_probs.tolist()
        top = {} if choices.top_log_probs is None else choices.top_log_probs.by_row()
        for row, (chunk, token_id) in enumerate(zip(self._yielding, choices.tokens.tolist(), strict=True)):
            result = found[id(chunk)]
            if row in choices.errors:
                result.error = choices.errors[row]
            elif token_id >= 0:
                result.token_id = token_id
                if log_probs is not None and chunk.sequence.request.returns_log_probs:
                    result.log_prob = log_probs[row]
                if (count := chunk.sequence.request.top_log_probs) is not None:
                    result.top_log_probs = top[row][: count + 1]
                if (logits := choices.raw_logits.get(row)) is not None:
                    result.generation_logits = logits.numpy().tobytes()
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
