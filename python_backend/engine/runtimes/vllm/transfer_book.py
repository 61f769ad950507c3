"""What one engine's scheduler knows of keys and values that are given away or taken: who, which blocks, when.

A prompt's whole blocks are passed on, but for the one with its last token: who answers computes that, and
has the first token's scores from it. They are saved step by step, as they are computed, so that all of them
lie there when the prompt's answer is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from python_backend.engine.runtimes.vllm.kv_files import KvFiles

_TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class Save:
    """Blocks of the cache that are the prompt's from its `first` on."""

    transfer: str
    first: int
    block_ids: tuple[int, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Load:
    request_id: str
    transfer: str
    first: int
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class _Saving:
    transfer: str
    prompt_tokens: int
    whole_blocks: int
    block_ids: list[int] = field(default_factory=list)
    saved: int = 0
    is_done: bool = False


class TransferBook:
    """Requests are vLLM's own; a load is tried once, and what it does not bring is computed."""

    def __init__(self, files: KvFiles, block_tokens: int, block_bytes: int) -> None:
        self._files = files
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._saving: dict[str, _Saving] = {}
        self._tried: dict[str, str] = {}  # transfers by who took them
        self._loads: list[Load] = []

    def to_load(self, request: Any, computed_tokens: int) -> int:
        """How many tokens can be had beyond those that are there; the same however often it is asked."""
        name = _given(request, "do_remote_prefill").get(_TRANSFER)
        if not isinstance(name, str) or request.request_id in self._tried:
            return 0
        if not self._files.has(name, self._identity(request)):
            return 0
        return max(0, self._whole_blocks(request) * self._block_tokens - computed_tokens)

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        """It has these blocks, from the prompt's first on."""
        whole = self._whole_blocks(request)
        if external_tokens:
            name = _given(request, "do_remote_prefill")[_TRANSFER]
            first = whole - external_tokens // self._block_tokens
            self._tried[request.request_id] = name
            self._loads.append(Load(request.request_id, name, first, tuple(block_ids[first:whole])))
        elif _given(request, "do_remote_decode") and whole and request.request_id not in self._saving:
            name = self._files.begin(self._identity(request), whole * self._block_bytes)
            if name is not None:
                self._saving[request.request_id] = _Saving(name, len(request.prompt_token_ids), whole)

    def orders(self, step: Any) -> tuple[list[Save], list[Load]]:
        """What a step that is about to run saves when it has run, and loads."""
        saves = []
        for request_id, new_ids, is_anew, computed in _scheduled(step):
            saving = self._saving.get(request_id)
            if saving is None or saving.is_done:
                continue
            saving.block_ids = new_ids if is_anew else saving.block_ids + new_ids
            computed += step.num_scheduled_tokens[request_id]
            full = min(computed // self._block_tokens, saving.whole_blocks)
            saving.is_done = computed >= saving.prompt_tokens
            if full > saving.saved or saving.is_done:
                ids = tuple(saving.block_ids[saving.saved : full])
                saves.append(Save(saving.transfer, saving.saved, ids, saving.is_done))
                saving.saved = full
        loads, self._loads = self._loads, []
        return saves, loads

    def finished(self, request: Any, ran_to_its_end: bool) -> dict[str, Any] | None:
        """What another engine is to be told; nothing is left of one that was aborted or loaded."""
        if (taken := self._tried.pop(request.request_id, None)) is not None:
            self._files.drop(taken)
        elif isinstance(unused := _given(request, "do_remote_prefill").get(_TRANSFER), str):
            self._files.drop(unused)
        saving = self._saving.pop(request.request_id, None)
        if saving is None:
            return None
        if not (saving.is_done and ran_to_its_end):
            self._files.drop(saving.transfer)
            return None
        return {"do_remote_prefill": True, "do_remote_decode": False, _TRANSFER: saving.transfer}

    def _whole_blocks(self, request: Any) -> int:
        return max(0, len(request.prompt_token_ids or ()) - 1) // self._block_tokens

    def _identity(self, request: Any) -> str:
        """Nobody gets keys and values of another prompt, tenant or adapter, whatever they are told."""
        adapter = request.lora_request.lora_name.split("#")[0] if request.lora_request else ""
        said = [list(request.prompt_token_ids or ()), request.cache_salt, adapter, self._block_tokens]
        return blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


def _given(request: Any, order: str) -> dict[str, Any]:
    """What the request says of a transfer, where it is of this kind."""
    params: dict[str, Any] = request.kv_transfer_params or {}
    return params if params.get(order) else {}


def _scheduled(step: Any) -> Iterator[tuple[str, list[int], bool, int]]:
    """Who is part of the step, the blocks that it got, whether they are all it has, and what it has done."""
    for new in step.scheduled_new_reqs:
        yield new.req_id, list(new.block_ids[0]), True, new.num_computed_tokens
    cached = step.scheduled_cached_reqs
    rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
    for request_id, block_ids, computed in rows:
        is_anew = request_id in cached.resumed_req_ids
        yield request_id, list(block_ids[0]) if block_ids else [], is_anew, computed
