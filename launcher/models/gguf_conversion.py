"""Turns a Llama-family GGUF file into a Hugging Face checkpoint directory (fp32 safetensors)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.numpy import save_file

from launcher.models.gguf_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from launcher.progress import Progress

    Weights = npt.NDArray[np.float32]

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.weight")


class ConversionError(Exception):
    """The GGUF file is not one this conversion understands."""


def convert(
    gguf_path: Path, into: Path, progress: Progress, sampling: Mapping[str, float] | None = None
) -> None:
    """Write every file of a Hugging Face checkpoint into the existing directory `into`."""
    with progress.stage("Reading the model file"):
        reader = GGUFReader(gguf_path)
    config = llama_config(reader)
    with progress.stage("Converting the weights", total_bytes=gguf_path.stat().st_size) as stage:
        weights: dict[str, Weights] = {}
        done_bytes = 0
        for tensor in reader.tensors:
            weights[hugging_face_name(tensor.name)] = hugging_face_weights(tensor, config)
            done_bytes += int(tensor.n_bytes)
            stage.advance_to(done_bytes)
    with progress.stage("Writing the checkpoint"):
        save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(reader, into)
        write_json(into / "config.json", config)
        generation = {key: value for key, value in config.items() if key.endswith("_token_id")}
        if sampling:
            generation |= {"do_sample": True, **sampling}
        write_json(into / "generation_config.json", generation)


def llama_config(reader: GGUFReader) -> dict[str, Any]:
    architecture = field(reader, "general.architecture")
    if architecture != "llama":
        raise ConversionError(f"the GGUF file holds a {architecture!r} model; only 'llama' can be converted")
    tensor_names = {tensor.name for tensor in reader.tensors}
    heads = field(reader, "llama.attention.head_count")
    hidden_size = field(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        "head_dim": hidden_size // heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "rms_norm_eps": shortest_float32(field(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": shortest_float32(field(reader, "llama.rope.freq_base")),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "torch_dtype": "float32",
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
    }


def field(reader: GGUFReader, name: str) -> Any:
    found = reader.get_field(name)
    if found is None:
        raise ConversionError(f"the GGUF file has no field {name!r}")
    return found.contents()


def shortest_float32(value: float) -> float:
    """1e-05 rather than 9.999999747378752e-06: the number that was written before it became 32 bits wide."""
    return float(str(np.float32(value)))


def hugging_face_name(gguf_name: str) -> str:
    if gguf_name in TOP_NAMES:
        return TOP_NAMES[gguf_name]
    match = LAYER_TENSOR.fullmatch(gguf_name)
    if match is None or match["part"] not in LAYER_NAMES:
        raise ConversionError(f"the GGUF file has a tensor that a Llama model does not have: {gguf_name!r}")
    return f"model.layers.{match['layer']}.{LAYER_NAMES[match['part']]}.weight"


def hugging_face_weights(tensor: ReaderTensor, config: dict[str, Any]) -> Weights:
    weights = dequantize(tensor.data, tensor.tensor_type)
    if ".attn_q." in tensor.name:
        weights = undo_rope_permutation(weights, config["num_attention_heads"])
    elif ".attn_k." in tensor.name:
        weights = undo_rope_permutation(weights, config["num_key_value_heads"])
    return np.ascontiguousarray(weights, dtype=np.float32)


def undo_rope_permutation(weights: Weights, heads: int) -> Weights:
    """GGUF keeps the two rows of each rotated pair of q and k together, Hugging Face half a head apart."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
