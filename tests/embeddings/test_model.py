"""The encoder's vectors against those of transformers and of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backend.embeddings.description import read_description
from python_backend.embeddings.model import EmbeddingModel, shortened, to_unit_length
from python_backend.wire.errors import InflightError
from tests.embeddings.checkpoints import embed
from tests.embeddings.published import PUBLISHED

THOUSAND_WORDS = " ".join(f"word{number} and others" for number in range(334))
TEXTS = (
    "",
    " ",
    "a",
    "This is an example sentence",
    "UPPER, lower and Ünïcödé: the accents go, and so does the case.",
    "日本語のテキスト 中文 한국어 हिन्दी ไทย",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "👩‍👩‍👧‍👦 🇫🇷 😀😀\n\ttabs  and   spaces\u200b\x00",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 4,
    "[CLS] special [SEP] tokens [MASK] in a text [PAD]",
    "The quick brown fox jumps over the lazy dog. " * 9,
    "Supercalifragilisticexpialidocious " * 40,
    THOUSAND_WORDS,
)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    """sentence-transformers' own steps: tokenize with a cut at 256, encode with a mask, mean, L2 norm."""
    from transformers import AutoTokenizer, BertModel

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    bert: Any = BertModel.from_pretrained(checkpoint, attn_implementation="eager")
    bert.eval()

    def encode(texts: Sequence[str]) -> tuple[Any, list[int]]:
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
        mask = batch["attention_mask"]
        with torch.no_grad():
            states = bert(batch["input_ids"], mask, batch["token_type_ids"]).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled).numpy(), mask.sum(1).tolist()

    return encode


@pytest.fixture(scope="module")
def vectors(model: EmbeddingModel) -> Any:
    """Those of all texts, in one batch."""
    return model.embed(model.word_pieces.encode(TEXTS))


def test_vectors_and_tokens_are_those_of_sentence_transformers(
    model: EmbeddingModel, reference: Any, vectors: Any
) -> None:
    expected, tokens = reference(TEXTS)
    ids = model.word_pieces.encode(TEXTS)
    assert [len(row) for row in ids] == tokens
    assert tokens[0] == 2
    assert tokens[-1] == 256
    assert np.abs(vectors - expected).max() < 1e-5


def test_vectors_are_the_published_ones(model: EmbeddingModel) -> None:
    for vector, beginning in zip(embed(model, *PUBLISHED), PUBLISHED.values(), strict=True):
        assert vector[:3] == pytest.approx(beginning, abs=1e-6)


def test_a_text_has_the_same_vector_in_any_batch(model: EmbeddingModel, vectors: Any) -> None:
    alone = np.array([embed(model, text)[0] for text in TEXTS])
    assert np.abs(vectors - alone).max() < 1e-6


def test_texts_of_like_meaning_are_near(model: EmbeddingModel) -> None:
    question, answer, other = np.array(
        embed(model, "How do I reset my password?", "I forgot my login secret", "The cake needs an oven")
    )
    assert question @ answer > question @ other + 0.3


def test_no_text_gives_no_vector(model: EmbeddingModel) -> None:
    assert model.embed([]).shape == (0, 384)


@pytest.mark.parametrize("dimensions", [1, 100, 384])
def test_shortened_vectors_have_length_1_and_the_same_direction(vectors: Any, dimensions: int) -> None:
    short = shortened(vectors, dimensions)
    assert short.shape == (len(TEXTS), dimensions)
    assert np.linalg.norm(short, axis=1) == pytest.approx(1, abs=1e-6)
    cut = vectors[:, :dimensions]
    assert short == pytest.approx(cut / np.linalg.norm(cut, axis=1, keepdims=True), abs=1e-6)


def test_unit_length_leaves_zeros_alone() -> None:
    unit = to_unit_length(np.array([[3, 4], [0, 0]], np.float32))
    assert np.allclose(unit, np.array([[0.6, 0.8], [0, 0]]))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", {"model_type": "gpt2"}, "model_type is 'gpt2'; supported encoders: bert, roberta"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("config.json", {"num_hidden_layers": None}, "does not describe a model of the type bert"),
        ("config.json", {"num_attention_heads": 7}, "7 heads do not divide 384"),
        ("config.json", {"intermediate_size": 99}, "its configuration implies"),
        ("config.json", {"num_hidden_layers": 7}, "lacks tensor encoder.layer.6"),
        ("sentence_bert_config.json", {"max_seq_length": 9999}, "max_seq_length is 9999; allowed: 3 to 512"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens is chosen"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "mean, cls is chosen; allowed: one of"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            "include_prompt is false",
        ),
        ("modules.json", {"a": "table"}, r"modules\.json cannot be read"),
    ],
)
def test_a_checkpoint_that_would_be_computed_wrongly_is_refused(
    checkpoint: Path, tmp_path: Path, file: str, change: dict[str, Any], said: str
) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for path in checkpoint.glob("*.json"):
        shutil.copy(path, directory)
    (directory / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    changed = directory / file
    changed.parent.mkdir(exist_ok=True)
    before = json.loads(changed.read_text()) if changed.exists() else {}
    changed.write_text(json.dumps({**before, **change}))
    with pytest.raises(InflightError, match=said):
        EmbeddingModel.load(directory)


def test_a_model_with_an_unsupported_step_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    steps = [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": step} for step in steps]))
    read_description(tmp_path)
    steps.append("sentence_transformers.models.Dense")
    (tmp_path / "modules.json").write_text(json.dumps([{"type": step} for step in steps]))
    with pytest.raises(
        InflightError, match="Dense is not supported here; allowed: Transformer, Pooling, Norm"
    ):
        read_description(tmp_path)


def test_a_checkpoint_without_a_tokenizer_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(checkpoint / name)
    with pytest.raises(InflightError, match=r"tokenizer\.json cannot be read"):
        EmbeddingModel.load(tmp_path)
