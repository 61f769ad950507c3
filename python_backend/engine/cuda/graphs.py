"""Steps recorded once for each size and replayed: one launch in place of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from python_backend.engine.cuda.host_rows import HostRows
from python_backend.engine.cuda.kernels.decode_attention import decode_work, most_work
from python_backend.engine.cuda.kernels.prefill_attention import most_cut_tiles, prefill_tiles, prefill_tiling
from python_backend.engine.cuda.step import PrefillChunks, StepRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.cuda.adapters import CudaAdapters, RowAdapters
    from python_backend.engine.cuda.decoder import CudaDecoder
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.cuda.slots import Slots

    Numbers = NDArray[np.int32]

# Beyond so many rows the device takes longer for a step than the host to launch it.
_MOST_MIXED_ROWS = 1024
# A step with more prompts than this is launched operation by operation.
_MOST_CHUNKS = 64
_ROWS_OF_LARGE_STEPS = 128
# Products give back other things for few rows and for many; adapters add to each of them.
_SIZES_OF_EACH_KIND = (1, 16, 128, 512, 1024)


def graph_sizes(max_batch_size: int) -> list[int]:
    """Batch sizes worth a graph: dense where a row more costs most; the largest is the largest batch."""
    ladder = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_batch_size + 32, 32)]
    return [*(size for size in ladder if size < max_batch_size), max_batch_size]


def mixed_sizes(max_step_tokens: int) -> list[int]:
    """Numbers of rows worth a graph in steps with prompts: what a product takes grows by tiles of rows.

    448 are none: the library's product of the 8B shape's widest matrix takes longer than that of 512.
    """
    ladder = [16, 32, *range(64, 448, 64), 512, 576, *range(640, _MOST_MIXED_ROWS + 128, 128)]
    return [size for size in ladder if size <= max_step_tokens]


def whole_tiles(rows: int) -> int:
    """For steps that have no graph: so many rows that few kinds of kernels are needed, all loaded before."""
    return -(-rows // _ROWS_OF_LARGE_STEPS) * _ROWS_OF_LARGE_STEPS


class _Recorded:
    """Replays the step of the smallest size that has room.

    What a step is told is one array of numbers on the device, where each graph reads its own. Where nothing
    is recorded the same step is launched operation by operation.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        count: Callable[[int], int],
        launch: Callable[[int, torch.Tensor, int], torch.Tensor],
        device: torch.device,
    ) -> None:
        self.sizes = sizes
        self._launch = launch
        self._size_for = _smallest_with_room(sizes) if sizes else [0]
        self.numbers = {size: torch.zeros(count(size), dtype=torch.int32, device=device) for size in sizes}
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._records = False
        self._pool: Any = None

    def has_room(self, rows: int) -> bool:
        return rows < len(self._size_for)

    def size_for(self, rows: int) -> int:
        return self._size_for[rows]

    def capture(
        self, idle: Callable[[int], Numbers], records: bool, pool: Any, progress: Callable[[], None]
    ) -> Any:
        """The largest first: the smaller ones then find all the memory they need in its pool."""
        for size in reversed(self.sizes):
            self.numbers[size].copy_(torch.from_numpy(idle(size)))
            self._launch(size, self.numbers[size], 0)  # compiles, sets libraries up: not to be recorded
            if records:
                pool = self._record(size, 0, pool)
            progress()
        self._records, self._pool = records, pool
        return pool

    def run(self, size: int, numbers: Numbers, staging: Staging, rank: int) -> torch.Tensor:
        """With adapters of up to this rank, 0: without; steps with adapters are recorded when they come."""
        staging.upload_into(self.numbers[size], numbers)
        if (size, rank) not in self._graphs:
            found = self._launch(size, self.numbers[size], rank)
            if self._records:
                self._record(size, rank, self._pool)
            return found
        graph, found = self._graphs[size, rank]
        graph.replay()
        return found

    def _record(self, size: int, rank: int, pool: Any) -> Any:
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = self._launch(size, self.numbers[size], rank)
        self._graphs[size, rank] = graph, found
        return graph.pool() if pool is None else pool


class StepGraphs:
    """Graphs for steps of single tokens, and where `mixes` for short steps with prompts, too."""

    def __init__(
        self,
        decoder: CudaDecoder,
        cache: KvCache,
        slots: Slots,
        max_batch_size: int,
        mixed: Sequence[int],
        adapters: CudaAdapters,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._adapters = adapters
        self.adapts = False  # whether a row of the step to come has an adapter
        shape, device = decoder.shape, decoder.device
        self._kv_heads, self._group = shape.kv_heads, shape.heads // shape.kv_heads
        self._tiling = prefill_tiling(shape.head_dim, self._group, decoder.dtype)
        self._max_batch_size = max_batch_size
        decoder.make_room(self._most_work(max_batch_size), max([max_batch_size, *mixed]))
        self._logits = torch.empty(max_batch_size, shape.vocabulary, dtype=torch.float32, device=device)
        singles = graph_sizes(max_batch_size)
        self._singles = _Recorded(singles, self._single_numbers, self._launch_singles, device)
        self._mixed = _Recorded(mixed, self._mixed_numbers, self._launch_mixed, device)
        self.is_recorded = False

    def size_for(self, rows: int) -> int:
        return self._singles.size_for(rows)

    def capture(self, records: bool, progress: Callable[[int, int], None]) -> None:
        total = len(self._singles.sizes) + len(self._mixed.sizes)
        done = iter(range(1, total + 1))
        progress(0, total)

        def tell() -> None:
            progress(next(done), total)

        pool = self._mixed.capture(self._idle_mixed, records, None, tell)
        self._singles.capture(self._idle_singles, records, pool, tell)
        self.is_recorded = True

    def warm_up_adapters(self) -> None:
        """Has the kernels of adapters compiled; nothing is recorded before there is one."""
        rank = self._adapters.warm_rank()
        for recorded, launch in ((self._singles, self._launch_singles), (self._mixed, self._launch_mixed)):
            for size in recorded.sizes:
                if size in _SIZES_OF_EACH_KIND:
                    launch(size, recorded.numbers[size], rank)

    # Steps of single tokens

    def run_singles(self, slots: Sequence[int], positions: Sequence[int], staging: Staging) -> torch.Tensor:
        """The logits of these rows, whose tokens the device remembers."""
        size = self.size_for(len(slots))
        numbers = self._told_singles(size, slots, positions)
        return self._singles.run(size, numbers, staging, self._rank)[: len(slots)]

    @property
    def _rank(self) -> int:
        return self._adapters.rank if self.adapts else 0

    def _row_adapters(self, slots: torch.Tensor, rank: int) -> RowAdapters | None:
        if rank == 0:
            return None
        return self._adapters.of_rows(self._slots.adapters.index_select(0, slots), rank)

    def _idle_singles(self, size: int) -> Numbers:
        return self._told_singles(size, [], [])

    def _told_singles(self, size: int, slots: Sequence[int], positions: Sequence[int]) -> Numbers:
        numbers = np.zeros(self._single_numbers(size), np.int32)
        numbers[:size] = self._slots.dummy
        numbers[: len(slots)] = slots
        numbers[size : size + len(slots)] = positions
        work = decode_work(np.array(positions, np.int32), self._kv_heads, self._most_work(size))
        numbers[2 * size :] = work.reshape(-1)
        return numbers

    def _single_numbers(self, size: int) -> int:
        return 2 * size + 3 * self._most_work(size)

    def _launch_singles(self, size: int, numbers: torch.Tensor, rank: int) -> torch.Tensor:
        slots, positions, work = numbers[:size], numbers[size : 2 * size], numbers[2 * size :].view(-1, 3)
        token_ids = self._slots.last_tokens.index_select(0, slots)
        rows = StepRows(token_ids, slots, positions, work, adapters=self._row_adapters(slots, rank))
        found = self._decoder.forward(rows, self._cache, self._slots.block_tables)
        logits = self._logits[:size]
        self._decoder.write_logits(found, logits)
        return logits

    # Steps with prompts

    def has_room(self, rows: HostRows) -> bool:
        """Whether there is a graph for a step with prompts like this."""
        return self.is_recorded and self._mixed.has_room(len(rows)) and len(rows.starts) <= _MOST_CHUNKS

    def run_mixed(self, rows: HostRows, staging: Staging) -> torch.Tensor:
        """Every row as it comes out of the last layer and its norm."""
        size = self._mixed.size_for(len(rows))
        return self._mixed.run(size, self._told_mixed(size, rows), staging, self._rank)

    def launch(self, rows: HostRows, wanted: Numbers, staging: Staging) -> torch.Tensor:
        """The wanted rows of any step with prompts, operation by operation."""
        work = None
        if rows.singles:
            work = staging.upload(self._work(rows, rows.singles))
        chunks = None
        if len(rows.starts):
            arrays = (rows.chunk_slots, rows.first_rows, rows.starts, self._tiles(rows))
            chunks = PrefillChunks(*(staging.upload(array) for array in arrays))
        tokens, slots, positions = (
            staging.upload(array) for array in (rows.tokens, rows.slots, rows.positions)
        )
        known, index = self._known(tokens, slots), staging.upload(wanted)
        adapters = self._row_adapters(slots, self._rank)
        step = StepRows(known, slots, positions, work, chunks, index, adapters)
        return self._decoder.forward(step, self._cache, self._slots.block_tables)

    def _idle_mixed(self, size: int) -> Numbers:
        none = np.zeros(0, np.int32)
        return self._told_mixed(size, HostRows(none, none, none, 0, none, np.zeros(1, np.int32), none))

    def _told_mixed(self, size: int, rows: HostRows) -> Numbers:
        rows = rows.filled_up(size, self._slots.dummy)
        tiles = np.full((self._most_tiles(size), 4), -1, np.int32)
        if len(rows.starts):
            found = self._tiles(rows)
            tiles[: len(found)] = found
        parts = (
            rows.tokens,
            rows.slots,
            rows.positions,
            _padded(rows.chunk_slots, _MOST_CHUNKS),
            _padded(rows.first_rows, _MOST_CHUNKS + 1),
            _padded(rows.starts, _MOST_CHUNKS),
            tiles.reshape(-1),
            self._work(rows, size).reshape(-1),
        )
        return np.concatenate(parts)

    def _mixed_numbers(self, size: int) -> int:
        return 3 * size + 3 * _MOST_CHUNKS + 1 + 4 * self._most_tiles(size) + 3 * self._most_work(size)

    def _launch_mixed(self, size: int, numbers: torch.Tensor, rank: int) -> torch.Tensor:
        sizes = [size] * 3 + [_MOST_CHUNKS, _MOST_CHUNKS + 1, _MOST_CHUNKS, 4 * self._most_tiles(size)]
        tokens, slots, positions, chunk_slots, first_rows, starts, tiles, work = torch.split(
            numbers, [*sizes, 3 * self._most_work(size)]
        )
        chunks = PrefillChunks(chunk_slots, first_rows, starts, tiles.view(-1, 4))
        rows = StepRows(
            self._known(tokens, slots),
            slots,
            positions,
            work.view(-1, 3),
            chunks,
            adapters=self._row_adapters(slots, rank),
        )
        return self._decoder.forward(rows, self._cache, self._slots.block_tables)

    def _known(self, tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """With what the device remembers, where the host does not know them."""
        return torch.where(tokens < 0, self._slots.last_tokens.index_select(0, slots), tokens)

    def _tiles(self, rows: HostRows) -> Numbers:
        return prefill_tiles(rows.starts, rows.counts, self._group, self._tiling, self._kv_heads)

    def _most_tiles(self, size: int) -> int:
        whole = -(-size // (self._tiling.query_rows // self._group)) + _MOST_CHUNKS
        return max(whole, most_cut_tiles(self._kv_heads))

    def _most_work(self, rows: int) -> int:
        """Of a step with so many: a sequence has one at most that is a chunk of its own."""
        return most_work(min(rows, self._max_batch_size), self._kv_heads)

    def _work(self, rows: HostRows, size: int) -> Numbers:
        return decode_work(rows.positions[: rows.singles], self._kv_heads, self._most_work(size))


def _padded(numbers: Numbers, size: int) -> Numbers:
    return np.append(numbers, np.zeros(size - len(numbers), np.int32))


def _smallest_with_room(sizes: Sequence[int]) -> list[int]:
    """For each number of rows the size to use."""
    found = [sizes[0]]
    for size in sizes:
        found.extend([size] * (size + 1 - len(found)))
    return found
