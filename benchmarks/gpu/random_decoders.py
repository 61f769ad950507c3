"""Decoders of random weights in the shape of Qwen3-Embedding-0.6B, as an embedder and as a reranker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.safetensors_file import write_safetensors
from benchmarks.text_checkpoint import word_tokenizer

_LAYERS, _HIDDEN, _WIDE, _HEADS, _KV_HEADS, _HEAD_SIZE = 28, 1024, 3072, 16, 8, 128
_VOCABULARY = 16_384  # of 151,669: a table that is only looked up
_CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "num_hidden_layers": _LAYERS,
    "hidden_size": _HIDDEN,
    "intermediate_size": _WIDE,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_SIZE,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "num_labels": 1,
}


def write_random_embedder(directory: Path) -> Path:
    _write(directory, "Qwen3Model")
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": "" if kind == "Transformer" else f"1_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    return directory


def write_random_reranker(directory: Path) -> Path:
    _write(directory, "Qwen3ForSequenceClassification")
    return directory


def _write(directory: Path, architecture: str) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**_CONFIG, "architectures": [architecture]}))
    tokenizer = word_tokenizer({"a": 0, "[UNK]": 1}, "[UNK]", {"type": "WhitespaceSplit"})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    chance = np.random.default_rng(1)

    def fill(name: str, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        if "norm" in name:
            return np.ones(shape, np.float32)
        return chance.standard_normal(shape, np.float32) * np.float32(0.02)

    write_safetensors(directory / "model.safetensors", _shapes(), fill)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (_VOCABULARY, _HIDDEN)}
    parts = {
        "self_attn.q_proj": (_HEADS * _HEAD_SIZE, _HIDDEN),
        "self_attn.k_proj": (_KV_HEADS * _HEAD_SIZE, _HIDDEN),
        "self_attn.v_proj": (_KV_HEADS * _HEAD_SIZE, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_SIZE),
        "self_attn.q_norm": (_HEAD_SIZE,),
        "self_attn.k_norm": (_HEAD_SIZE,),
        "mlp.gate_proj": (_WIDE, _HIDDEN),
        "mlp.up_proj": (_WIDE, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, _WIDE),
        "input_layernorm": (_HIDDEN,),
        "post_attention_layernorm": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return {**shapes, "norm.weight": (_HIDDEN,), "score.weight": (1, _HIDDEN)}
