"""A GGUF file is the same model as its safetensors twin."""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.checkpoint.gguf_file import undo_permutation
from python_backend.engine.checkpoint.gguf_groups import GROUPED_KINDS, grouped
from python_backend.engine.checkpoint.grouped import dense
from python_backend.engine.models import load_weights
from python_backend.gguf.header import read_header
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import VOCABULARY, all_logits, longrope, random_model, save
from tests.engine.gguf_files import QUANTIZABLE, permute, round_weights, write_gguf
from tests.engine.models.dense import dense_logits
from tests.tiers import examples

TOKENS = [random.Random(2).randrange(VOCABULARY) for _ in range(40)]
KINDS = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 9}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {}),
    "smollm3": ("SmolLM3", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"head_dim": 16}),
    "qwen3, tied": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3 moe": ("Qwen3Moe", {"norm_topk_prob": True}),
    "gemma2": ("Gemma2", {"tie_word_embeddings": True, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", {"tie_word_embeddings": True, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
    "phi3": ("Phi3", {}),
    "phi3, longrope": ("Phi3", {"original_max_position_embeddings": 64, "rope_parameters": longrope(8)}),
}


def make(name: str, **changes: Any) -> Any:
    family, settings = FAMILIES[name]
    return random_model(family, **(QUANTIZABLE | settings | changes))


def refusal(path: Path) -> InflightError:
    with pytest.raises(InflightError) as raised:
        load_weights(Checkpoint(path))
    return raised.value


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_files_logits_are_those_of_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    model = make(name)
    found = dense_logits(load_weights(Checkpoint(write_gguf(model, tmp_path / "model.gguf"))), TOKENS)
    expected = all_logits(model, TOKENS)
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama, tied", "qwen2", "qwen3, tied", "mixtral"])
def test_a_gguf_files_weights_are_those_of_its_safetensors_twin(
    name: str, kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    model = make(name)
    round_weights(model, kind)
    directory = save(model, tmp_path / "twin")
    ours = load_weights(Checkpoint(write_gguf(model, tmp_path / "model.gguf", kind)))
    twin = load_weights(Checkpoint(directory))
    assert (
        ours.shape.ropes[0].inverse_frequencies.tolist() == twin.shape.ropes[0].inverse_frequencies.tolist()
    )
    np.testing.assert_array_equal(ours.embeddings(), twin.embeddings())
    for index in range(ours.shape.layers):
        np.testing.assert_array_equal(dense(ours.layer(index).qkv), dense(twin.layer(index).qkv))
        our_norm, norm = ours.layer(index).mlp_norm, twin.layer(index).mlp_norm
        assert our_norm is not None
        assert norm is not None
        np.testing.assert_array_equal(our_norm, norm)
    assert torch.equal(dense_logits(ours, TOKENS), dense_logits(twin, TOKENS))


def test_llama3_scaling_comes_as_a_tensor_of_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    scaled = load_weights(Checkpoint(save(make("llama, tied", rope_parameters=scaling), tmp_path / "twin")))
    factors = (1e4 ** (-np.arange(0, 16, 2) / 16) / scaled.shape.ropes[0].inverse_frequencies).astype(
        np.float32
    )

    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("rope_freqs.weight", factors)
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = load_weights(Checkpoint(tmp_path / "model.gguf")).shape
    (rope,) = shape.ropes
    np.testing.assert_allclose(rope.inverse_frequencies, scaled.shape.ropes[0].inverse_frequencies, rtol=1e-6)
    assert (rope.magnitude, shape.max_positions, shape.kv_heads) == (1.0, 256, 4)


def test_every_byte_is_reported_once(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = write_gguf(make("mixtral"), tmp_path / "model.gguf", GGMLQuantizationType.Q8_0)
    dense_logits(load_weights(Checkpoint(path, progress=lambda *report: reports.append(report))), [1])
    assert reports == sorted(reports)
    done, total = reports[-1]
    assert done == total <= path.stat().st_size


def test_the_permutation_of_q_and_k_is_undone() -> None:
    weights = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    permuted = permute(weights, heads=3)
    assert not np.array_equal(permuted, weights)
    assert np.array_equal(undo_permutation(permuted, heads=3), weights)


def write_fields(path: Path, architecture: str, **fields: int) -> Path:
    writer = GGUFWriter(path, architecture)
    for name, value in fields.items():
        writer.add_uint32(name.replace("__", "."), value)
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_unsupported_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    error = refusal(write_fields(tmp_path / "model.gguf", "mamba"))
    assert error.kind is ErrorKind.UNSUPPORTED
    assert "a 'mamba' model, which this engine does not support in GGUF; supported: gemma2, " in error.message


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    error = refusal(write_fields(tmp_path / "model.gguf", "llama"))
    assert error.message == "the GGUF file has no field llama.embedding_length"


def test_a_split_gguf_file_is_refused(tmp_path: Path) -> None:
    error = refusal(write_fields(tmp_path / "model.gguf", "llama", split__count=3))
    assert "is one of 3 parts of a model" in error.message


def test_a_tensor_that_the_family_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    model = make("qwen3, tied")
    path = write_gguf(model, tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"qwen3", b"qwen2"))
    assert "a Qwen2ForCausalLM does not have: blk.0.attn_q_norm.weight" in refusal(path).message


@pytest.mark.parametrize(
    ("length", "reason"), [(3, "cannot be read as GGUF"), (400, "cannot be read as GGUF")]
)
def test_a_file_cut_short_within_its_header_is_refused(length: int, reason: str, tmp_path: Path) -> None:
    path = write_gguf(make("llama, tied"), tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:length])
    assert reason in refusal(path).message


def test_a_file_cut_short_within_its_weights_is_refused(tmp_path: Path) -> None:
    path = write_gguf(make("llama, tied"), tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:-4000])
    assert "fewer than its header promises" in refusal(path).message


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("a poem about llamas")
    assert "it does not begin with GGUF" in refusal(path).message


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_no_damage_to_the_header_breaks_reading(tiny: bytes, data: st.DataObject) -> None:
    """A damaged file is read, or refused with a sentence; nothing else is raised."""
    content = bytearray(tiny)
    for at in data.draw(st.lists(st.integers(0, 1500), min_size=1, max_size=3)):
        content[at] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(InflightError):
            read_header(Path(file.name))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(make("llama, tied"), tmp_path_factory.mktemp("tiny") / "model.gguf").read_bytes()


@pytest.mark.parametrize("kind", GROUPED_KINDS)
def test_blocks_of_levels_stand_for_what_ggufs_own_package_makes_of_them(kind: GGMLQuantizationType) -> None:
    """Random bytes are blocks, too, where their halfs are numbers."""
    values, octets = GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(int(kind)).integers(0, 256, (6, 2, octets)).astype(np.uint8)
    halfs = {2, 4} if kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K) else {2}
    for end in {octets} if kind is GGMLQuantizationType.Q6_K else halfs:
        stored[..., end - 1] = 0x20 + (stored[..., end - 1] & 7)
    rows = stored.reshape(6, -1)
    found = grouped(rows, kind)
    assert found.shape == (6, 2 * values)
    np.testing.assert_allclose(found.dequantized(), dequantize(rows, kind), rtol=1e-5, atol=1e-6)
