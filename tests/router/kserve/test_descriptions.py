"""What perf_analyzer and its like read before and after they measure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from tritonclient.utils import InferenceServerException

from python_backend.wire.ensemble_steps import STEPS
from tests.router.kserve.asking import grpc_input, prompt_inputs
from tests.router.kserve.running import RunningKserve
from tests.router.running import MODEL

PARTS = ("success", "queue", "compute_input", "compute_infer", "compute_output")
STEP_NAMES = ["preprocessing", "tensorrt_llm", "postprocessing"]


@pytest.fixture
async def grpc(kserve: RunningKserve) -> AsyncIterator[triton_grpc.InferenceServerClient]:
    async with triton_grpc.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


@pytest.fixture
async def http(kserve: RunningKserve) -> AsyncIterator[triton_http.InferenceServerClient]:
    async with triton_http.InferenceServerClient(kserve.http_url) as opened:
        yield opened


@pytest.mark.parametrize("name", ["ensemble", MODEL])
async def test_an_ensembles_config_has_its_steps_and_each_of_them_a_config(
    grpc: Any, http: Any, name: str
) -> None:
    config = (await grpc.get_model_config(name)).config
    assert (config.name, config.platform) == (name, "ensemble")
    steps = config.ensemble_scheduling.step
    assert [step.model_name for step in steps] == STEP_NAMES
    assert [dict(step.input_map) for step in steps] == [step.input_map for step in STEPS]
    for step in steps:
        inside = (await grpc.get_model_config(step.model_name)).config
        assert not inside.HasField("ensemble_scheduling")
        assert set(step.input_map) <= {tensor.name for tensor in inside.input}
        assert inside.model_transaction_policy.decoupled == (step.model_name == "tensorrt_llm")
    told = (await http.get_model_config(name))["ensemble_scheduling"]["step"]
    assert [step["model_version"] for step in told] == [-1, -1, -1]


async def test_a_model_for_embeddings_is_no_ensemble(grpc: Any) -> None:
    config = (await grpc.get_model_config("embeddings")).config
    assert not config.platform
    assert not config.HasField("ensemble_scheduling")


async def test_steps_are_described_and_still_cannot_be_called(grpc: Any) -> None:
    with pytest.raises(InferenceServerException, match="a step of other models"):
        await grpc.infer("preprocessing", prompt_inputs(grpc_input))
    assert not await grpc.is_model_ready("preprocessing")
    with pytest.raises(InferenceServerException, match="a step of other models"):
        await grpc.get_model_config("preprocessing", "2")


async def test_statistics_have_every_part_with_the_same_count(grpc: Any, http: Any) -> None:
    for _ in range(2):
        await grpc.infer("ensemble", prompt_inputs(grpc_input))
    await grpc.infer("embeddings", [grpc_input("TEXT", "BYTES", [[b"a"]])])
    everything = (await http.get_inference_statistics())["model_stats"]
    told = {each["name"]: each["inference_stats"] for each in everything}
    for name, count in {**dict.fromkeys(["ensemble", MODEL, *STEP_NAMES], 2), "embeddings": 1}.items():
        assert {told[name][part]["count"] for part in PARTS} == {count}
        parts_ns = [told[name][part]["ns"] for part in PARTS[1:]]
        assert told[name]["success"]["ns"] == sum(parts_ns)
    assert told["ensemble"]["success"]["ns"] > 0


async def test_statistics_of_one_step_are_those_of_its_model(grpc: Any) -> None:
    await grpc.infer(MODEL, prompt_inputs(grpc_input))
    (engine,) = (await grpc.get_inference_statistics("tensorrt_llm")).model_stats
    assert (engine.version, engine.inference_stats.compute_infer.count) == ("1", 1)
    (ensemble,) = (await grpc.get_inference_statistics("ensemble", "1")).model_stats
    assert (ensemble.name, ensemble.inference_stats.queue.count) == ("ensemble", 1)


async def test_a_key_sees_no_steps_of_models_that_it_may_not_ask(kserve: RunningKserve, grpc: Any) -> None:
    tenant = await kserve.router.new_tenant()
    key = await kserve.router.new_key(tenant, models=frozenset({"another"}))
    headers = {"authorization": f"Bearer {key}"}
    assert not (await grpc.get_inference_statistics(headers=headers)).model_stats
    with pytest.raises(InferenceServerException):
        await grpc.get_model_config("preprocessing", headers=headers)
