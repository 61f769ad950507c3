"""The families that are known, by the architecture's name in config.json."""

from __future__ import annotations

from python_backend.engine.models import dense_families, expert_families
from python_backend.engine.models.blueprint import Family

_GEMMA = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA3 = {**_GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
_QWEN = {"max_window_layers": 28, "sliding_window": 4096}

FAMILIES = {
    "LlamaForCausalLM": Family(dense_families.llama, "Llama 2 and 3, SmolLM2, TinyLlama"),
    "MistralForCausalLM": Family(dense_families.mistral, "sliding windows", {"sliding_window": 4096}),
    "Mistral3ForConditionalGeneration": Family(
        dense_families.mistral,
        "the text of Mistral Small 3.1 and 3.2, without the vision tower",
        {"sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 1e9, "head_dim": 128},
        text_type="mistral",
    ),
    "Qwen2ForCausalLM": Family(
        dense_families.qwen2, "biases on queries, keys and values; sliding windows from one layer on", _QWEN
    ),
    "Qwen3ForCausalLM": Family(dense_families.qwen3, "norms on queries and keys", {**_QWEN, "head_dim": 128}),
    "SmolLM3ForCausalLM": Family(
        dense_families.smollm3,
        "layers without RoPE",
        {"tie_word_embeddings": True, "no_rope_layer_interval": 4, "rope_theta": 2e6},
    ),
    "Gemma2ForCausalLM": Family(
        dense_families.gemma2,
        "softcaps, norms on both sides, alternating windows, scaled embeddings",
        {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "Gemma3ForCausalLM": Family(
        dense_families.gemma3, "local and global RoPE, five sliding-window layers to one full", _GEMMA3
    ),
    "Gemma3ForConditionalGeneration": Family(
        dense_families.gemma3,
        "the text of Gemma 3 from 4B on, without the vision tower",
        {
            **_GEMMA3,
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
        },
        text_type="gemma3_text",
    ),
    "Phi3ForCausalLM": Family(
        dense_families.phi3,
        "fused projections, longrope",
        {"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "GraniteForCausalLM": Family(
        dense_families.granite,
        "factors on embeddings, scores, residual and logits",
        {
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    "Olmo2ForCausalLM": Family(
        dense_families.olmo2,
        "norms only after attention and MLP, query norm over all heads",
        {"rms_norm_eps": 1e-5},
    ),
    "MixtralForCausalLM": Family(
        expert_families.mixtral,
        "experts",
        {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "Qwen2MoeForCausalLM": Family(
        expert_families.qwen2_moe,
        "experts, and a shared expert for every token",
        {
            **_QWEN,
            "decoder_sparse_step": 1,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
    ),
    "Qwen3MoeForCausalLM": Family(
        expert_families.qwen3_moe,
        "experts in all or some layers",
        {
            "sliding_window": 4096,
            "decoder_sparse_step": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "GptOssForCausalLM": Family(
        expert_families.gpt_oss,
        "attention sinks, experts in mxfp4 with biases, clamped activations",
        {
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
}
