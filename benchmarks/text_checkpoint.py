"""Checkpoint directories of text models that can be had anywhere: a tokenizer of words and random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.safetensors_file import random_fill, write_safetensors

# As Llama 2 has it: guides know what such tokens write.
_JOINS: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def word_tokenizer(
    vocabulary: Mapping[str, int],
    unknown: str,
    splits: Mapping[str, Any],
    joins: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A `tokenizer.json` in which each word is a token."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": splits,
        "post_processor": None,
        "decoder": joins,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    }


def write_config_and_tokenizer(directory: Path, config: Mapping[str, Any]) -> Path:
    """Every token of the vocabulary is a word of its own, so that each one is text in a stream."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    vocabulary = {f"▁w{index}": index for index in range(config["vocab_size"])}
    tokenizer = word_tokenizer(vocabulary, "▁w0", spaces, _JOINS)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}"})
    )
    return directory


def llama_config(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "head_dim": hidden // heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


SMOLLM2_135M = llama_config(30, 576, 1536, 9, 3, 49152)
# Answers in a millisecond: what a request costs is everything around the model.
TINY = llama_config(2, 64, 128, 4, 4, 8192)


def write_random_llama(directory: Path, config: Mapping[str, Any], *, gives_nan: bool = False) -> Path:
    write_config_and_tokenizer(directory, config)
    matrix = random_fill()

    def fill(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) > 1:
            return matrix(name, shape)
        is_broken = gives_nan and name == "model.norm.weight"
        return np.full(shape, np.nan if is_broken else 1.0, np.float32)

    write_safetensors(directory / "model.safetensors", _shapes(config), fill)
    return directory


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config["head_dim"] * config[f"num_{name}_heads"] for name in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        shapes |= {
            f"{of}self_attn.q_proj.weight": (queries, hidden),
            f"{of}self_attn.k_proj.weight": (keys, hidden),
            f"{of}self_attn.v_proj.weight": (keys, hidden),
            f"{of}self_attn.o_proj.weight": (hidden, queries),
            f"{of}mlp.gate_proj.weight": (wide, hidden),
            f"{of}mlp.up_proj.weight": (wide, hidden),
            f"{of}mlp.down_proj.weight": (hidden, wide),
            f"{of}input_layernorm.weight": (hidden,),
            f"{of}post_attention_layernorm.weight": (hidden,),
        }
    return shapes
