"""Requests of the contract in the words of TensorRT-LLM's LLM API."""

from __future__ import annotations

from typing import Any

from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.declaration import Capabilities, refuse_undone
from python_backend.engine.runtimes.hosted.sampling import guide_arguments
from python_backend.engine.runtimes.trtllm.arguments import (
    keeps_the_usual,
    retention_config,
    sampling_arguments,
)
from python_backend.engine.runtimes.trtllm.failures import failure_of
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import InflightError


class LlmTranslator:
    title = "TensorRT-LLM"

    def __init__(self, llmapi: Any, capabilities: Capabilities, vocabulary: int, can_guide: bool) -> None:
        self._llmapi = llmapi
        self._capabilities = capabilities
        self._vocabulary = vocabulary
        self._can_guide = can_guide

    def refuse(self, request: GenerationRequest) -> None:
        refuse_undone(request, self._capabilities, self.title, self._can_guide)

    def arguments(self, sequence: Sequence) -> dict[str, Any]:
        """Of `generate_async`."""
        request, llmapi = sequence.request, self._llmapi
        sampling = sampling_arguments(request, sequence.max_new_tokens, sequence.index, self._vocabulary)
        if request.guide is not None:
            sampling["guided_decoding"] = llmapi.GuidedDecodingParams(**guide_arguments(request.guide))
        arguments: dict[str, Any] = {
            "inputs": list(request.prompt_ids),
            "sampling_params": llmapi.SamplingParams(**sampling),
            # Logits come whole with the end, or in pieces whose cut differs between versions.
            "streaming": not (request.asks_of_prompt or request.returns_generation_logits),
        }
        if request.asks_of_prompt:
            # Of tokens that are found in the cache there are no logits.
            arguments["cache_salt"] = f"{request.cache_salt}/{sequence.key}.{sequence.index}"
        elif request.cache_salt:
            arguments["cache_salt"] = request.cache_salt
        if not keeps_the_usual(request.retention):
            arguments["kv_cache_retention_config"] = retention_config(request.retention, llmapi)
        return arguments

    def failure_of(self, error: Exception) -> InflightError | None:
        return failure_of(error, self._llmapi.RequestError)
