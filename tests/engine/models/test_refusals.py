"""What the engine cannot run is refused before a weight is read, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.models import FAMILIES, load_weights
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.checkpoints import random_llama, random_variant, save


@pytest.fixture
def llama_dir(tmp_path: Path) -> Path:
    return save(random_llama(), tmp_path)


def edit_config(directory: Path, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def refusal(directory: Path) -> InflightError:
    with pytest.raises(InflightError) as raised:
        load_weights(Checkpoint(directory))
    return raised.value


def test_an_unknown_architecture_is_refused_with_the_known_ones(llama_dir: Path) -> None:
    error = refusal(edit_config(llama_dir, architectures=["MambaForCausalLM"]))
    assert error.kind is ErrorKind.UNSUPPORTED
    assert error.message == (
        f"{llama_dir} is a MambaForCausalLM, which this engine does not support; "
        f"supported: {', '.join(sorted(FAMILIES))}"
    )
    assert len(FAMILIES) == 16


def test_a_checkpoint_that_names_no_architecture_is_refused(llama_dir: Path) -> None:
    assert "model of an unnamed architecture" in refusal(edit_config(llama_dir, architectures=None)).message


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; supported: silu, swish, gelu_pytorch_tanh"),
        (
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
            "rope scaling is 'proportional'; supported: default, linear, dynamic, llama3, yarn, longrope",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters differ by layer (full_attention) in a family without that",
        ),
        (
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is set; this engine supports only causal attention",
        ),
    ],
)
def test_an_unsupported_config_is_refused_by_name(
    llama_dir: Path, changes: dict[str, Any], sentence: str
) -> None:
    error = refusal(edit_config(llama_dir, **changes))
    assert (error.kind, error.message) == (ErrorKind.UNSUPPORTED, sentence)


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        (
            ["chunked_attention"] * 2,
            "layer_types has 'chunked_attention'; supported: full_attention, sliding_attention",
        ),
        (["full_attention"], "layer_types names 1 layers; there are 2"),
    ],
)
def test_unknown_layer_types_are_refused(types: list[str], sentence: str, tmp_path: Path) -> None:
    directory = save(random_variant("qwen2"), tmp_path)
    assert refusal(edit_config(directory, layer_types=types)).message == sentence


def test_a_missing_key_of_the_config_is_named(llama_dir: Path) -> None:
    path = llama_dir / "config.json"
    config = json.loads(path.read_text())
    del config["num_hidden_layers"]
    path.write_text(json.dumps(config))
    assert refusal(llama_dir).message == "config.json lacks num_hidden_layers"


def test_a_missing_key_of_rope_scaling_is_named(llama_dir: Path) -> None:
    edit_config(llama_dir, rope_parameters={"rope_type": "linear", "rope_theta": 1e4})
    assert refusal(llama_dir).message == "rope scaling 'linear' of config.json lacks factor"


def test_factors_that_are_not_one_for_each_pair_are_refused(llama_dir: Path) -> None:
    factors = {"short_factor": [1.0] * 3, "long_factor": [1.0] * 3}
    edit_config(llama_dir, rope_parameters={"rope_type": "longrope", **factors})
    assert refusal(llama_dir).message == "rope scaling has 3 factors; a head has 6 pairs that turn"


def test_a_tensor_of_another_shape_is_named_when_its_layer_is_read(llama_dir: Path) -> None:
    weights = load_weights(Checkpoint(edit_config(llama_dir, intermediate_size=96)))
    with pytest.raises(
        InflightError, match=r"mlp\.gate_proj\.weight .* is \(80, 48\); .* implies \(96, 48\)"
    ):
        weights.layer(0)


def test_text_of_an_unknown_type_in_a_model_that_sees_is_refused(llama_dir: Path) -> None:
    edit_config(
        llama_dir,
        architectures=["Mistral3ForConditionalGeneration"],
        text_config={"model_type": "ministral3"},
    )
    assert refusal(llama_dir).message == (
        "text_config is of a 'ministral3', which is not supported there; supported: mistral"
    )


def test_a_model_that_sees_without_a_description_of_its_text_is_refused(llama_dir: Path) -> None:
    edit_config(llama_dir, architectures=["Gemma3ForConditionalGeneration"])
    assert refusal(llama_dir).message == f"config.json of {llama_dir} has no text_config"
