"""The conversion from GGUF, held against transformers' own reading of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer

from launcher.models.gguf_conversion import (
    ConversionError,
    convert,
    hugging_face_name,
    shortest_float32,
    undo_rope_permutation,
)
from launcher.models.gguf_tokenizer import TokenizerError, build_tokenizer
from tests.launcher.conftest import RecordedProgress
from tests.launcher.stand_ins.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, vocabulary, write_gguf

if TYPE_CHECKING:
    import numpy.typing as npt


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny GGUF file and, beside it, its checkpoint."""
    directory = tmp_path_factory.mktemp("tiny")
    write_gguf(directory / "tiny.gguf")
    (directory / "checkpoint").mkdir()
    convert(directory / "tiny.gguf", directory / "checkpoint", RecordedProgress())
    return directory


def test_weights_and_logits_equal_those_of_transformers_reading_the_gguf(converted: Path) -> None:
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils

    load_gguf_checkpoint: Any = modeling_gguf_pytorch_utils.load_gguf_checkpoint
    model: Any = AutoModelForCausalLM.from_pretrained(converted / "checkpoint")
    reference = load_gguf_checkpoint(str(converted / "tiny.gguf"), return_tensors=True, model_to_load=model)
    ours = model.state_dict()
    assert ours.keys() - reference["tensors"].keys() == {"lm_head.weight"}
    for name, weights in reference["tensors"].items():
        assert torch.equal(ours[name], torch.as_tensor(weights)), name
    for key in (
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "vocab_size",
        "tie_word_embeddings",
    ):
        assert getattr(model.config, key) == reference["config"][key]


def test_the_tokenizer_round_trips_and_knows_its_special_tokens(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "checkpoint" / "tokenizer.json"))
    for text in ("hello the world", "  two  spaces\n", "année 1234", "日本 👩‍👩‍👧", "don't"):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_start|>hello").tokens == ["<|im_start|>", "he", "llo"]
    assert tokenizer.encode("12").tokens == ["1", "2"], "each digit stands alone"
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""


def test_the_files_say_what_the_gguf_said(converted: Path) -> None:
    config = json.loads((converted / "checkpoint" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == len(vocabulary())
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    settings = json.loads((converted / "checkpoint" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == tuple(SPECIAL_TOKENS[1:])
    assert (converted / "checkpoint" / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    generation = json.loads((converted / "checkpoint" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_the_permutation_of_q_and_k_is_undone() -> None:
    def permute_as_llama_cpp_does(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
        rows, columns = weights.shape
        return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)

    weights = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    permuted = permute_as_llama_cpp_does(weights, heads=3)
    assert not np.array_equal(permuted, weights)
    assert np.array_equal(undo_rope_permutation(permuted, heads=3), weights)


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.0.attn_q.bias"])
def test_a_tensor_that_llama_does_not_have_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConversionError, match=name):
        hugging_face_name(name)


def test_another_architecture_is_refused(tmp_path: Path, progress: RecordedProgress) -> None:
    write_gguf(tmp_path / "other.gguf", architecture="qwen3")
    with pytest.raises(ConversionError, match="'qwen3' model; only 'llama'"):
        convert(tmp_path / "other.gguf", tmp_path, progress)


def test_another_tokenizer_is_refused(converted: Path) -> None:
    reader = GGUFReader(converted / "tiny.gguf")
    del reader.fields["tokenizer.ggml.pre"]
    with pytest.raises(TokenizerError, match=r"no field 'tokenizer\.ggml\.pre'"):
        build_tokenizer(reader, vocabulary())


def test_numbers_lose_the_noise_of_32_bits() -> None:
    assert shortest_float32(9.999999747378752e-06) == 1e-5
