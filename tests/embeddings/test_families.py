"""Every family of encoders, with small random weights, against transformers' own implementation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from python_backend.embeddings.description import read_description
from python_backend.embeddings.families.mpnet import bucket_of
from python_backend.embeddings.model import EmbeddingModel
from python_backend.wire.errors import InflightError

WORDS = 90
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": WORDS + 6,
}
# Wide enough for weights to matter: as they are by default, each layer hardly changes anything.
RANDOM = {"initializer_range": 0.4, **SHAPE}
FAMILIES = {
    "bert": ("Bert", {**RANDOM, "max_position_embeddings": 60}),
    "roberta": (
        "Roberta",
        {**RANDOM, "max_position_embeddings": 62, "type_vocab_size": 1},
    ),
    "xlm-roberta": ("XLMRoberta", {**RANDOM, "max_position_embeddings": 62, "pad_token_id": 1}),
    "mpnet": ("MPNet", {**RANDOM, "max_position_embeddings": 302, "pad_token_id": 1}),
    "modernbert": (
        "ModernBert",
        {**RANDOM, "max_position_embeddings": 60, "local_attention": 8, "pad_token_id": 0, "eos_token_id": 3}
        | {"bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "nomic_bert": ("NomicBert", {**RANDOM, "max_position_embeddings": 60}),
}
SENTENCES = [" ".join(f"w{(7 * row + 3 * word) % WORDS}" for word in range(length)) for row, length in
             enumerate([0, 1, 2, 5, 9, 9, 17, 30, 44, 58])]  # fmt: skip
PAIRS = [(SENTENCES[1], SENTENCES[4]), (SENTENCES[3], SENTENCES[6]), (SENTENCES[2], SENTENCES[8])]


def write_tokenizer(directory: Path) -> None:
    special = ["[PAD]", "<pad>", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = {word: index for index, word in enumerate([*special, *(f"w{number}" for number in range(WORDS))])}
    made = Tokenizer(models.WordLevel(words, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.save(str(directory / "tokenizer.json"))


def write_model(directory: Path, family: str, kind: str, **more: Any) -> Any:
    """A checkpoint as transformers writes it, and the model itself."""
    name, values = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**values, **more)
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    for parameter in model.parameters():  # biases and norms begin as 0 and 1, which would hide mistakes
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return model


def pooled(model: Any, ids: Sequence[int], pooling: str) -> Any:
    with torch.no_grad():
        states = model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0]
    weights = torch.arange(1, len(states) + 1).float()
    vector = {
        "mean": states.mean(0),
        "cls": states[0],
        "lasttoken": states[-1],
        "mean_sqrt_len": states.sum(0) / len(states) ** 0.5,
        "weightedmean": (states * weights[:, None]).sum(0) / weights.sum(),
    }[pooling]
    return torch.nn.functional.normalize(vector, dim=0).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    reference = write_model(tmp_path, family, "Model")
    model = EmbeddingModel.load(tmp_path)
    ids = model.word_pieces.encode(SENTENCES)
    vectors = model.embed(ids)
    expected = np.array([pooled(reference, row, "mean") for row in ids])
    assert np.abs(vectors - expected).max() < 1e-5
    assert np.abs(expected[1:] @ expected[0]).min() < 0.99, "the weights make a difference"


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_rerankers_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    reference = write_model(tmp_path, family, "ForSequenceClassification", num_labels=1)
    model = EmbeddingModel.load(tmp_path)
    assert model.is_reranker
    pairs = model.word_pieces.encode_pairs(PAIRS)
    expected = []
    for pair in pairs:
        inputs = {"input_ids": torch.tensor([pair.ids])}
        if family in ("bert", "nomic_bert"):
            inputs["token_type_ids"] = torch.tensor([pair.types])
        with torch.no_grad():
            expected.append(torch.sigmoid(reference(**inputs).logits)[0].tolist())
    assert np.abs(model.embed(pairs) - np.array(expected)).max() < 1e-5


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode": ["weightedmean"], "include_prompt": True}, "weightedmean"),
    ],
)
def test_texts_are_pooled_as_the_model_says(tmp_path: Path, config: dict[str, Any], pooling: str) -> None:
    reference = write_model(tmp_path, "bert", "Model")
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "config.json").write_text(json.dumps(config))
    modules = [("", "Transformer"), ("pool", "Pooling")]
    (tmp_path / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules])
    )
    model = EmbeddingModel.load(tmp_path)
    ids = model.word_pieces.encode(SENTENCES)
    expected = np.array([pooled(reference, row, pooling) for row in ids])
    assert np.abs(model.embed(ids) - expected).max() < 1e-5


def test_a_config_may_have_the_keys_of_nomics_authors(tmp_path: Path) -> None:
    write_model(tmp_path, "nomic_bert", "Model")
    model = EmbeddingModel.load(tmp_path)
    vectors = model.embed(model.word_pieces.encode(SENTENCES))
    config = {"model_type": "nomic_bert", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_inner": 48}
    config |= {
        "n_positions": 8192,
        "max_trained_positions": 60,
        "vocab_size": WORDS + 6,
        "type_vocab_size": 2,
    }
    config |= {"activation_function": "swiglu", "rotary_emb_base": 1000, "layer_norm_epsilon": 1e-12}
    config |= {"rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_scaling_factor": None}
    (tmp_path / "config.json").write_text(json.dumps({**config, "prenorm": False, "use_rms_norm": None}))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8192}))
    same = EmbeddingModel.load(tmp_path)
    assert same.word_pieces.max_tokens == 60
    assert np.abs(same.embed(same.word_pieces.encode(SENTENCES)) - vectors).max() < 1e-6


def test_a_reranker_that_says_so_gives_scores_without_bounds(tmp_path: Path) -> None:
    reference = write_model(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = EmbeddingModel.load(tmp_path)
    (pair,) = model.word_pieces.encode_pairs(PAIRS[:1])
    with torch.no_grad():
        logits = reference(torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.types])).logits
    assert model.embed([pair]) == pytest.approx(logits.numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("family", "kind", "change", "said"),
    [
        (
            "bert",
            "Model",
            {"model_type": "t5"},
            "model_type is 't5'; supported encoders: bert, roberta",
        ),
        ("bert", "Model", {"hidden_act": "relu"}, "hidden_act is 'relu'; supported: 'gelu'"),
        (
            "bert",
            "Model",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'",
        ),
        ("mpnet", "Model", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64"),
        ("modernbert", "Model", {"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ("nomic_bert", "Model", {"num_experts": 8}, "num_experts is 8; supported: 0 or None"),
        ("nomic_bert", "Model", {"hidden_size": "many"}, "does not describe a model of the type nomic_bert"),
        ("bert", "ForSequenceClassification", {}, "the classifier has 2 labels; allowed: 1"),
        (
            "roberta",
            "ForSequenceClassification",
            {"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.Tanh"},
            "activation_fn is 'torch.nn.Tanh'; allowed: Sigmoid, Identity",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(
    tmp_path: Path, family: str, kind: str, change: dict[str, Any], said: str
) -> None:
    name, values = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**values).to_dict()
    config["architectures"] = [f"{name}{kind}"]
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InflightError) as refused:
        read_description(tmp_path)
    assert said in refused.value.message


def test_distances_share_buckets_as_in_mpnet() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-511, 512)
    expected = MPNetEncoder.relative_position_bucket(distances).tolist()
    assert [bucket_of(distance) for distance in distances.tolist()] == expected
