"""A request of the contract, as vLLM is asked for it.

Which token ends an answer, and how, is decided by the contract and not there: an answer that has ended is
aborted. What vLLM can look for itself, single tokens, it is told as well, to lose no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backend.engine.report import EngineBroken
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.declaration import Capabilities, refuse_undone
from python_backend.engine.runtimes.hosted.host import Unreadable
from python_backend.engine.runtimes.hosted.sampling import guide_arguments, penalties_of
from python_backend.engine.runtimes.vllm.adapters import VllmAdapters
from python_backend.engine.runtimes.vllm.images import image_prompt
from python_backend.engine.runtimes.vllm.transfer import Transfers
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import ErrorKind, InflightError

# Not all of its versions derive them from ValueError.
_OF_THE_REQUEST = ("VLLMValidationError", "VLLMUnprocessableEntityError", "VLLMNotFoundError")


class VllmTranslator:
    """`api` has vLLM's own classes by their names."""

    title = "vLLM"

    def __init__(
        self,
        api: Mapping[str, Any],
        capabilities: Capabilities,
        can_guide: bool,
        end_ids: tuple[int, ...] = (),
        adapters: VllmAdapters | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        self._transfers = transfers
        self._api = api
        self._capabilities = capabilities
        self._can_guide = can_guide
        self._end_ids = end_ids
        self._adapters = adapters

    def refuse(self, request: GenerationRequest) -> None:
        refuse_undone(request, self._capabilities, self.title, self._can_guide)
        if request.adapter and self._adapters is None:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"adapter {request.adapter} is requested, but vLLM was loaded without slots for adapters: "
                "set inflight_max_adapters",
                "inflight_adapter",
            )
        if request.adapter and self._adapters is not None:
            self._adapters.request_for(request.adapter)  # raises where there is none

    def arguments(self, sequence: Sequence) -> dict[str, Any]:
        request = sequence.request
        params = self._api["SamplingParams"](**self._sampling(sequence))
        if request.bad_sequences:
            # Its public field takes texts, which it turns into these.
            params._bad_words_token_ids = [list(word) for word in request.bad_sequences]
        adapter = None
        if request.adapter and self._adapters is not None:
            adapter = self._adapters.request_for(request.adapter)
        if request.images:
            prompt = image_prompt(request)
        else:
            salt = request.cache_salt or None
            prompt = self._api["tokens_input"](list(request.prompt_ids), cache_salt=salt)
        return {
            "prompt": prompt,
            "sampling_params": params,
            "request_id": f"{sequence.key}.{sequence.index}",
            "priority": int(request.tier),
            **({} if adapter is None else {"lora_request": adapter}),
        }

    def _sampling(self, sequence: Sequence) -> dict[str, Any]:
        request = sequence.request
        has_end = request.end_id is not None and request.end_id >= 0
        # Its `min_tokens` keeps stop words from coming at all; the contract passes over those too early.
        may_stop = request.sampling.min_tokens <= 1
        ends = {request.end_id} if has_end else set()
        if may_stop:
            ends |= {stop[0] for stop in request.stop_sequences if len(stop) == 1}
        if request.guide is not None:
            ends |= set(self._end_ids)
        arguments: dict[str, Any] = {
            "max_tokens": sequence.max_new_tokens,
            "ignore_eos": True,
            "stop_token_ids": sorted(ends) or None,
            "min_tokens": max(1, request.sampling.min_tokens) if has_end else 0,
            "detokenize": False,
            "output_kind": self._api["RequestOutputKind"].DELTA,
            "logit_bias": dict(request.token_bias) or None,
            **_choosing(request, sequence.index),
            **(self._transfers.asked_with(request) if self._transfers else {}),
        }
        if request.returns_log_probs or request.top_log_probs is not None:
            arguments["logprobs"] = request.top_log_probs or 0
        if request.returns_prompt_log_probs:
            arguments["prompt_logprobs"] = request.top_log_probs or 0
        if request.guide is not None:
            outputs = self._api["StructuredOutputsParams"]
            arguments["structured_outputs"] = outputs(**guide_arguments(request.guide))
        return arguments

    def failure_of(self, error: Exception) -> InflightError | None:
        if isinstance(error, (self._api["EngineDeadError"], EngineBroken)):
            return None
        if isinstance(error, InflightError):
            return error
        if isinstance(error, (ValueError, *(self._api[name] for name in _OF_THE_REQUEST))):
            return InflightError(ErrorKind.INVALID_REQUEST, f"vLLM refuses the request: {error}")
        if isinstance(error, (TypeError, Unreadable, self._api["EngineGenerateError"])):
            return InflightError(ErrorKind.ENGINE_FAILED, f"vLLM could not answer: {error}")
        return None


def _choosing(request: GenerationRequest, index: int) -> dict[str, Any]:
    """How the next token is chosen; what is left out is vLLM's own default, which is the contract's."""
    sampling = request.sampling
    chosen: dict[str, Any] = {"temperature": 0.0}
    if not sampling.is_greedy:
        chosen = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p if sampling.top_p > 0 else 1.0,
            "min_p": sampling.min_p,
            "seed": (sampling.seed + index) % (1 << 63),
        }
    return chosen | penalties_of(sampling)
