"""Llama and the models that share its architecture (SmolLM2, TinyLlama, Llama 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import embedding, silu

from python_backend.engine.kv_cache import KvShape
from python_backend.engine.linear import Linear, packing_pays
from python_backend.engine.loader import unusable
from python_backend.engine.models import rope
from python_backend.engine.models.model import ModelLimits
from python_backend.engine.models.norm import RmsNorm
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.engine.attention import StepAttention
    from python_backend.engine.loader import Checkpoint


@dataclass(frozen=True, slots=True)
class LlamaShape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    is_tied: bool
    has_attention_bias: bool
    has_mlp_bias: bool

    @classmethod
    def of(cls, config: dict[str, Any]) -> LlamaShape:
        _refuse_unsupported(config)
        try:
            heads = config["num_attention_heads"]
            return cls(
                layers=config["num_hidden_layers"],
                hidden=config["hidden_size"],
                intermediate=config["intermediate_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                vocabulary=config["vocab_size"],
                max_positions=config["max_position_embeddings"],
                norm_epsilon=config.get("rms_norm_eps", 1e-6),
                is_tied=config.get("tie_word_embeddings", False),
                has_attention_bias=config.get("attention_bias", False),
                has_mlp_bias=config.get("mlp_bias", False),
            )
        except KeyError as error:
            raise unusable(f"config.json lacks {error.args[0]}") from error


def _refuse_unsupported(config: dict[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InflightError(ErrorKind.UNSUPPORTED, f"hidden_act is {activation!r}; this engine knows silu")
    if config.get("quantization_config"):
        raise InflightError(
            ErrorKind.UNSUPPORTED, "quantization_config is set; this engine loads unquantized weights"
        )


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    attention_norm: RmsNorm
    qkv: Linear
    attention_out: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


class Llama:
    def __init__(
        self,
        shape: LlamaShape,
        inverse_frequencies: torch.Tensor,
        embeddings: torch.Tensor,
        layers: list[LlamaLayer],
        final_norm: RmsNorm,
        head: Linear,
    ) -> None:
        self.limits = ModelLimits(
            vocabulary=shape.vocabulary,
            max_positions=shape.max_positions,
            query_heads=shape.heads,
            kv=KvShape(shape.layers, shape.kv_heads, shape.head_dim),
        )
        self._shape = shape
        self._inverse_frequencies = inverse_frequencies
        self._embeddings = embeddings
        self._layers = layers
        self._final_norm = final_norm
        self._head = head

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        wanted_rows: torch.Tensor,
    ) -> torch.Tensor:
        hidden = embedding(token_ids, self._embeddings)
        factors = rope.rotation(self._inverse_frequencies, positions)
        for index, layer in enumerate(self._layers):
            hidden += self._attend(layer, index, hidden, factors, attention)
            hidden += self._mlp(layer, hidden)
        return self._head(self._final_norm(hidden[wanted_rows]))

    def _attend(
        self,
        layer: LlamaLayer,
        index: int,
        hidden: torch.Tensor,
        factors: torch.Tensor,
        attention: StepAttention,
    ) -> torch.Tensor:
        shape = self._shape
        qkv = layer.qkv(layer.attention_norm(hidden))
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        rope.rotate_(heads[:, : shape.heads + shape.kv_heads], factors)
        keys_values = qkv[:, shape.heads * shape.head_dim :]
        return layer.attention_out(attention(index, heads[:, : shape.heads], keys_values))

    def _mlp(self, layer: LlamaLayer, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
        return layer.down(silu(gate).mul_(up))


class _Weights:
    """Takes a Llama's tensors out of a checkpoint, fused the way `LlamaLayer` wants them."""

    def __init__(self, checkpoint: Checkpoint, shape: LlamaShape) -> None:
        self.tensor = checkpoint.tensor
        self._shape = shape
        self._pack = packing_pays(checkpoint.weight_bytes)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return Linear(weight, bias, pack=self._pack)

    def norm(self, name: str) -> RmsNorm:
        return RmsNorm(self.tensor(f"{name}.weight", self._shape.hidden), self._shape.norm_epsilon)

    def layer(self, index: int) -> LlamaLayer:
        shape, prefix = self._shape, f"model.layers.{index}"
        attended = shape.heads * shape.head_dim
        return LlamaLayer(
            attention_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._fused(self._qkv_rows, f"{prefix}.self_attn", shape.has_attention_bias),
            attention_out=self._plain(f"{prefix}.self_attn.o_proj", attended, shape.has_attention_bias),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm"),
            gate_up=self._fused(self._gate_up_rows, f"{prefix}.mlp", shape.has_mlp_bias),
            down=self._plain(f"{prefix}.mlp.down_proj", shape.intermediate, shape.has_mlp_bias),
        )

    def _plain(self, name: str, columns: int, has_bias: bool) -> Linear:
        hidden = self._shape.hidden
        bias = self.tensor(f"{name}.bias", hidden) if has_bias else None
        return self.linear(self.tensor(f"{name}.weight", hidden, columns), bias)

    def _fused(self, rows: Callable[..., torch.Tensor], prefix: str, has_bias: bool) -> Linear:
        weight = rows(prefix, "weight", self._shape.hidden)
        return self.linear(weight, rows(prefix, "bias") if has_bias else None)

    def _qkv_rows(self, prefix: str, kind: str, *columns: int) -> torch.Tensor:
        heads, kv_heads, head_dim = self._shape.heads, self._shape.kv_heads, self._shape.head_dim
        q = self.tensor(f"{prefix}.q_proj.{kind}", heads * head_dim, *columns)
        k = self.tensor(f"{prefix}.k_proj.{kind}", kv_heads * head_dim, *columns)
        v = self.tensor(f"{prefix}.v_proj.{kind}", kv_heads * head_dim, *columns)
        return torch.cat((rope.pair_up(q, heads), rope.pair_up(k, kv_heads), v))

    def _gate_up_rows(self, prefix: str, kind: str, *columns: int) -> torch.Tensor:
        names = (f"{prefix}.gate_proj.{kind}", f"{prefix}.up_proj.{kind}")
        return torch.cat([self.tensor(name, self._shape.intermediate, *columns) for name in names])


def load_llama(checkpoint: Checkpoint) -> Llama:
    shape = LlamaShape.of(checkpoint.config)
    weights = _Weights(checkpoint, shape)
    vocabulary = (shape.vocabulary, shape.hidden)
    embeddings = weights.tensor("model.embed_tokens.weight", *vocabulary)
    return Llama(
        shape,
        rope.inverse_frequencies(checkpoint.config, shape.head_dim),
        embeddings,
        [weights.layer(index) for index in range(shape.layers)],
        weights.norm("model.norm"),
        weights.linear(embeddings if shape.is_tied else weights.tensor("lm_head.weight", *vocabulary)),
    )
