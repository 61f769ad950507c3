"""BERT and Qwen3 written plainly in torch, one operation after the other, for hosts without transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from python_backend.engine.checkpoint import Checkpoint

_UNSEEN = -1e9


class _Plain:
    def __init__(self, path: Path, device: str, dtype: torch.dtype) -> None:
        store = Checkpoint(path)
        self.config: dict[str, Any] = store.config
        self.device, self.dtype = device, dtype
        self._names = store
        self._tensors: dict[str, torch.Tensor] = {}

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self._tensors:
            self._tensors[name] = torch.from_numpy(self._names.tensor(name, *shape)).to(
                self.device, self.dtype
            )
        return self._tensors[name]

    def times(self, states: torch.Tensor, name: str, outputs: int, has_bias: bool) -> torch.Tensor:
        bias = self.tensor(f"{name}.bias", outputs) if has_bias else None
        return functional.linear(states, self.tensor(f"{name}.weight", outputs, states.shape[-1]), bias)


class PlainBert(_Plain):
    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        config, hidden = self.config, self.config["hidden_size"]
        heads, (rows, width) = config["num_attention_heads"], ids.shape
        words = self.tensor("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
        places = self.tensor(
            "embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden
        )
        types = self.tensor("embeddings.token_type_embeddings.weight", 2, hidden)
        states = self._norm(
            functional.embedding(ids, words) + places[:width] + types[0], "embeddings.LayerNorm"
        )
        bias = ((1 - mask) * _UNSEEN).to(self.dtype)[:, None, None, :]
        for layer in range(config["num_hidden_layers"]):
            of = f"encoder.layer.{layer}."
            queries, keys, values = (
                self.times(states, f"{of}attention.self.{part}", hidden, True)
                .view(rows, width, heads, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
            mixed = mixed.transpose(1, 2).reshape(rows, width, hidden)
            out = self.times(mixed, f"{of}attention.output.dense", hidden, True)
            states = self._norm(states + out, f"{of}attention.output.LayerNorm")
            up = functional.gelu(
                self.times(states, f"{of}intermediate.dense", config["intermediate_size"], True)
            )
            down = self.times(up, f"{of}output.dense", hidden, True)
            states = self._norm(states + down, f"{of}output.LayerNorm")
        return states

    def _norm(self, states: torch.Tensor, name: str) -> torch.Tensor:
        size = states.shape[-1]
        weight, bias = self.tensor(f"{name}.weight", size), self.tensor(f"{name}.bias", size)
        return functional.layer_norm(states, (size,), weight, bias, self.config["layer_norm_eps"])


class PlainQwen3(_Plain):
    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        config, hidden = self.config, self.config["hidden_size"]
        wide, width = config["intermediate_size"], ids.shape[1]
        states = functional.embedding(ids, self.tensor("embed_tokens.weight", config["vocab_size"], hidden))
        earlier = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril()
        seen = earlier[None] & mask[:, None, :].bool()
        bias = torch.zeros(seen.shape, dtype=self.dtype, device=ids.device).masked_fill(~seen, _UNSEEN)[
            :, None
        ]
        turns = self._turns(width)
        for layer in range(config["num_hidden_layers"]):
            of = f"layers.{layer}."
            normed = self._norm(states, f"{of}input_layernorm")
            states = states + self._attended(normed, f"{of}self_attn.", bias, turns)
            normed = self._norm(states, f"{of}post_attention_layernorm")
            gate = functional.silu(self.times(normed, f"{of}mlp.gate_proj", wide, False))
            active = gate * self.times(normed, f"{of}mlp.up_proj", wide, False)
            states = states + self.times(active, f"{of}mlp.down_proj", hidden, False)
        return self._norm(states, "norm")

    def _attended(
        self, states: torch.Tensor, of: str, bias: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        config, (rows, width, hidden) = self.config, states.shape
        heads, kv_heads, size = (
            config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        parts = {"q": heads, "k": kv_heads, "v": kv_heads}
        made = {
            part: self.times(states, f"{of}{part}_proj", count * size, False).view(rows, width, count, size)
            for part, count in parts.items()
        }
        for part in ("q", "k"):
            normed = self._norm(made[part], f"{of}{part}_norm")
            low, high = normed.chunk(2, dim=-1)
            made[part] = normed * turns[0] + torch.cat((-high, low), dim=-1) * turns[1]
        queries, keys, values = (made[part].transpose(1, 2) for part in "qkv")
        keys, values = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (keys, values))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return self.times(mixed.transpose(1, 2).reshape(rows, width, -1), f"{of}o_proj", hidden, False)

    def _norm(self, states: torch.Tensor, name: str) -> torch.Tensor:
        """As transformers has it: in fp32, and back."""
        exact = states.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return self.tensor(f"{name}.weight", states.shape[-1]) * exact.to(self.dtype)

    def _turns(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.config["head_dim"]
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=self.device) / size
        places = torch.arange(width, dtype=torch.float32, device=self.device)
        angles = places[:, None] / self.config["rope_theta"] ** powers
        both = torch.cat((angles, angles), dim=-1)[None, :, None, :]
        return both.cos().to(self.dtype), both.sin().to(self.dtype)
