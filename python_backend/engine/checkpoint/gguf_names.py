"""How GGUF names what Hugging Face's checkpoints hold, family by family."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Factors of the rope: they are part of the configuration.
ROPE_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
_LAYER_TENSOR = re.compile(
    r"blk\.(?P<layer>\d+)\.(?P<part>\w+?)(?:\.(?P<expert>\d+))?\.(?P<kind>weight|bias)"
)

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PLAIN = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH = {
    **_ATTENTION,
    **_MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FUSED = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """`parts` and `experts` give Hugging Face's name for the parts of a layer.

    With `is_permuted`, the rows of q and k are stored in the order in which llama.cpp turns them.
    `norm_offset` is what was added to the weights of every norm.
    """

    architecture: str
    parts: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    is_permuted: bool = False
    norm_offset: float = 0.0

    def hugging_face_names(self, name: str, experts: int) -> Iterator[tuple[str, int | None]]:
        """The tensors that a stored one holds, each with its index when there is one for every expert."""
        if name in _TOP:
            yield _TOP[name], None
        if (match := _LAYER_TENSOR.fullmatch(name)) is None:
            return
        prefix, part, kind = f"model.layers.{match['layer']}", match["part"], match["kind"]
        if match["expert"] is not None:  # how Mixtral was stored before all experts shared a tensor
            if (whole := f"{part}_exps") in self.experts:
                yield f"{prefix}.{self.experts[whole].format(match['expert'])}.{kind}", None
        elif part in self.experts:
            for expert in range(experts):
                yield f"{prefix}.{self.experts[part].format(expert)}.{kind}", expert
        elif part in self.parts:
            yield f"{prefix}.{self.parts[part]}.{kind}", None


MIXTRAL = GgufFamily(
    "MixtralForCausalLM",
    {**_ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.gate"},
    {
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    },
    is_permuted=True,
)

# By `general.architecture`. Mistral is stored as a llama, and Mixtral as one with experts.
GGUF_FAMILIES = {
    "llama": GgufFamily("LlamaForCausalLM", _PLAIN, is_permuted=True),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", _PLAIN, is_permuted=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM", _PLAIN),
    "qwen3": GgufFamily("Qwen3ForCausalLM", {**_PLAIN, **_HEAD_NORMS}),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        {**_PLAIN, **_HEAD_NORMS, "ffn_gate_inp": "mlp.gate"},
        {
            "ffn_gate_exps": "mlp.experts.{}.gate_proj",
            "ffn_up_exps": "mlp.experts.{}.up_proj",
            "ffn_down_exps": "mlp.experts.{}.down_proj",
        },
    ),
    "gemma2": GgufFamily("Gemma2ForCausalLM", _SANDWICH, norm_offset=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", {**_SANDWICH, **_HEAD_NORMS}, norm_offset=1.0),
    "phi3": GgufFamily("Phi3ForCausalLM", _FUSED),
}
