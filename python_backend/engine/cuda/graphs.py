"""Decoding steps recorded once for each batch size and replayed: one launch in place of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from python_backend.engine.cuda.step import StepRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from python_backend.engine.cuda.decoder import CudaDecoder
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.cuda.slots import Slots


def graph_sizes(max_batch_size: int) -> list[int]:
    """Batch sizes worth a graph: dense where a row more costs most; the largest is the largest batch."""
    ladder = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_batch_size + 32, 32)]
    return [*(size for size in ladder if size < max_batch_size), max_batch_size]


class DecodeGraphs:
    """Replays the step of the smallest batch that has room; rows too many belong to the dummy slot.

    Where `records` is False the same step is launched operation by operation.
    """

    def __init__(
        self,
        decoder: CudaDecoder,
        cache: KvCache,
        slots: Slots,
        logits: torch.Tensor,
        max_batch_size: int,
        records: bool,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._logits = logits
        self._sizes = graph_sizes(max_batch_size)
        self._size_for = _smallest_with_room(self._sizes)
        self._records = records
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        # Every graph reads its rows from here: the slots of all, then the positions of all.
        self._rows = torch.zeros(2 * max_batch_size, dtype=torch.int32, device=logits.device)

    def size_for(self, rows: int) -> int:
        return self._size_for[rows]

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """The largest first: the smaller ones then find all the memory they need in its pool.

        Where nothing is recorded every size is still run once, so that it is compiled.
        """
        pool = None
        for done, size in enumerate(reversed(self._sizes)):
            progress(done, len(self._sizes))
            self._rows[:size] = self._slots.dummy
            self._rows[size : 2 * size] = 0
            self._launch(size)  # compiles and lets libraries set themselves up, which cannot be recorded
            torch.cuda.current_stream().synchronize()
            if self._records:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self._launch(size)
                pool = graph.pool() if pool is None else pool
                self._graphs[size] = graph
        progress(len(self._sizes), len(self._sizes))

    def run(self, rows: NDArray[np.int32], count: int, staging: Staging) -> torch.Tensor:
        """`rows` is (2, size): slots and positions, filled up with the dummy slot; returns `count` logits."""
        size = rows.shape[1]
        staging.upload_into(self._rows[: 2 * size], rows.reshape(-1))
        graph = self._graphs.get(size)
        if graph is None:
            self._launch(size)
        else:
            graph.replay()
        return self._logits[:count]

    def _launch(self, size: int) -> None:
        slots, positions = self._rows[:size], self._rows[size : 2 * size]
        token_ids = self._slots.last_tokens.index_select(0, slots)
        rows = StepRows(token_ids, slots, positions, decode_rows=size)
        found = self._decoder.forward(rows, self._cache, self._slots.block_tables)
        self._decoder.write_logits(found, self._logits[:size])


def _smallest_with_room(sizes: list[int]) -> list[int]:
    """For each number of rows the size to use."""
    found = [sizes[0]]
    for size in sizes:
        found.extend([size] * (size + 1 - len(found)))
    return found
