"""A small random Llama checkpoint and what transformers makes of it: reference.py TOKENIZER_DIR TARGET_DIR.

Needs torch and transformers alone, so that it can run under another Python than the stack.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PROMPTS = ["The harbour was full of ships", "Once upon a time", "日本語の文章", "def add(a, b):"]
NEW_TOKENS = 32


def make_checkpoint(directory: Path, tokenizer_dir: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_dir / name, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    model: Any = LlamaForCausalLM
    model(config).to(torch.float32).save_pretrained(directory)


def greedy_texts(directory: Path) -> dict[str, str]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    texts = {}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        text = str(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
        texts[prompt] = text.rstrip("\ufffd")  # a character cut off at the end is never shown
    return texts


if __name__ == "__main__":
    tokenizer_dir, target_dir = Path(sys.argv[1]), Path(sys.argv[2])
    make_checkpoint(target_dir, tokenizer_dir)
    (target_dir / "greedy.json").write_text(json.dumps(greedy_texts(target_dir)))
