"""GGUF files of transformers' models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType

Array = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
_SCALINGS = {"linear": RopeScalingType.LINEAR, "yarn": RopeScalingType.YARN}
# Layers as wide as the blocks of a quantization ask for.
QUANTIZABLE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def round_weights(model: Any, kind: GGMLQuantizationType) -> None:
    """Gives the model's matrices the values that a file of this kind can hold."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(stored, kind))))


def write_gguf(model: Any, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F32) -> Path:
    architecture = ARCHITECTURES[model.config.model_type]
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_fields(writer, model.config.to_dict())
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, values in _tensors(model).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        is_matrix = values.ndim > 1
        raw = gguf.quants.quantize(values, kind) if is_matrix else values
        writer.add_tensor(stored, raw, raw_dtype=kind if is_matrix else GGMLQuantizationType.F32)
    _add_rope_factors(writer, model.config.to_dict())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_fields(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    ropes = config["rope_parameters"]
    rope = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1)))
    if rope["rope_type"] in _SCALINGS:
        writer.add_rope_scaling_type(_SCALINGS[rope["rope_type"]])
        writer.add_rope_scaling_factor(rope["factor"])
    if original := rope.get("original_max_position_embeddings"):
        writer.add_rope_scaling_orig_ctx_len(original)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("num_local_experts"):
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _tensors(model: Any) -> dict[str, Array]:
    config = model.config
    found: dict[str, Array] = {}
    for name, parameter in model.named_parameters():
        values: Array = parameter.detach().numpy()
        if config.model_type.startswith("gemma") and "norm" in name:
            values = values + 1
        if ARCHITECTURES[config.model_type] in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3):
            if ".q_proj." in name:
                values = permute(values, config.num_attention_heads)
            elif ".k_proj." in name:
                values = permute(values, config.num_key_value_heads)
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            gate, up = np.split(values, 2, axis=1)
            found |= {f"{prefix}gate_proj.weight": gate, f"{prefix}up_proj.weight": up}
        else:
            found[name + ".weight" * name.endswith("experts.down_proj")] = values
    return {_older(name, config.model_type): values for name, values in found.items()}


def _older(name: str, model_type: str) -> str:
    """The names by which llama.cpp knows Mixtral's experts."""
    if model_type != "mixtral":
        return name
    for newer, older in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
        name = name.replace(f"mlp.experts.{newer}", f"layers.experts.{older}")
    return name.replace(".mlp.gate.", ".block_sparse_moe.gate.").replace(
        "layers.experts", "block_sparse_moe.experts"
    )


def _add_rope_factors(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def permute(weights: Array, heads: int) -> Array:
    """llama.cpp's `LlamaModel.permute`."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))
