"""`LLM`: the published methods, and a thread in which our own engine computes on the CPU."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.request import GenerationRequest, Guide, GuideKind, Retention, RetentionRange
from python_backend.engine.request import SamplingParams as OurSampling
from python_backend.wire.errors import InflightError

from .arguments import (
    CapacitySchedulerPolicy,
    GuidedDecodingParams,
    KvCacheRetentionConfig,
    LlmArguments,
    SamplingParams,
)
from .results import IterationResult, RequestError, RequestOutput

PRECISIONS = {"auto": "fp32", "float32": "fp32", "bfloat16": "fp32"}
# A step takes so long at least, as it would on a GPU: who leaves is to be faster than an answer.
STEP_S = 0.003
# Prompts for tests of that alone: the first is a fault on a GPU, of which every request is told as if it were
# its own; with the second what computes dies, and nobody is told anything.
FATAL_PROMPT = [7, 7, 7]
DEADLY_PROMPT = [8, 8, 8]


class LLM:
    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        explicit = {
            "model": model,
            "tokenizer": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
        }
        self.args = LlmArguments.of({**explicit, **kwargs})
        self._engine = build_engine(_config(self.args))
        self._ids = itertools.count(1)
        self._results: dict[int, RequestOutput] = {}
        self._commands: SimpleQueue[Callable[[Engine], None]] = SimpleQueue()
        self._executor = Executor(self._engine)
        self._is_shut_down = False
        threading.Thread(target=self._compute, name="stand-in", daemon=True).start()

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        disaggregated_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
        trace_headers: Any = None,
        conversation_params: Any = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        if self._is_shut_down:
            raise RuntimeError("LLM is shutting down")
        if not (isinstance(inputs, list) and all(type(each) is int for each in inputs)):
            raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")
        params = sampling_params or SamplingParams()
        if params.end_id is None and self.args.skip_tokenizer_init:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if params.guided_decoding is not None and self.args.guided_decoding_backend is None:
            raise ValueError("guided_decoding_backend is not set")
        request = _request(inputs, params, cache_salt, kv_cache_retention_config)
        vocabulary = self._engine.limits.vocabulary
        if params.embedding_bias is not None and params.embedding_bias.shape != (vocabulary,):
            raise RequestError(f"embedding_bias must have the shape [{vocabulary}]")
        result = RequestOutput(next(self._ids), inputs, params, streaming, vocabulary, self._abort)
        self._results[result.request_id] = result
        self._commands.put(lambda engine: self._add(engine, result, request))
        return result

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        """Nothing: in a process that computes itself nobody passes on what the executor noted."""
        return []

    def get_stats_async(self, timeout: float | None = 2) -> IterationResult:
        return IterationResult()

    def get_kv_cache_capacity(self) -> dict[str, int]:
        return self._executor.fetch_kv_cache_capacity()

    def shutdown(self) -> None:
        self._is_shut_down = True

    def _check_health(self) -> bool:
        return not self._is_shut_down

    def _abort(self, request_id: int) -> None:
        self._commands.put(lambda engine: engine.cancel(request_id))

    # -- the thread that computes ---------------------------------------------------------------------

    def _add(self, engine: Engine, result: RequestOutput, request: GenerationRequest) -> None:
        if list(request.prompt_ids) == DEADLY_PROMPT:
            self._is_shut_down = True
            return
        if list(request.prompt_ids) == FATAL_PROMPT:
            for each in self._results.values():
                each.tell(RequestError("CUDA error: an illegal memory access was encountered"))
            return
        try:
            engine.add(result.request_id, request)
        except InflightError as error:
            self._results.pop(result.request_id).tell(RequestError(error.message))

    def _compute(self) -> None:
        try:
            while not self._is_shut_down:
                self._take_commands()
                if self._engine.has_work:
                    self._step()
        finally:
            self._is_shut_down = True

    def _take_commands(self) -> None:
        try:
            if not self._engine.can_step:
                self._commands.get(timeout=0.002)(self._engine)
            while True:
                self._commands.get_nowait()(self._engine)
        except Empty:
            pass

    def _step(self) -> None:
        began_s = time.monotonic()
        for event in self._engine.step():
            result = self._results[event.key]
            result.tell(event)
            if event.is_last:
                del self._results[event.key]
        time.sleep(max(0.0, began_s + STEP_S - time.monotonic()))
        if self.args.enable_iter_perf_stats:
            self._executor.note(time.monotonic() - began_s)


class Executor:
    """What the real one calls the worker, where it computes in the same process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._statistics: list[dict[str, Any]] = []

    def fetch_stats(self) -> list[Any]:
        told, self._statistics = self._statistics, []
        return [(each, None) for each in told]

    @staticmethod
    def _stats_serializer(stats: Any) -> str:
        iteration, _ = stats
        return json.dumps(iteration)

    def fetch_kv_cache_capacity(self) -> dict[str, int]:
        pool = self._engine.pool
        return {
            "maxNumBlocks": pool.total_blocks,
            "tokensPerBlock": pool.tokens_per_block,
            "maxNumTokens": pool.capacity_tokens,
        }

    def note(self, took_s: float) -> None:
        now = self._engine.gauges()
        del self._statistics[:-1000]  # as many as the real one keeps
        self._statistics.append(
            {
                "iter": now.step_count,
                "iterLatencyMS": took_s * 1000,
                "cpuMemUsage": resident_bytes(),
                "gpuMemUsage": 2,
                "pinnedMemUsage": 3,
                "inflightBatchingStats": {
                    "numScheduledRequests": now.scheduled,
                    "numContextRequests": now.context,
                    "numPausedRequests": now.paused,
                    "numCtxTokens": now.context_tokens,
                },
                "kvCacheStats": {
                    "maxNumBlocks": now.total_blocks,
                    "usedNumBlocks": now.used_blocks,
                    "tokensPerBlock": self._engine.pool.tokens_per_block,
                    "reusedBlocks": now.reused_blocks,
                    "allocNewBlocks": now.new_blocks,
                },
            }
        )


def _config(arguments: LlmArguments) -> EngineConfig:
    cache, policy = arguments.kv_cache_config, arguments.scheduler_config.capacity_scheduler_policy
    return EngineConfig(
        checkpoint_dir=str(arguments.model),
        max_tokens_in_kv_cache=cache.max_tokens,
        tokens_per_block=cache.tokens_per_block,
        max_batch_size=min(arguments.max_batch_size or 64, 64),
        max_step_tokens=arguments.max_num_tokens or 512,
        max_sequence_tokens=arguments.max_seq_len,
        static_batching=policy is CapacitySchedulerPolicy.STATIC_BATCH,
        guaranteed_no_evict=policy is not CapacitySchedulerPolicy.MAX_UTILIZATION,
        enable_kv_cache_reuse=cache.enable_block_reuse,
        precision=PRECISIONS[arguments.dtype],
        tokenizer_dir=arguments.tokenizer,
        threads=1,
    )


def _request(
    prompt: list[int], params: SamplingParams, salt: str | None, retention: KvCacheRetentionConfig | None
) -> GenerationRequest:
    bias: list[float] = [] if params.embedding_bias is None else params.embedding_bias.tolist()
    return GenerationRequest(
        prompt_ids=prompt,
        max_new_tokens=params.max_tokens,
        end_id=None if params.ignore_eos else params.end_id,
        stop_sequences=tuple((token_id,) for token_id in params.stop_token_ids or ()),
        # The sampler does not look at `bad_token_ids`, as the real one did not until late in 1.3.
        bad_sequences=tuple((i,) for i, each in enumerate(bias) if each == float("-inf")),
        token_bias={i: each for i, each in enumerate(bias) if each and each != float("-inf")},
        sampling=OurSampling(
            temperature=1.0 if params.temperature is None else params.temperature,
            top_k=params.top_k or 0,
            top_p=params.top_p or 0.0,
            seed=params.seed or 0,
            repetition_penalty=params.repetition_penalty or 1.0,
            presence_penalty=params.presence_penalty or 0.0,
            frequency_penalty=params.frequency_penalty or 0.0,
            min_tokens=params.min_tokens or 1,
        ),
        guide=None if params.guided_decoding is None else _guide(params.guided_decoding),
        cache_salt=salt or "",
        retention=Retention() if retention is None else _retention(retention),
        returns_context_logits=params.return_context_logits,
        returns_generation_logits=params.return_generation_logits,
        top_log_probs=params.logprobs or None,
    )


def _guide(params: GuidedDecodingParams) -> Guide:
    if params.json_object:
        return Guide(GuideKind.JSON)
    if params.regex is not None:
        return Guide(GuideKind.REGEX, params.regex)
    if params.grammar is not None:
        return Guide(GuideKind.EBNF_GRAMMAR, params.grammar)
    return Guide(GuideKind.JSON_SCHEMA, str(params.json))


def _retention(config: KvCacheRetentionConfig) -> Retention:
    def milliseconds(duration: Any) -> int | None:
        return None if duration is None else round(duration.total_seconds() * 1000)

    ranges = tuple(
        RetentionRange(part.token_start, part.token_end, part.priority, milliseconds(part.duration_ms))
        for part in config.token_range_retention_configs
    )
    return Retention(ranges, config.decode_retention_priority, milliseconds(config.decode_duration_ms))
