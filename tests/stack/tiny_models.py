"""Checkpoints that answer in a millisecond: the default model's tokenizer before a few random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Weights = np.ndarray[Any, Any]

HIDDEN = 64
HEADS = 2  # of 32: vLLM has no kernels for smaller ones
VOCABULARY = 49152  # the tokenizer's
_OF_THE_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def write_tiny_model(
    directory: Path, tokenizer_from: Path, layers: int = 2, seed: int = 1, scale: float = 0.05
) -> Path:
    """A Llama that says the same nonsense for the same seed; more layers make it slower, and nothing else.

    The usual scale makes it repeat itself; with six times as much each token depends on all before.
    """
    directory.mkdir(parents=True)
    for name in _OF_THE_TOKENIZER:
        if (tokenizer_from / name).is_file():
            shutil.copy(tokenizer_from / name, directory / name)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file(_weights(layers, seed, scale), directory / "model.safetensors")
    return directory


def _weights(layers: int, seed: int, scale: float) -> dict[str, Weights]:
    chance = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Weights:
        return chance.normal(0, scale, (rows, columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": ones,
    }
    for layer in range(layers):
        of = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{of}self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            weights[f"{of}mlp.{name}.weight"] = matrix(2 * HIDDEN, HIDDEN)
        weights[f"{of}mlp.down_proj.weight"] = matrix(HIDDEN, 2 * HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{of}{name}.weight"] = ones
    return weights
