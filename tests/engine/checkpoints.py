"""Small random checkpoints of every family, written by transformers, and what it answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 199
POSITIONS = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
    # Wide enough that the next token is never a near tie, which rounding could turn.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    # The only attention of transformers that knows softcaps.
    "attn_implementation": "eager",
}
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "Gemma2": {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 9},
    "Gemma3": {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 9},
    "Qwen3": {"head_dim": 16},
    "Qwen3Moe": {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "SmolLM3": {"num_hidden_layers": 4},
    "Qwen2Moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 80,
    },
    "GptOss": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
        "swiglu_limit": 1.5,
    },
}
_CONFIGURATIONS = {"Gemma3": "Gemma3Text"}

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


def longrope(pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [2.0 + 0.5 * pair for pair in range(pairs)],
    }


# What is unusual about a checkpoint -> its family and the settings that make it so.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, grouped heads, tied": (
        "Llama",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "llama, one key head": ("Llama", {"num_key_value_heads": 1}),
    "llama, every head its own keys": ("Llama", {"num_key_value_heads": 4}),
    "llama, wide heads": ("Llama", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 40}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope scaled llama3": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama, rope scaled linearly": ("Llama", {"rope_parameters": _LINEAR}),
    "llama, rope scaled yarn": ("Llama", {"rope_parameters": _YARN}),
    "llama, rope scaled yarn with a given magnitude": (
        "Llama",
        {"rope_parameters": {**_YARN, "attention_factor": 1.3, "beta_fast": 8.0, "truncate": False}},
    ),
    "llama, rope scaled yarn with mscale": (
        "Llama",
        {"rope_parameters": {**_YARN, "mscale": 0.8, "mscale_all_dim": 0.4}},
    ),
    "llama, rope scaled dynamically": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "mistral, small window": ("Mistral", {"sliding_window": 7, "head_dim": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied, upper layers windowed": (
        "Qwen2",
        {
            "tie_word_embeddings": True,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 11,
            "max_window_layers": 1,
        },
    ),
    "qwen2, yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {}),
    "qwen3, tied, biases, one key head": (
        "Qwen3",
        {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 1},
    ),
    "smollm3": ("SmolLM3", {}),
    "smollm3, tied, layers without rope windowed": (
        "SmolLM3",
        {
            "tie_word_embeddings": True,
            "no_rope_layers": [1, 0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 10,
        },
    ),
    "gemma2": ("Gemma2", {"tie_word_embeddings": True}),
    "gemma2, untied, low softcaps": (
        "Gemma2",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "num_hidden_layers": 3},
    ),
    "gemma2, no softcaps": (
        "Gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "num_key_value_heads": 4},
    ),
    "gemma3": ("Gemma3", {"tie_word_embeddings": True, "num_hidden_layers": 7}),
    "gemma3, one key head, scaled rope of global layers": (
        "Gemma3",
        {
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 21}),
    "phi3, tied, part of the head turns": (
        "Phi3",
        {
            "tie_word_embeddings": True,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "phi3, longrope": (
        "Phi3",
        {"original_max_position_embeddings": 128, "rope_parameters": longrope(6)},
    ),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.4,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.35,
            "logits_scaling": 4.0,
        },
    ),
    "granite, tied, biases": (
        "Granite",
        {"residual_multiplier": 0.5, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "olmo2": ("Olmo2", {}),
    "gpt-oss": ("GptOss", {}),
    "qwen2 moe": ("Qwen2Moe", {}),
    "qwen2 moe, some layers dense, windowed": (
        "Qwen2Moe",
        {
            "norm_topk_prob": True,
            "num_hidden_layers": 4,
            "mlp_only_layers": [0],
            "shared_expert_intermediate_size": 64,
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    ),
    "mixtral": ("Mixtral", {}),
    "mixtral, windowed, tied": ("Mixtral", {"sliding_window": 8, "tie_word_embeddings": True}),
    "qwen3 moe": ("Qwen3Moe", {}),
    "qwen3 moe, shares made whole, some layers dense": (
        "Qwen3Moe",
        {"norm_topk_prob": True, "num_hidden_layers": 4, "mlp_only_layers": [0], "decoder_sparse_step": 2},
    ),
}


def random_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    settings = _COMMON | _OF_FAMILY.get(family, {}) | changes
    configuration: Any = getattr(transformers, f"{_CONFIGURATIONS.get(family, family)}Config")
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(configuration(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("experts", "mlp.gate.weight", "router", "sinks")):
                parameter.normal_(std=0.2)  # transformers leaves some of them empty
            elif name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    if limit := settings.get("swiglu_limit"):
        for module in model.modules():
            if hasattr(module, "limit"):
                module.limit = limit  # older transformers do not read it
    return model


def random_variant(name: str, **changes: Any) -> PreTrainedModel:
    family, settings = VARIANTS[name]
    return random_model(family, **settings | changes)


def random_llama(seed: int = 0, **changes: Any) -> Any:
    return random_model("Llama", seed, **changes)


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory


@torch.inference_mode()
def all_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary): what transformers makes of the token ids."""
    logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def greedy_choices(model: PreTrainedModel, prompt_ids: list[int], answer: list[int]) -> list[int]:
    """What transformers finds likeliest after the prompt and after each token of the answer but the last.

    If that is the answer itself, then the answer is transformers' own greedy continuation of the prompt.
    """
    logits = all_logits(model, prompt_ids + answer[:-1])
    choices: list[int] = logits[len(prompt_ids) - 1 :].argmax(-1).tolist()
    return choices
