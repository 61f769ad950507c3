"""Every family against transformers: the same logits from the same checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.checkpoint.shapes_only import ShapesOnly
from python_backend.engine.models import load_weights
from tests.engine.checkpoints import (
    POSITIONS,
    VARIANTS,
    VOCABULARY,
    all_logits,
    longrope,
    random_model,
    random_variant,
    save,
)
from tests.engine.models.dense import dense_logits

_DICE = random.Random(1)
TOKENS = [_DICE.randrange(VOCABULARY) for _ in range(60)]


def check_logits(model: Any, directory: Path, token_ids: list[int] = TOKENS, **options: Any) -> None:
    found = dense_logits(load_weights(Checkpoint(directory), **options), token_ids)
    expected = all_logits(model, token_ids)
    assert found.shape == expected.shape
    # A logit near 0 is a difference of large numbers: what counts is the distance beside the largest.
    scale = float(expected.abs().max())
    assert float((found - expected).abs().max()) < 1e-4 * scale
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def edit_config(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in remove}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = random_variant(variant)
    check_logits(model, save(model, tmp_path))


@pytest.mark.parametrize("variant", ["mixtral", "qwen3 moe"])
def test_experts_may_share_one_tensor(variant: str, tmp_path: Path) -> None:
    model = random_variant(variant)
    directory = save(model, tmp_path)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    assert any("experts.gate_up_proj" in name for name in weights)
    assert not any("experts.gate_up_proj" in name for name in load_file(directory / "model.safetensors"))
    save_file(weights, directory / "model.safetensors")
    check_logits(model, directory)


def test_longrope_serves_the_original_context_unless_longer_sequences_are_requested(tmp_path: Path) -> None:
    model = random_model("Phi3", original_max_position_embeddings=32, rope_parameters=longrope(6))
    checkpoint = Checkpoint(save(model, tmp_path))
    assert load_weights(checkpoint).shape.max_positions == 32
    assert load_weights(checkpoint, max_sequence_tokens=20).shape.max_positions == 32
    assert load_weights(checkpoint, max_sequence_tokens=100).shape.max_positions == POSITIONS
    check_logits(model, tmp_path, TOKENS[:32])
    check_logits(model, tmp_path, TOKENS, max_sequence_tokens=100)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_the_older_names_of_longrope_are_known(name: str, tmp_path: Path) -> None:
    model = random_model("Phi3", original_max_position_embeddings=64, rope_parameters=longrope(6))
    directory = save(model, tmp_path)
    older = {**longrope(6), "type": name}
    del older["rope_type"]
    edit_config(directory, ("rope_parameters",), rope_scaling=older)
    check_logits(model, directory)


def test_an_older_gemma3_config_scales_the_rope_of_global_layers_alone(tmp_path: Path) -> None:
    family, changes = VARIANTS["gemma3, one key head, scaled rope of global layers"]
    model = random_model(family, **changes)
    directory = save(model, tmp_path)
    edit_config(
        directory,
        ("rope_parameters", "layer_types"),
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=2,
    )
    check_logits(model, directory)


@pytest.mark.parametrize(
    ("variant", "silent"),
    [
        ("gemma2", ("layer_types", "tie_word_embeddings", "hidden_activation")),
        ("gemma3", ("layer_types", "tie_word_embeddings", "hidden_activation", "rope_parameters")),
        (
            "smollm3, tied, layers without rope windowed",
            ("layer_types", "tie_word_embeddings", "rope_parameters"),
        ),
        ("qwen2, tied, upper layers windowed", ("layer_types", "rope_parameters")),
        ("mixtral", ("rope_parameters", "num_experts_per_tok", "sliding_window")),
        ("llama", ("rope_parameters", "num_hidden_act", "head_dim", "tie_word_embeddings")),
    ],
)
def test_where_a_config_omits_a_key_the_familys_default_holds(
    variant: str, silent: tuple[str, ...], tmp_path: Path
) -> None:
    model = random_variant(variant)
    directory = save(model, tmp_path)
    edit_config(directory, silent)
    check_logits(model, directory)


def test_the_shape_is_known_without_reading_a_tensor(tmp_path: Path) -> None:
    read: list[tuple[int, int]] = []
    checkpoint = Checkpoint(
        save(random_variant("gemma3"), tmp_path), progress=lambda done, total: read.append((done, total))
    )
    weights = load_weights(checkpoint)
    assert weights.shape.windows == (9, 9, 9, 9, 9, None, 9)
    assert weights.shape.rope_of_layer == (1, 1, 1, 1, 1, 0, 1)
    assert read == []
    weights.layer(0)
    assert read


def test_reading_everything_reports_every_byte_once(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    checkpoint = Checkpoint(
        save(random_variant("qwen3 moe"), tmp_path), progress=lambda *report: reports.append(report)
    )
    dense_logits(load_weights(checkpoint), [1])
    assert reports == sorted(reports)
    assert reports[-1] == (checkpoint.weight_bytes, checkpoint.weight_bytes)


@pytest.mark.parametrize(
    ("variant", "architecture", "text_type"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"),
        ("mistral, no window", "Mistral3ForConditionalGeneration", "mistral"),
    ],
)
@pytest.mark.parametrize("prefixes", ["older", "newer"])
def test_the_text_of_a_model_that_sees_is_read_by_either_naming(
    variant: str, architecture: str, text_type: str, prefixes: str, tmp_path: Path
) -> None:
    model = random_variant(variant)
    directory = save(model, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    older = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
    newer = {"model.": "model.language_model.", "lm_head.": "lm_head."}
    renamed = {}
    for name, value in tensors.items():
        plain = next(start for start in older if name.startswith(start))
        there = (older if prefixes == "older" else newer)[plain]
        renamed[there + name.removeprefix(plain)] = value
    save_file({**renamed, "vision_tower.patch.weight": torch.zeros(2, 2)}, directory / "model.safetensors")
    text = json.loads((directory / "config.json").read_text()) | {"model_type": text_type}
    text.pop("tie_word_embeddings", None)
    config = {"architectures": [architecture], "text_config": text, "vision_config": {"hidden_size": 8}}
    (directory / "config.json").write_text(json.dumps(config))
    check_logits(model, directory)


def test_the_text_of_gemma3_needs_no_more_of_its_configuration_than_the_files_have(tmp_path: Path) -> None:
    """As `google/gemma-3-4b-it` has it: what is the configuration class's own is left out."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = load_weights(ShapesOnly(str(tmp_path))).shape
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.vocabulary, shape.max_positions) == (262208, 131072)
    assert shape.windows[:6] == (1024, 1024, 1024, 1024, 1024, None)
