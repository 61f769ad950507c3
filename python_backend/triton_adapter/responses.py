"""Builds the responses of `tensorrt_llm` from tokens, by the outputs the caller asked for."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from python_backend.engine.report import PerfMetrics
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.coalescer import Pending
from python_backend.triton_adapter.requests import GenerateCall
from python_backend.wire.pools import CONTEXT_PARAMS
from python_backend.wire.stream_mark import StreamMark, following


class ResponseBuilder:
    """The responses of one sequence; what stays the same over its stream is decided once."""

    def __init__(
        self,
        call: GenerateCall,
        row_index: int,
        sequence_index: int,
        mark: StreamMark,
        requested_outputs: Collection[str],
    ) -> None:
        row = call.rows[row_index]
        self._generation = row.generation
        self._echoed_ids = list(row.generation.prompt_ids) if row.echo_prompt else []
        self._begins_with_prompt = row.begins_with_prompt
        self._mark = mark if call.feeds_postprocessing else None
        self._requested = requested_outputs
        self._wants_perf = row.wants_perf
        self._tells_ids = row.wants_ids and "token_ids" in requested_outputs
        self._tells_prompt_ids = self._tells_ids and row.streaming
        self._with_every_response: dict[str, int] = {}
        if row.wants_input_count:
            self._with_every_response["num_input_tokens"] = len(row.generation.prompt_ids)
        if len(call.rows) > 1:
            self._with_every_response["batch_index"] = row_index
        if row.generation.num_return_sequences > 1:
            self._with_every_response["sequence_index"] = sequence_index
        self._wants_output_count = row.wants_output_count
        self._cumulative_log_prob = 0.0
        self._is_text_open = False  # postprocessing has a part of it and waits for more
        self.output_tokens = 0

    def build_prompt(self, pending: Pending) -> Any | None:
        """For a stream that begins with its prompt, or with its ids: that, once, before the first tokens."""
        if not (self._begins_with_prompt or self._tells_prompt_ids):
            return None
        self._count_images(pending)
        prompt_ids = list(self._generation.prompt_ids)
        shown = prompt_ids if self._begins_with_prompt else []
        tensors = self._common_tensors(shown, is_last=False)
        if not shown:
            tensors.append(pb.tensor("token_ids", [prompt_ids], np.int32))
        self._begins_with_prompt = self._tells_prompt_ids = False
        if self._wants_output_count:
            self._add(tensors, "num_output_tokens", len(shown), np.int32)
        if self._wants_perf and pending.perf is not None:
            self._add(tensors, "cached_tokens", pending.perf.cached_tokens, np.int32)
        if self._generation.returns_prompt_log_probs:
            following = len(prompt_ids) - 1
            rows, pending.top_log_probs = pending.top_log_probs[:following], pending.top_log_probs[following:]
            # Nothing speaks of the first token.
            unknown = [(prompt_ids[0], math.nan)] * (1 + (self._generation.top_log_probs or 0))
            self._add_top_log_probs(tensors, [unknown, *rows])
        return pb.utils().InferenceResponse(output_tensors=tensors)

    def build(self, pending: Pending) -> Any:
        self.output_tokens += len(pending.token_ids)
        self._count_images(pending)
        ids = self._echoed_ids + pending.token_ids
        tensors = self._common_tensors(ids, pending.is_last)
        if self._wants_output_count:
            self._add(tensors, "num_output_tokens", len(ids), np.int32)
        if self._generation.returns_log_probs:
            self._add_log_probs(tensors, pending)
        self._add_logits(tensors, pending)
        if pending.top_log_probs:
            self._add_top_log_probs(tensors, pending.top_log_probs)
        if pending.finish_reason is not None:
            self._add(tensors, "finish_reason", pending.finish_reason.value.encode(), np.object_)
        if self._wants_perf and pending.perf is not None:
            self._add(tensors, "cached_tokens", pending.perf.cached_tokens, np.int32)
            if pending.is_last:
                self._add_perf(tensors, pending.perf)
        if pending.steps and "engine_steps" in self._requested:
            tensors.append(pb.tensor("engine_steps", [pending.steps], np.int64))
        if pending.context and CONTEXT_PARAMS in self._requested:
            tensors.append(pb.tensor(CONTEXT_PARAMS, [list(pending.context)], np.uint8))
        return pb.utils().InferenceResponse(output_tensors=tensors)

    def build_end_of_text(self) -> Any | None:
        """For a stream that breaks off: lets postprocessing forget it; None when it does not know it."""
        if not self._is_text_open:
            return None
        return pb.utils().InferenceResponse(output_tensors=self._common_tensors([], is_last=True))

    def _count_images(self, pending: Pending) -> None:
        """What they have come to is known with the first token."""
        if pending.perf is not None and "num_input_tokens" in self._with_every_response:
            tokens = len(self._generation.prompt_ids) + pending.perf.image_tokens
            self._with_every_response["num_input_tokens"] = tokens

    def _common_tensors(self, ids: list[int], is_last: bool) -> list[Any]:
        padded = ids
        if self._mark is not None:
            padded = [*ids, self._mark._replace(is_last=is_last).to_padding_id()]
            self._mark = self._mark._replace(turn=following(self._mark.turn))
            self._is_text_open = not is_last
        tensors = [
            pb.tensor("output_ids", [[padded]], np.int32),
            pb.tensor("sequence_length", [[len(ids)]], np.int32),
        ]
        if self._tells_ids and ids:
            tensors.append(pb.tensor("token_ids", [ids], np.int32))
        for name, value in self._with_every_response.items():
            self._add(tensors, name, value, np.int32)
        return tensors

    def _add(self, tensors: list[Any], name: str, value: Any, dtype: Any) -> None:
        """One value, as [1, 1], if the caller wants this output."""
        if name in self._requested:
            tensors.append(pb.tensor(name, [[value]], dtype))

    def _add_log_probs(self, tensors: list[Any], pending: Pending) -> None:
        self._cumulative_log_prob += sum(pending.log_probs)
        self._add(tensors, "cum_log_probs", self._cumulative_log_prob, np.float32)
        self._add(tensors, "output_log_probs", pending.log_probs, np.float32)

    def _add_logits(self, tensors: list[Any], pending: Pending) -> None:
        """Rows of fp32, as many as there are tokens; absent from responses without any."""
        prompt_tokens = len(self._generation.prompt_ids)
        if pending.context_logits and "context_logits" in self._requested:
            rows = np.frombuffer(b"".join(pending.context_logits), dtype=np.float32)
            tensors.append(pb.tensor("context_logits", rows.reshape(1, prompt_tokens, -1), np.float32))
        if pending.generation_logits and "generation_logits" in self._requested:
            rows = np.frombuffer(b"".join(pending.generation_logits), dtype=np.float32)
            tensors.append(
                pb.tensor("generation_logits", rows.reshape(1, 1, len(pending.token_ids), -1), np.float32)
            )

    def _add_top_log_probs(self, tensors: list[Any], rows: list[list[tuple[int, float]]]) -> None:
        """As [1, 1, tokens, beside]: in each row the token itself comes first."""
        for name, place, dtype in (("top_token_ids", 0, np.int32), ("top_log_probs", 1, np.float32)):
            if name in self._requested:
                tensors.append(pb.tensor(name, [[[[pair[place] for pair in row] for row in rows]]], dtype))

    def _add_perf(self, tensors: list[Any], perf: PerfMetrics) -> None:
        self._add(tensors, "kv_cache_alloc_new_blocks", perf.alloc_new_blocks, np.int32)
        self._add(tensors, "kv_cache_reused_blocks", perf.reused_blocks, np.int32)
        self._add(tensors, "kv_cache_alloc_total_blocks", perf.alloc_total_blocks, np.int32)
        self._add(tensors, "arrival_time_ns", perf.arrival_ns, np.int64)
        self._add(tensors, "first_scheduled_time_ns", perf.first_scheduled_ns, np.int64)
        self._add(tensors, "first_token_time_ns", perf.first_token_ns, np.int64)
        self._add(tensors, "last_token_time_ns", perf.last_token_ns, np.int64)
        drafted, accepted = perf.drafted_tokens, perf.accepted_drafts
        self._add(tensors, "acceptance_rate", accepted / drafted if drafted else 0.0, np.float32)
        self._add(tensors, "total_accepted_draft_tokens", accepted, np.int32)
        self._add(tensors, "total_draft_tokens", drafted, np.int32)
