"""Keys and values that left the GPU, in memory of the host that it can reach."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import torch

from python_backend.engine.kv.host_blocks import HostBlocks
from python_backend.engine.report import EngineBroken
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.cuda.kv_cache import KvCache
    from python_backend.engine.kv.host_blocks import BlockMove

# So many blocks pass through the GPU's own memory at a time.
_AT_A_TIME = 8


class HostCache:
    """One piece of pinned memory for each block, with all of its parts.

    Everything is launched on the stream of the steps, and so happens between the one before and the next.
    """

    def __init__(self, cache: KvCache, blocks: int) -> None:
        self._parts = cache.parts
        like = self._parts[0]
        self._is_pinned = like.is_cuda
        size = (blocks, len(self._parts), *like.shape[1:])
        try:
            self._memory = torch.empty(size, dtype=like.dtype, pin_memory=self._is_pinned)
        except RuntimeError as error:
            message = f"kv_cache_host_memory_bytes: {blocks} blocks cannot be allocated on this host: {error}"
            raise InflightError(
                ErrorKind.ENGINE_FAILED, message.splitlines()[0], "kv_cache_host_memory_bytes"
            ) from None

    @torch.inference_mode()
    def move(self, saves: Row[BlockMove], loads: Row[BlockMove]) -> None:
        try:
            for first in range(0, len(saves), _AT_A_TIME):
                self._save(saves[first : first + _AT_A_TIME])
            for first in range(0, len(loads), _AT_A_TIME):
                self._load(loads[first : first + _AT_A_TIME])
        except Exception as error:
            # Blocks are found by now that do not hold what they should.
            raise EngineBroken(f"KV blocks could not be copied: {error}") from error

    def _save(self, moves: Row[BlockMove]) -> None:
        numbers = self._numbers(moves)
        gathered = torch.stack([part.index_select(0, numbers) for part in self._parts], dim=1)
        for move, block in zip(moves, gathered, strict=True):
            self._memory[move.on_host].copy_(block, non_blocking=self._is_pinned)

    def _load(self, moves: Row[BlockMove]) -> None:
        numbers = self._numbers(moves)
        size = (len(moves), *self._memory.shape[1:])
        gathered = torch.empty(size, dtype=self._memory.dtype, device=self._parts[0].device)
        for move, block in zip(moves, gathered, strict=True):
            block.copy_(self._memory[move.on_host], non_blocking=self._is_pinned)
        for number, part in enumerate(self._parts):
            part.index_copy_(0, numbers, gathered[:, number])

    def _numbers(self, moves: Row[BlockMove]) -> torch.Tensor:
        numbers = torch.tensor([move.on_device for move in moves], pin_memory=self._is_pinned)
        return numbers.to(self._parts[0].device, non_blocking=self._is_pinned)


def host_blocks(cache: KvCache, block_bytes: int, host_bytes: int | None) -> HostBlocks | None:
    """None where less than one block may be kept."""
    count = (host_bytes or 0) // block_bytes
    return HostBlocks(count, HostCache(cache, count).move) if count else None
