"""A checkpoint directory of the Llama-3.1-8B shape: config.json and a tokenizer, no weights."""

from __future__ import annotations

from pathlib import Path

from benchmarks.text_checkpoint import llama_config, write_config_and_tokenizer

CONFIG = {
    **llama_config(32, 4096, 14336, 32, 8, 128256),
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}

# Parameters of our engine. What random weights repeat is not what a model would: nothing is guessed by it.
RANDOM_WEIGHTS = {"inflight_weights": "random", "inflight_speculation": "false"}


def write_checkpoint(directory: Path) -> Path:
    return write_config_and_tokenizer(directory, CONFIG)
