"""Each config.pbtxt, read by protobuf's own parser, against the table of the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from python_backend.wire.encoder_parameters import ENCODER_KEYS
from python_backend.wire.ensemble_steps import STEPS
from python_backend.wire.parameters import FOREIGN_KEYS, KNOWN_KEYS, NEUTRAL_VALUES, parse_engine_parameters
from python_backend.wire.tensors import CONTRACTS, ModelContract, Tensor

ROOT = Path(__file__).parents[2]
CONFIGS = {
    path.parent.name: path
    for folder in ("model_repository", "ensembles")
    for path in (ROOT / folder).glob("*/config.pbtxt")
}
# The parameter keys of the shipped contract, and of the model beside it.
SHIPPED_KEYS = {
    "preprocessing": {
        "tokenizer_dir",
        "add_special_tokens",
        "multimodal_model_path",
        "gpt_model_path",
        "max_num_images",
    },
    "postprocessing": {"tokenizer_dir", "skip_special_tokens"},
    "ensemble": set(),
    "embeddings": {"checkpoint_dir", *ENCODER_KEYS},
}


def parse(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def describe(tensor: Tensor) -> tuple[object, ...]:
    dtype = "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"
    return (tensor.name, dtype, tensor.dims, tensor.optional, tensor.ragged, tensor.scalar)


def described_inputs(config: model_config_pb2.ModelConfig) -> list[tuple[object, ...]]:
    return [
        (
            tensor.name,
            model_config_pb2.DataType.Name(tensor.data_type),
            tuple(tensor.dims),
            tensor.optional,
            tensor.allow_ragged_batch,
            tensor.HasField("reshape"),
        )
        for tensor in config.input
    ]


def described_outputs(config: model_config_pb2.ModelConfig) -> list[tuple[object, ...]]:
    return [
        (tensor.name, model_config_pb2.DataType.Name(tensor.data_type), tuple(tensor.dims))
        for tensor in config.output
    ]


def test_there_is_a_config_for_each_contract_and_no_other() -> None:
    assert CONFIGS.keys() == CONTRACTS.keys()


@pytest.mark.parametrize("model", CONTRACTS)
def test_tensors_are_those_of_the_contract(model: str) -> None:
    contract: ModelContract = CONTRACTS[model]
    config = parse(CONFIGS[model])
    assert described_inputs(config) == [describe(tensor) for tensor in contract.inputs]
    assert described_outputs(config) == [describe(tensor)[:3] for tensor in contract.outputs]


def test_the_ensembles_steps_are_those_of_the_table() -> None:
    found = parse(CONFIGS["ensemble"]).ensemble_scheduling.step
    assert [(each.model_name, dict(each.input_map), dict(each.output_map)) for each in found] == [
        (step.model, step.input_map, step.output_map) for step in STEPS
    ]
    for step in STEPS:
        assert parse(CONFIGS[step.model]).model_transaction_policy.decoupled == step.is_decoupled


@pytest.mark.parametrize(("model", "inputs", "outputs"), [("tensorrt_llm", 62, 21), ("ensemble", 36, 19)])
def test_the_shipped_edition_has_so_many_tensors(model: str, inputs: int, outputs: int) -> None:
    contract = CONTRACTS[model]
    assert len([tensor for tensor in contract.inputs if not tensor.extension]) == inputs
    assert len([tensor for tensor in contract.outputs if not tensor.extension]) == outputs


@pytest.mark.parametrize("model", CONTRACTS)
def test_configs_are_literal(model: str) -> None:
    assert "${" not in CONFIGS[model].read_text()


@pytest.mark.parametrize("model", SHIPPED_KEYS)
def test_parameters_have_the_shipped_keys(model: str) -> None:
    assert set(parse(CONFIGS[model]).parameters) == SHIPPED_KEYS[model]


def test_engine_parameters_are_all_known_and_readable() -> None:
    config = parse(CONFIGS["tensorrt_llm"])
    raw = {key: value.string_value for key, value in config.parameters.items()}
    shipped = {key for key in raw if not key.startswith("inflight_")}
    assert len(shipped) == 46
    assert set(raw) <= KNOWN_KEYS
    assert not FOREIGN_KEYS & NEUTRAL_VALUES.keys()
    assert parse_engine_parameters(raw).batch_scheduler_policy == "max_utilization"


def test_the_engine_is_named_as_nvidias_backend_and_streams() -> None:
    config = parse(CONFIGS["tensorrt_llm"])
    assert config.backend == "tensorrtllm"
    assert config.model_transaction_policy.decoupled


def test_postprocessing_keeps_chunks_in_order_on_every_release() -> None:
    config = parse(CONFIGS["postprocessing"])
    assert not config.HasField("dynamic_batching")
    assert [group.count for group in config.instance_group] == [1]


def test_no_tensor_of_the_ensemble_is_an_input_and_an_output() -> None:
    """Triton refuses to load it."""
    config = parse(CONFIGS["ensemble"])
    assert not {tensor.name for tensor in config.input} & {tensor.name for tensor in config.output}


def test_every_ensemble_tensor_is_connected() -> None:
    config = parse(CONFIGS["ensemble"])
    steps = config.ensemble_scheduling.step
    consumed = {name for step in steps for name in step.input_map.values()}
    produced = {name for step in steps for name in step.output_map.values()}
    assert {tensor.name for tensor in config.input} <= consumed
    assert {tensor.name for tensor in config.output} <= produced
    assert consumed <= produced | {tensor.name for tensor in config.input}
    for step in steps:
        contract = CONTRACTS[step.model_name]
        assert set(step.input_map) <= {tensor.name for tensor in contract.inputs}
        assert set(step.output_map) <= {tensor.name for tensor in contract.outputs}
