"""The runtimes that there are, in the order in which `auto` takes them."""

from __future__ import annotations

from math import prod

from python_backend.engine.report import LoadingProgress
from python_backend.engine.runtimes.declaration import Capabilities, Facts, RuntimeDeclaration
from python_backend.engine.runtimes.runtime import Runtime
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.runtime_environments import OLDEST

# The families of `engine/models`, which needs more packages than the Python of another runtime has.
OWN_ARCHITECTURES = (
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "Mistral3ForConditionalGeneration",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
)
_NO_MODEL = Capabilities(
    architectures="any: no model is computed",
    formats=("any",),
    devices=("cpu",),
    precisions=("any",),
    kv_precisions=("any",),
    quantized_checkpoints=True,
    guides=False,
    log_probs=False,
    context_logits=False,
    generation_logits=False,
    live_step_budget=True,
)


def _load_engine(parameters: EngineParameters, progress: LoadingProgress) -> Runtime:
    from python_backend.engine.runtimes.own import load_engine

    return load_engine(parameters, progress)


def _load_vllm(parameters: EngineParameters, progress: LoadingProgress) -> Runtime:
    from python_backend.engine.runtimes.vllm.load import load_vllm

    return load_vllm(parameters, VLLM.capabilities, progress)


def _load_llm(parameters: EngineParameters, progress: LoadingProgress) -> Runtime:
    from python_backend.engine.runtimes.trtllm.load import load_llm

    return load_llm(parameters, TENSORRT_LLM.capabilities, progress)


def _load_synthetic(parameters: EngineParameters, progress: LoadingProgress) -> Runtime:
    from python_backend.engine.runtimes.synthetic import SyntheticRuntime

    return SyntheticRuntime(parameters, SYNTHETIC.capabilities)


def _load_paced(parameters: EngineParameters, progress: LoadingProgress) -> Runtime:
    from python_backend.engine.runtimes.paced import load_paced

    return load_paced(parameters)


def _missing_for_one_gpu(parameters: EngineParameters) -> str | None:
    """What those refuse that compute on one GPU with no package's options."""
    for key, size in parameters.parallel_sizes.items():
        if size > 1:
            return f"{key} is {size}, but this runtime computes in one process"
    if len(parameters.gpu_device_ids) > 1:
        return f"gpu_device_ids names {len(parameters.gpu_device_ids)} GPUs, but this runtime computes on one"
    if parameters.enable_expert_parallel:
        return "enable_expert_parallel is true, but this runtime computes in one process"
    if parameters.inflight_runtime_options:
        return "inflight_runtime_options are only for vLLM and TensorRT-LLM"
    return None


def _missing_for_engine(parameters: EngineParameters, facts: Facts) -> str | None:
    model = facts.model
    if (missing := _missing_for_one_gpu(parameters)) or not model.is_known:
        return missing
    if model.unreadable is not None:
        return f"{parameters.gpt_model_path} cannot be read: {model.unreadable}"
    if model.architectures and not set(OWN_ARCHITECTURES) & set(model.architectures):
        named, known = " or ".join(model.architectures), ", ".join(OWN_ARCHITECTURES)
        of = f"{parameters.gpt_model_path} is a {named}"
        return f"{of}, which this engine does not support; supported: {known}"
    return None


def _missing_for_nothing(parameters: EngineParameters, facts: Facts) -> str | None:
    return _missing_for_one_gpu(parameters)


def _missing_package(parameters: EngineParameters, facts: Facts, of: RuntimeDeclaration) -> str | None:
    """What keeps a package with an environment of its own from computing, whatever GPU there is."""
    there = facts.environments.get(of.name)
    if there is None:
        return f"{of.title} is not installed here; {of.install}"
    if of.oldest and there.version < of.oldest:
        oldest = ".".join(map(str, of.oldest))
        return f"{there.package} is {there.version_text}; {oldest} or newer is needed"
    if parameters.inflight_device not in ("auto", there.device):
        return (
            f"inflight_device is {parameters.inflight_device!r}; {there.package} {there.version_text} "
            f"computes on {_ON[there.device]}"
        )
    if facts.model.is_known and facts.model.format not in of.capabilities.formats:
        return (
            f"{parameters.gpt_model_path} is not a Hugging Face checkpoint, the only kind that {of.title} "
            "reads here; inflight_runtime = engine reads .gguf files too"
        )
    if parameters.inflight_precision not in ("auto", *of.capabilities.precisions):
        allowed = ", ".join(("auto", *of.capabilities.precisions))
        return f"inflight_precision is {parameters.inflight_precision!r}; {of.title} supports {allowed}"
    if (kept_as := parameters.inflight_kv_precision) not in of.capabilities.kv_precisions:
        allowed = ", ".join(of.capabilities.kv_precisions)
        return f"inflight_kv_precision is {kept_as!r}; {of.title} supports {allowed}"
    return None


_ON = {"cpu": "the CPU", "cuda": "NVIDIA GPUs"}


def _missing_for_vllm(parameters: EngineParameters, facts: Facts) -> str | None:
    missing = _missing_package(parameters, facts, VLLM)
    if missing is not None or facts.environments[VLLM.name].device == "cpu":
        return missing
    if not facts.gpus:
        return "no NVIDIA GPU is visible to this process; the installed build of vLLM needs one"
    wanted = prod(parameters.parallel_sizes.values())
    is_spread = "distributed_executor_backend" in parameters.inflight_runtime_options  # over machines, say
    if wanted > len(facts.gpus) and not is_spread:
        asked = ", ".join(f"{key} {size}" for key, size in parameters.parallel_sizes.items() if size > 1)
        return f"{asked} needs {wanted} GPUs, but this process sees {len(facts.gpus)}"
    return None


def _missing_for_llm(parameters: EngineParameters, facts: Facts) -> str | None:
    missing = _missing_package(parameters, facts, TENSORRT_LLM)
    if missing is None and parameters.data_parallel_size > 1:
        return "data_parallel_size is set; for copies of a model with TensorRT-LLM set triton_servers"
    return missing


ENGINE = RuntimeDeclaration(
    "engine",
    "this project's engine",
    Capabilities(
        architectures=", ".join(OWN_ARCHITECTURES),
        formats=("safetensors", "gguf"),
        devices=("cpu", "cuda"),
        precisions=("fp32", "bf16", "fp8", "int8", "int4"),
        kv_precisions=("auto", "fp8"),
        quantized_checkpoints=True,
        adapters=True,
        tenants_weights=True,
        shared_prefixes=True,
        live_step_budget=True,
    ),
    _missing_for_engine,
    _load_engine,
)
VLLM = RuntimeDeclaration(
    "vllm",
    "vLLM",
    Capabilities(
        architectures="those of vLLM's registry",
        formats=("safetensors",),
        devices=("cpu", "cuda"),
        precisions=("fp32", "bf16", "fp8"),
        kv_precisions=("auto", "fp8"),
        quantized_checkpoints=True,
        several_gpus=True,
        adapters=True,
        images=True,
        prefill_and_decode_apart=True,
        context_logits=False,
        generation_logits=False,
        top_p_decay=False,
        retention=False,
        tiers="vLLM's priorities",
    ),
    _missing_for_vllm,
    _load_vllm,
    oldest=OLDEST["vllm"],
    install="install it with inflight runtime install vllm",
)
TENSORRT_LLM = RuntimeDeclaration(
    "llm",
    "TensorRT-LLM",
    Capabilities(
        architectures="those of TensorRT-LLM's PyTorch backend",
        formats=("safetensors",),
        devices=("cuda",),
        precisions=("fp32", "bf16"),
        quantized_checkpoints=True,
        several_gpus=True,
        bad_words_of_several_tokens=False,
        top_p_decay=False,
        tiers="the order in which requests start",
    ),
    _missing_for_llm,
    _load_llm,
    oldest=OLDEST["llm"],
    install="NVIDIA's image has it; inflight runtime use llm --python selects another Python that has it",
)
SYNTHETIC = RuntimeDeclaration("synthetic", "synthetic", _NO_MODEL, _missing_for_nothing, _load_synthetic)
PACED = RuntimeDeclaration("paced", "paced", _NO_MODEL, _missing_for_nothing, _load_paced)

BY_NAME = {each.name: each for each in (ENGINE, VLLM, TENSORRT_LLM, SYNTHETIC, PACED)}
AUTO = (ENGINE, VLLM, TENSORRT_LLM)
