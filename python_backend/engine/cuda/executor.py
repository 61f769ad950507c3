"""Runs a step's chunks on the GPU: launches everything, and tells the tokens when they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Row
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch

from python_backend.engine.cuda.graphs import whole_tiles
from python_backend.engine.cuda.host_rows import host_rows
from python_backend.engine.cuda.launched_step import Choices, LaunchedStep, is_wanted
from python_backend.engine.cuda.pinned_memory import Arrivals, copy_to_host
from python_backend.engine.cuda.prompt_results import PromptResults, prompt_rows, rows_at_a_time, wanted_rows
from python_backend.engine.cuda.sampler import SampledRow
from python_backend.engine.report import EngineBroken

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.cuda.adapters import CudaAdapters
    from python_backend.engine.cuda.decoder import CudaDecoder
    from python_backend.engine.cuda.graphs import StepGraphs
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.cuda.sampler import Chosen, Sampler
    from python_backend.engine.cuda.slots import Slots
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence

    Numbers = NDArray[np.int32]


Outcome = TypeVar("Outcome")


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
        adapters: CudaAdapters,
    ) -> None:
        self.adapters = adapters
        self._decoder = decoder
        self.cache = cache
        self._slots = slots
        self._graphs = graphs
        self._sampler = sampler
        self._staging = staging
        rows, device = slots.dummy, decoder.device
        self._tokens = Arrivals(device, rows, torch.int32)
        self._log_probs = Arrivals(device, rows, torch.float32)

    @property
    def most_choices(self) -> int:
        return self._slots.dummy

    def warm_up(self) -> None:
        self._sampler.warm_up(self._staging)

    def release(self, sequence: Sequence) -> None:
        self._slots.release(sequence)

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> LaunchedStep:
        return self._try(chunks, partial(self._launch, chunks, copies))

    @torch.inference_mode()
    def _try(self, chunks: Row[Chunk], launch: Callable[[], Outcome]) -> Outcome:
        try:
            return launch()
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

    def _launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> LaunchedStep:
        self._staging.begin_step()
        taken = self._slots.take(chunks)
        for slot, sequence in taken:
            self._sampler.begin(slot.number, sequence)
        self._slots.set_adapters(taken, self._staging)
        self._graphs.adapts = any(chunk.sequence.adapter is not None for chunk in chunks)
        self._slots.update_tables(chunks, self._staging)
        self.cache.copy(copies, self._staging)
        ordered = _singles_first(chunks)
        of_prompts: dict[int, PromptResults] = {}
        if all(chunk.count == 1 and chunk.yields_token and not prompt_rows(chunk) for chunk in ordered):
            logits = self._decode(ordered)
        else:
            logits, of_prompts = self._run_mixed(ordered)
        rows = self._yielding(ordered)
        yielding = [row.chunk for row in rows]
        if any(map(_awaits_history, yielding)):
            choose = partial(self._try, chunks, partial(self._choose, logits, rows))
            return LaunchedStep(chunks, yielding, of_prompts, None, choose)
        return LaunchedStep(chunks, yielding, of_prompts, self._choose(logits, rows) if rows else None)

    def _arriving(self, chosen: Chosen) -> Choices:
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
        last_rows: list[int] = []
        first = 0
        for chunk, part in zip(chunks, wanted, strict=True):
            if count := prompt_rows(chunk):
                of_prompts[id(chunk)] = self._of_prompt(chunk, found[first : first + count])
            first += len(part)
            if chunk.yields_token:
                last_rows.extend(range(first - 1 - len(chunk.drafts), first))
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

    def _yielding(self, chunks: Row[Chunk]) -> list[YieldingRow]:
        """With their slots as they are now: by the time of the choice some may be free."""
        rows = []
        for chunk in chunks:
            if chunk.yields_token:
                sequence, slot = chunk.sequence, self._slots.of(chunk.sequence)
                # Of several tokens the host says which is the last.
                slot.next_position = -1 if chunk.drafts else chunk.end
                for end in range(chunk.end - len(chunk.drafts), chunk.end + 1):
                    sampled = SampledRow(sequence, slot.number, end - sequence.prompt_tokens)
                    rows.append(YieldingRow(chunk, sampled))
        return rows

    def _choose(self, logits: torch.Tensor, yielding: Row[YieldingRow]) -> Choices:
        """Rows that nobody waits for any more are chosen for nobody's slot."""
        nobody = self._slots.dummy
        rows = [
            row.sampled if row.is_wanted else SampledRow(row.sampled.sequence, nobody, 0) for row in yielding
        ]
        slots = self._staging.upload(np.array([row.slot for row in rows], np.int32))
        return self._arriving(
            self._sampler.choose(logits, rows, slots, self._slots.last_tokens, self._staging)
        )


class YieldingRow(NamedTuple):
    chunk: Chunk
    sampled: SampledRow

    @property
    def is_wanted(self) -> bool:
        return is_wanted(self.chunk)


def _awaits_history(chunk: Chunk) -> bool:
    """Whether its token is chosen by those before it, of which one is still to come."""
    return chunk.sequence.needs_history and len(chunk.sequence.tokens) < chunk.end


def _singles_first(chunks: Row[Chunk]) -> list[Chunk]:
    """Decoding rows, then longer chunks; the order within each stays."""
    return sorted(chunks, key=lambda chunk: chunk.count > 1)
