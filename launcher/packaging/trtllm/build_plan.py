"""The commands that make an engine of a checkpoint, with the programs of TensorRT-LLM 1.2."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOURCE = "https://github.com/NVIDIA/TensorRT-LLM"
# The folder of TensorRT-LLM's examples whose convert_checkpoint.py reads an architecture.
CONVERTERS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi",
    "Qwen2ForCausalLM": "qwen",
    "Qwen2MoeForCausalLM": "qwen",
    "Qwen3ForCausalLM": "qwen",
    "Qwen3MoeForCausalLM": "qwen",
}
DTYPES = ("auto", "float16", "bfloat16", "float32")


class BuildError(Exception):
    """Something that no engine can be built of; the message says what can."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What is built of what; `examples` is the folder of that name in TensorRT-LLM's source."""

    checkpoint: Path
    into: Path
    examples: Path
    dtype: str = "auto"
    gpus: int = 1
    max_batch_size: int = 256
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    gather_logits: bool = False

    @property
    def converted(self) -> Path:
        return self.into / "converted"

    @property
    def engine(self) -> Path:
        return self.into / "engine"


def converter_of(checkpoint: Path) -> str:
    """Which of the converters reads this checkpoint."""
    try:
        config: Mapping[str, object] = json.loads((checkpoint / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise BuildError(f"{checkpoint} is not a Hugging Face checkpoint: {error}") from error
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if name not in CONVERTERS:
        known = ", ".join(CONVERTERS)
        raise BuildError(f"{checkpoint} has the architecture {name}; engines can be built here for {known}")
    return CONVERTERS[str(name)]


def commands(plan: BuildPlan) -> list[list[str]]:
    """To be run one after the other where TensorRT-LLM is, on a GPU of the kind that will serve."""
    if plan.dtype not in DTYPES:
        raise BuildError(f"dtype is {plan.dtype!r}; allowed: {', '.join(DTYPES)}")
    script = plan.examples / "models" / "core" / converter_of(plan.checkpoint) / "convert_checkpoint.py"
    convert = ["python3", str(script), "--model_dir", str(plan.checkpoint)]
    convert += ["--output_dir", str(plan.converted), "--dtype", plan.dtype, "--tp_size", str(plan.gpus)]
    build = ["trtllm-build", "--checkpoint_dir", str(plan.converted), "--output_dir", str(plan.engine)]
    build += ["--gemm_plugin", "auto", "--kv_cache_type", "paged", "--remove_input_padding", "enable"]
    # What in-flight batching, the prefix cache and chunked prompts need of an engine.
    build += ["--use_paged_context_fmha", "enable", "--workers", str(plan.gpus)]
    build += ["--max_batch_size", str(plan.max_batch_size), "--max_num_tokens", str(plan.max_num_tokens)]
    build += ["--max_seq_len", str(plan.max_seq_len)] if plan.max_seq_len else []
    build += ["--gather_context_logits", "--gather_generation_logits"] if plan.gather_logits else []
    return [convert, build]
