"""vLLM's connector for keys and values that go through a folder: for where NIXL is not, CPUs among them.

vLLM's own example of one goes by the prompt's tokens alone, so that tenants and adapters would share, and
saves the first part of a prompt that is computed in several.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.request import RequestStatus

from python_backend.engine.runtimes.vllm.kv_files import KvFiles
from python_backend.engine.runtimes.vllm.transfer_book import Load, Save, TransferBook

_log = logging.getLogger("inflight.engine")

Parts = list[tuple[int, dict[str, torch.Tensor]]]


class Orders(KVConnectorMetadata):  # type: ignore[misc]
    def __init__(self, saves: list[Save], loads: list[Load]) -> None:
        self.saves = saves
        self.loads = loads


class FileConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """One half is in vLLM's scheduler, where the book is; the other in each worker, where the cache is."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra, parallel = self._kv_transfer_config.kv_connector_extra_config, vllm_config.parallel_config
        self._files = KvFiles(Path(extra["folder"]), parallel.world_size)
        self._blocks = kv_cache_config.num_blocks
        if role is KVConnectorRole.SCHEDULER:
            size = sum(each.size for each in kv_cache_config.kv_cache_tensors) // max(1, self._blocks)
            block_tokens = vllm_config.cache_config.block_size
            self._book = TransferBook(self._files, block_tokens, size * parallel.world_size)
            if self._kv_transfer_config.is_kv_producer:
                threading.Thread(target=self._sweep, args=(extra["kept_s"],), daemon=True).start()
        else:
            self._rank = parallel.rank
            self._caches: dict[str, torch.Tensor] = {}
            self._reader = ThreadPoolExecutor(1, "kv-reader")
            self._reading: list[tuple[Load, Future[Parts]]] = []
            self._invalid: set[int] = set()

    def _sweep(self, kept_s: float) -> None:
        while True:
            with suppress(OSError):  # the folder goes with the stack
                self._files.drop_older(time.time() - kept_s)
            time.sleep(kept_s / 2)

    # -- in the scheduler -----------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        count = self._book.to_load(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._book.allocated(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        return Orders(*self._book.orders(scheduler_output))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        ran_to_its_end = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        return False, self._book.finished(request, ran_to_its_end)

    # -- in a worker ----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Files are read beside the steps that run."""
        for load in self._get_connector_metadata().loads:
            self._reading.append((load, self._reader.submit(self._read, load)))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Who waits for keys and values is in no step."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are saved when the step is over."""

    def wait_for_save(self) -> None:
        for save in self._get_connector_metadata().saves:
            try:
                self._save(save)
            except Exception:
                _log.exception(
                    "the KV cache of a prompt could not be saved: the decode engine computes it again"
                )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        over = [(load, reading) for load, reading in self._reading if reading.done()]
        self._reading = [(load, reading) for load, reading in self._reading if not reading.done()]
        for load, reading in over:
            try:
                self._put(load, reading.result())
            except Exception:
                _log.exception(
                    "the KV cache of a prompt could not be loaded: the decode engine computes it again"
                )
                self._invalid |= set(load.block_ids)
        return None, {load.request_id for load, _ in over} or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self._invalid = self._invalid, set()
        return invalid

    def _save(self, save: Save) -> None:
        if save.block_ids:
            taken = {
                name: cache.index_select(0, self._rows(cache, save.block_ids)).cpu().contiguous()
                for name, cache in self._caches.items()
            }
            save_file(taken, self._files.part(save.transfer, self._rank, save.first))
        if save.is_last:
            self._files.finish(save.transfer, self._rank)

    def _read(self, load: Load) -> Parts:
        return [(first, load_file(path)) for first, path in self._files.parts(load.transfer, self._rank)]

    def _put(self, load: Load, parts: Parts) -> None:
        """A part may begin before what is wanted, where some of it was in the cache."""
        for name, cache in self._caches.items():
            size, missing = cache.shape[0] // self._blocks, len(load.block_ids)
            for first, tensors in parts:
                saved = tensors[name][max(0, load.first - first) * size :]
                start = max(0, first - load.first)
                block_ids = load.block_ids[start : start + len(saved) // size]
                rows = self._rows(cache, block_ids)
                cache.index_copy_(0, rows, saved[: len(rows)].to(cache.device))
                missing -= len(block_ids)
            if missing:
                raise ValueError(f"{missing} of {len(load.block_ids)} blocks are missing")

    def _rows(self, cache: torch.Tensor, block_ids: tuple[int, ...]) -> torch.Tensor:
        """A layer's kernels may have smaller blocks than the scheduler."""
        size = cache.shape[0] // self._blocks
        rows = [block * size + row for block in block_ids for row in range(size)]
        return torch.tensor(rows, dtype=torch.long, device=cache.device)
