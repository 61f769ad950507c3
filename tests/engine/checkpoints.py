"""Small random Llama checkpoints, written by transformers, and what transformers answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 199

SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "one key head, untied": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "every head its own keys": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "wide heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 40},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "rope scaled llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "rope scaled linearly": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
}


def random_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        # Wide enough that the next token is never a near tie, which rounding could turn.
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    # transformers is only partly typed
    model: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig(**(settings | changes)))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save(model: LlamaForCausalLM, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory


@torch.inference_mode()
def greedy_choices(model: LlamaForCausalLM, prompt_ids: list[int], answer: list[int]) -> list[int]:
    """What transformers finds likeliest after the prompt and after each token of the answer but the last.

    If that is the answer itself, then the answer is transformers' own greedy continuation of the prompt.
    """
    logits = model(torch.tensor([prompt_ids + answer[:-1]]), use_cache=False).logits
    choices: list[int] = logits[0, len(prompt_ids) - 1 :].argmax(-1).tolist()
    return choices
