"""Builds the responses of `tensorrt_llm` from tokens, by the outputs the caller asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from python_backend.triton_adapter import pb
from python_backend.triton_adapter.requests import GenerateCall
from python_backend.wire.stream_mark import StreamMark


class ResponseBuilder:
    """The responses of one request; what stays the same over its stream is decided once."""

    def __init__(self, lane: int, key: int, call: GenerateCall, requested_outputs: Collection[str]) -> None:
        self._lane = lane
        self._key = key
        self._call = call
        self._prompt_tokens = len(call.generation.prompt_ids)
        self._input_count = call.wants_input_count and "num_input_tokens" in requested_outputs
        self._output_count = call.wants_output_count and "num_output_tokens" in requested_outputs
        self._finish_reason = "finish_reason" in requested_outputs

    def build(self, token_ids: list[int], finish_reason: str | None) -> Any:
        ids = self._call.generation.prompt_ids + token_ids if self._call.echo_prompt else token_ids
        padded = ids
        if self._call.feeds_postprocessing:
            padded = [*ids, StreamMark(self._lane, self._key, finish_reason is not None).to_padding_id()]
        tensors = [
            pb.tensor("output_ids", [[padded]], np.int32),
            pb.tensor("sequence_length", [[len(ids)]], np.int32),
        ]
        if self._input_count:
            tensors.append(pb.tensor("num_input_tokens", [[self._prompt_tokens]], np.int32))
        if self._output_count:
            tensors.append(pb.tensor("num_output_tokens", [[len(ids)]], np.int32))
        if self._finish_reason and finish_reason is not None:
            tensors.append(pb.tensor("finish_reason", [[finish_reason.encode()]], np.object_))
        return pb.utils().InferenceResponse(output_tensors=tensors)
