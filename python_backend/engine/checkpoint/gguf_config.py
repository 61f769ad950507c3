"""A configuration in Hugging Face's naming, from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from python_backend.engine.checkpoint.gguf_names import GgufFamily
from python_backend.engine.checkpoint.grouped import Weights
from python_backend.engine.checkpoint.source import unusable
from python_backend.gguf.header import GgufHeader

_NEEDED = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# The sizes at which Google scaled queries by hidden / heads and not by the head: the file does not say.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}


def hugging_face_config(
    header: GgufHeader, family: GgufFamily, read: Callable[[str], Weights]
) -> dict[str, Any]:
    """`read` gives a tensor of the file by its GGUF name."""
    kind = header.fields["general.architecture"]
    fields = {
        name.removeprefix(f"{kind}."): _plain(name, value)
        for name, value in header.fields.items()
        if name.startswith(f"{kind}.")
    }
    if missing := [f"{kind}.{name}" for name in _NEEDED if name not in fields]:
        raise unusable(f"the GGUF file has no field {missing[0]}")
    config: dict[str, Any] = {"architectures": [family.architecture]}
    config |= {key: fields[name] for name, key in {**_NEEDED, **_OPTIONAL}.items() if name in fields}
    config |= {
        "vocab_size": _rows(header, "token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
    }
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if "rope.dimension_count" in fields:
        config["partial_rotary_factor"] = fields["rope.dimension_count"] / config["head_dim"]
    config["rope_scaling"] = _rope_scaling(fields, header, config, read)
    return config | _of_family(kind, config)


def _of_family(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the family's models have in common and the file does not say."""
    if kind in _GEMMA_27B_LAYERS:
        is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS[kind]
        by_hidden = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": by_hidden if is_27b else config["head_dim"]}
    if kind == "llama" and config.get("sliding_window"):
        return {"architectures": ["MistralForCausalLM"]}
    if kind == "qwen3moe":
        return {"norm_topk_prob": True}
    return {}


def _rope_scaling(
    fields: dict[str, Any], header: GgufHeader, config: dict[str, Any], read: Callable[[str], Weights]
) -> dict[str, Any] | None:
    if "rope_freqs.weight" in header.tensors:  # Llama 3's scaling, already worked out
        factors = read("rope_freqs.weight").tolist()
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
        }
    if "rope_factors_short.weight" in header.tensors:
        return {
            "rope_type": "longrope",
            "short_factor": read("rope_factors_short.weight").tolist(),
            "long_factor": read("rope_factors_long.weight").tolist(),
            "attention_factor": fields.get("rope.scaling.attn_factor"),
        }
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": fields.get("rope.scaling.factor"),
        "original_max_position_embeddings": config.get("original_max_position_embeddings"),
        "beta_fast": fields.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": fields.get("rope.scaling.yarn_beta_slow"),
    }


def _rows(header: GgufHeader, name: str) -> int:
    if name not in header.tensors:
        raise unusable(f"the GGUF file lacks tensor {name}")
    return header.tensors[name].shape[0]


def _plain(name: str, value: Any) -> Any:
    """One number for all layers, and 1e-05 rather than 9.999999747378752e-06: what was written is 32 bits."""
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise unusable(f"field {name} of the GGUF file differs from layer to layer")
        value = value[0]
    return float(str(np.float32(value))) if isinstance(value, float) else value
