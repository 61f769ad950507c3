"""The `parameters` of `tensorrt_llm`'s config.pbtxt: read, checked and named, as one frozen value.

Three kinds of keys: those this engine honours, those of the contract that steer NVIDIA's GPU runtime and
mean nothing here (accepted, so that one file serves both), and those that ask for something this engine
does not do (accepted at their neutral value, refused by name otherwise). An unfilled template placeholder
(`${name}`) and an empty string both mean "not given", as in the contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from python_backend.costs.step_cost import StepCost

from .errors import ErrorKind, InflightError
from .pools import BOTH, OF_SERVER, POOLS

INFLIGHT_BATCHING = ("inflight_fused_batching", "inflight_batching")
STATIC_BATCHING = ("V1", "v1")
SCHEDULER_POLICIES = ("guaranteed_no_evict", "max_utilization")
RUNTIMES = ("auto", "engine", "vllm", "llm", "synthetic", "paced")
# Those whose package checks itself what it is to compute with.
_JUDGE_THEMSELVES = ("vllm", "llm")
WEIGHTS = ("checkpoint", "random")
KV_CONNECTORS = ("auto", "nixl", "files")
# How weights can be kept, by the device that computes.
PRECISIONS = {"cpu": ("fp32", "int8", "int4"), "cuda": ("fp32", "bf16", "fp8")}
# How keys and values can be kept; `auto` is as exact as the device computes.
KV_PRECISIONS = {"cpu": ("auto",), "cuda": ("auto", "fp8")}
DEVICES = tuple(PRECISIONS)
# What the steps of the paced runtime take: invented, of the order of a GPU's.
PACED_COST = StepCost(base_ms=12, prefill_token_ms=0.12, decode_sequence_ms=0.25, kv_kilotoken_ms=0)


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What a device suggests for the settings that depend on it, or what the config says instead."""

    precision: str
    max_batch_size: int
    max_step_tokens: int
    tokens_per_block: int


def device_defaults(device: str) -> DeviceSettings:
    if device == "cuda":
        return DeviceSettings("bf16", max_batch_size=512, max_step_tokens=4096, tokens_per_block=64)
    return DeviceSettings("int8", max_batch_size=64, max_step_tokens=512, tokens_per_block=16)


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """What the engine is told by its config; each field is one key. Some defaults are up to the device."""

    gpt_model_type: str
    gpt_model_path: str
    batch_scheduler_policy: str = "guaranteed_no_evict"
    max_tokens_in_paged_kv_cache: int | None = None
    kv_cache_free_gpu_mem_fraction: float = 0.9
    kv_cache_host_memory_bytes: int = 0
    enable_kv_cache_reuse: bool = True
    exclude_input_in_output: bool = False
    cancellation_check_period_ms: int = 100
    stats_check_period_ms: int = 100
    gpu_device_ids: tuple[int, ...] = (0,)
    cuda_graph_mode: bool = True
    inflight_runtime: str = "auto"
    inflight_device: str = "auto"
    inflight_weights: str = "checkpoint"
    inflight_max_batch_size: int | None = None
    inflight_max_step_tokens: int | None = None
    inflight_max_sequence_tokens: int | None = None
    inflight_tokens_per_block: int | None = None
    inflight_threads: int | None = None
    inflight_check_blocks: bool = False
    tokenizer_dir: str = ""
    inflight_precision: str = "auto"
    inflight_kv_precision: str = "auto"
    inflight_packed_cache_dir: str | None = None
    inflight_tenant_cache_isolation: bool = True
    inflight_guide_compile_limit_s: float = 2.0
    inflight_synthetic_tokens_per_s: float = 1000.0
    inflight_paced_cost: StepCost = PACED_COST
    inflight_paced_noise: float = 0.0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    inflight_runtimes_dir: str | None = None
    inflight_runtime_options: dict[str, Any] = field(default_factory=dict)
    inflight_adapters_dir: str | None = None
    inflight_max_adapters: int | None = None
    inflight_max_adapter_rank: int = 64
    inflight_speculation: bool = True
    inflight_max_images: int = 16
    inflight_pool: str = BOTH
    inflight_kv_connector: str = "auto"
    inflight_kv_folder: str | None = None

    @property
    def gpu(self) -> int:
        """The one, or the first of several."""
        return self.gpu_device_ids[0]

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """By the names of the keys: how many processes share the model, or have one each."""
        return {
            "tensor_parallel_size": self.tensor_parallel_size,
            "pipeline_parallel_size": self.pipeline_parallel_size,
            "data_parallel_size": self.data_parallel_size,
        }

    @property
    def static_batching(self) -> bool:
        return self.gpt_model_type in STATIC_BATCHING

    @property
    def guaranteed_no_evict(self) -> bool:
        return self.batch_scheduler_policy == "guaranteed_no_evict"

    def on(self, device: str) -> DeviceSettings:
        """What holds on this device; refuses what it does not do."""
        default = device_defaults(device)
        if device == "cpu" and self.inflight_weights == "random":
            raise refusal("inflight_weights", "random", f"checkpoint ({self._why(device)})")
        if device == "cpu" and self.kv_cache_host_memory_bytes:
            allowed = f"0 ({self._why(device)}, where the KV cache is in host memory anyway)"
            raise refusal("kv_cache_host_memory_bytes", str(self.kv_cache_host_memory_bytes), allowed)
        precision = default.precision if self.inflight_precision == "auto" else self.inflight_precision
        if precision not in PRECISIONS[device]:
            allowed = ", ".join(("auto", *PRECISIONS[device]))
            raise refusal("inflight_precision", precision, f"{allowed} ({self._why(device)})")
        if self.inflight_kv_precision not in KV_PRECISIONS[device]:
            allowed = f"{', '.join(KV_PRECISIONS[device])} ({self._why(device)})"
            raise refusal("inflight_kv_precision", self.inflight_kv_precision, allowed)
        max_step_tokens = self.inflight_max_step_tokens or default.max_step_tokens
        chosen = DeviceSettings(
            precision,
            # A smaller step that the config asks for is not refused for a batch that it does not mention.
            self.inflight_max_batch_size or min(default.max_batch_size, max_step_tokens),
            max_step_tokens,
            self.inflight_tokens_per_block or default.tokens_per_block,
        )
        _require_room_for_the_batch(chosen)
        return chosen

    def _why(self, device: str) -> str:
        return where_it_computes(device, self.inflight_device)


def where_it_computes(device: str, asked: str) -> str:
    """Why something is not allowed: the config has chosen the device, or the machine has."""
    if asked == device:
        return f"inflight_device is {device}"
    return "this machine computes on {}".format("a GPU" if device == "cuda" else "the CPU")


# Tuning of NVIDIA's own runtime: nothing in this engine corresponds to them.
FOREIGN_KEYS = frozenset(
    {
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "inflight_epoch",
        "cross_kv_cache_fraction",
        "cuda_graph_cache_size",
        "enable_chunked_context",
        "enable_context_fmha_fp32_acc",
        "executor_worker_path",
        "gpu_weights_percent",
        "iter_stats_max_iterations",
        "kv_cache_onboard_blocks",
        "lora_cache_gpu_memory_fraction",
        "lora_cache_host_memory_bytes",
        "lora_cache_max_adapter_size",
        "lora_cache_optimal_adapter_size",
        "multi_block_mode",
        "normalize_log_probs",
        "num_nodes",
        "participant_ids",
        "recv_poll_period_ms",
        "request_stats_max_iterations",
        "speculative_decoding_fast_logits",
        "xgrammar_tokenizer_info_path",
    }
)

# Requests for what this engine does not do, with the values that ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[str, ...]] = {
    "decoding_mode": ("top_k", "top_p", "top_k_top_p"),
    "eagle_choices": (),
    "enable_trt_overlap": ("false", "False", "FALSE", "0"),
    "encoder_model_path": (),
    "guided_decoding_backend": ("xgrammar", "llguidance"),  # either is the engine's own
    "lookahead_ngram_size": (),
    "lookahead_verification_set_size": (),
    "lookahead_window_size": (),
    "lora_prefetch_dir": (),
    "max_attention_window_size": (),
    "max_beam_width": ("1",),
    "medusa_choices": (),
    "sink_token_length": (),
}


def refusal(key: str, value: str, allowed: str) -> InflightError:
    """Names the key, the value and what is allowed."""
    return InflightError(ErrorKind.INVALID_REQUEST, f"parameter {key} is {value!r}; allowed: {allowed}", key)


def parse_boolean(key: str, value: str) -> bool:
    if value in ("True", "true", "TRUE", "1"):
        return True
    if value in ("False", "false", "FALSE", "0"):
        return False
    raise refusal(key, value, "true or false")


def _positive(kind: type[int] | type[float]) -> Callable[[str, str], Any]:
    def parse(key: str, value: str) -> Any:
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise refusal(key, value, "a number above 0")
        return number

    return parse


def _bytes(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise refusal(key, value, "a number of bytes; 0 is none")
    return int(value)


def _fraction(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise refusal(key, value, "a number above 0, up to 1")
    return number


def _count(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise refusal(key, value, "a number, 0 or above")
    return int(value)


def _share(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise refusal(key, value, "a number from 0 to 1")
    return number


def _step_cost(key: str, value: str) -> StepCost:
    try:
        numbers = [float(each) for each in value.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(fields(StepCost)) or not all(0 <= each < float("inf") for each in numbers):
        names = ",".join(each.name for each in fields(StepCost))
        raise refusal(key, value, f"{names}, none below 0, such as 12,0.12,0.25,0")
    if numbers[0] == 0:
        raise refusal(key, value, "a base_ms above 0: each step takes time")
    return StepCost(*numbers)


def _gpus(key: str, value: str) -> tuple[int, ...]:
    """Several are for runtimes that compute on several."""
    numbers = [each.strip() for each in value.split(",")]
    if ";" in value:
        allowed = "the GPUs of one engine; triton_servers starts one engine for each GPU or group of GPUs"
        raise refusal(key, value, allowed)
    if not all(each.isascii() and each.isdigit() for each in numbers) or len(set(numbers)) < len(numbers):
        raise refusal(key, value, "the number of one GPU, or of several different ones, such as 0,1")
    return tuple(map(int, numbers))


def _options(key: str, value: str) -> dict[str, Any]:
    try:
        options = json.loads(value)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise refusal(key, value, 'a JSON object, such as {"max_num_partial_prefills": 2}')
    return options


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(key: str, value: str) -> str:
        if value not in allowed:
            raise refusal(key, value, ", ".join(allowed))
        return value

    return parse


def _text(key: str, value: str) -> str:
    return value


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "gpt_model_type": _one_of(*INFLIGHT_BATCHING, *STATIC_BATCHING),
    "gpt_model_path": _text,
    "batch_scheduler_policy": _one_of(*SCHEDULER_POLICIES),
    "max_tokens_in_paged_kv_cache": _positive(int),
    "kv_cache_free_gpu_mem_fraction": _fraction,
    "kv_cache_host_memory_bytes": _bytes,
    "enable_kv_cache_reuse": parse_boolean,
    "exclude_input_in_output": parse_boolean,
    "cancellation_check_period_ms": _positive(int),
    "stats_check_period_ms": _positive(int),
    "gpu_device_ids": _gpus,
    "cuda_graph_mode": parse_boolean,
    "inflight_runtime": _one_of(*RUNTIMES),
    "inflight_device": _one_of("auto", *DEVICES),
    "inflight_weights": _one_of(*WEIGHTS),
    "inflight_max_batch_size": _positive(int),
    "inflight_max_step_tokens": _positive(int),
    "inflight_max_sequence_tokens": _positive(int),
    "inflight_tokens_per_block": _positive(int),
    "inflight_threads": _positive(int),
    "inflight_check_blocks": parse_boolean,
    "tokenizer_dir": _text,
    "inflight_precision": _one_of("auto", *dict.fromkeys(sum(PRECISIONS.values(), ()))),
    "inflight_kv_precision": _one_of(*KV_PRECISIONS["cuda"]),
    "inflight_packed_cache_dir": _text,
    "inflight_tenant_cache_isolation": parse_boolean,
    "inflight_guide_compile_limit_s": _positive(float),
    "inflight_synthetic_tokens_per_s": _positive(float),
    "inflight_paced_cost": _step_cost,
    "inflight_paced_noise": _share,
    "tensor_parallel_size": _positive(int),
    "pipeline_parallel_size": _positive(int),
    "data_parallel_size": _positive(int),
    "enable_expert_parallel": parse_boolean,
    "inflight_runtimes_dir": _text,
    "inflight_runtime_options": _options,
    "inflight_adapters_dir": _text,
    "inflight_max_adapters": _count,
    "inflight_max_adapter_rank": _positive(int),
    "inflight_speculation": parse_boolean,
    "inflight_max_images": _count,
    "inflight_pool": _one_of(*POOLS),
    "inflight_kv_connector": _one_of(*KV_CONNECTORS),
    "inflight_kv_folder": _text,
}
KNOWN_KEYS = frozenset(_PARSERS) | FOREIGN_KEYS | frozenset(NEUTRAL_VALUES)


def read_boolean(raw: Mapping[str, str], key: str, default: bool) -> bool:
    """One yes-or-no parameter of a model other than the engine."""
    return parse_boolean(key, raw[key]) if _is_given(raw.get(key, "")) else default


def _is_given(value: str) -> bool:
    return bool(value) and not (value.startswith("${") and value.endswith("}"))


def parse_engine_parameters(raw: Mapping[str, str]) -> EngineParameters:
    """The parameters of one config; refuses, naming key, value and what is allowed."""
    given = {key: value for key, value in raw.items() if _is_given(value)}
    if unknown := sorted(given.keys() - KNOWN_KEYS):
        raise InflightError(
            ErrorKind.INVALID_REQUEST,
            f"unknown parameter {unknown[0]}; known: {', '.join(sorted(KNOWN_KEYS))}",
            unknown[0],
        )
    for key, neutral in NEUTRAL_VALUES.items():
        if key in given and given[key] not in neutral:
            allowed = " or ".join(("unset", *neutral))
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"parameter {key} is {given[key]!r}, which this engine does not support; allowed: {allowed}",
                key,
            )
    for key in ("gpt_model_type", "gpt_model_path"):
        if key not in given:
            raise refusal(key, raw.get(key, ""), "it must be set")
    values = {key: parse(key, given[key]) for key, parse in _PARSERS.items() if key in given}
    parameters = EngineParameters(**values)
    _refuse_what_no_device_does(parameters)
    return parameters


def on_server(raw: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The same parameters with what the server says for all its models, where they say nothing themselves."""
    said = {key: environment.get(variable, "") for key, variable in OF_SERVER.items()}
    given = {key: value for key, value in raw.items() if key not in said or _is_given(value)}
    return {**{key: value for key, value in said.items() if value}, **given}


def _refuse_what_no_device_does(parameters: EngineParameters) -> None:
    """Where the engine is to choose the device, what one of them takes may pass: it is asked again then."""
    if parameters.inflight_runtime in _JUDGE_THEMSELVES:
        return
    possible = DEVICES if parameters.inflight_device == "auto" else (parameters.inflight_device,)
    refusals = []
    for device in possible:
        try:
            replace(parameters, inflight_device=device).on(device)
        except InflightError as error:
            refusals.append(error)
    if len(refusals) == len(possible):
        raise refusals[0]


def _require_room_for_the_batch(chosen: DeviceSettings) -> None:
    """Every sequence of the batch gets at least a token of a step."""
    step, batch = chosen.max_step_tokens, chosen.max_batch_size
    if step < batch:
        raise refusal("inflight_max_step_tokens", str(step), f"inflight_max_batch_size ({batch}) or more")


assert {each.name for each in fields(EngineParameters)} == set(_PARSERS)
