"""Requests of Triton's clients go to a shadow too: generations, embeddings and tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tritonclient.grpc.aio as grpc_aio

from python_backend.wire.tensors import Tensor
from router.control.releases.comparison import Comparison
from router.core.embedding import ServedEmbedder
from router.kserve.tensors import by_name
from router.routing.models import Lineup, Served, ServedTensors
from router.routing.split import ModelSplit, Shadow
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.tensors import FakeTensors, response
from tests.fakes.triton_server import Reply, story
from tests.router.kserve.asking import grpc_input, prompt_inputs
from tests.router.kserve.running import RunningKserve, usual_answer
from tests.router.running import EMBEDDER, MODEL


def shadow(kserve: RunningKserve, first: Served, second: Served) -> None:
    split = ModelSplit(first.name, ((1, 1.0),), "salt", shadow=Shadow(2, 1.0))
    lineup = Lineup(first.name, {1: first, 2: second}, split)
    kserve.registry.publish({**kserve.registry.lineups, first.name: lineup})


async def newest(kserve: RunningKserve) -> Comparison:
    shadows = kserve.router.shadows
    await kserve.router.until(lambda: len(shadows.newest) == 1)
    return shadows.newest[0]


@pytest.mark.parametrize("said", ["Hello world", "Hello you"])
async def test_a_generation_of_a_triton_client_is_compared_with_its_shadows(
    kserve: RunningKserve, said: str
) -> None:
    shadow(kserve, kserve.text(1), kserve.text(2))

    def answer(request: Any) -> list[Reply]:
        return story(said) if request.model_name.endswith("2") else usual_answer(request)

    kserve.triton.script = answer
    async with grpc_aio.InferenceServerClient(kserve.grpc_url) as client:
        result = await client.infer(MODEL, prompt_inputs(grpc_input))
    assert result.as_numpy("text_output")[0] == b"Hello world"
    compared = await newest(kserve)
    assert (compared.version, compared.shadow_version, compared.size) == (1, 2, len("Hello world"))
    assert compared.is_equal == (said == "Hello world")
    first, second = kserve.triton.requests
    assert second.parameters["inflight_tier"].string_param == "batch"
    assert second.id != first.id
    assert list(second.raw_input_contents) == list(first.raw_input_contents)


async def test_an_embedding_of_a_triton_client_is_compared_with_its_shadows(kserve: RunningKserve) -> None:
    stable = kserve.registry.find_embedder(EMBEDDER)
    assert isinstance(stable, ServedEmbedder)
    shadow(kserve, stable, replace(stable, embedder=FakeEmbedder(), version=2))
    async with grpc_aio.InferenceServerClient(kserve.grpc_url) as client:
        await client.infer(EMBEDDER, [grpc_input("TEXT", "BYTES", [[b"a"], [b"b"]])])
    compared = await newest(kserve)
    assert (compared.is_equal, compared.size, compared.shadow_size) == (True, 2, 2)


@pytest.mark.parametrize(("dtype", "likeness"), [("FP32", 0.9), ("INT32", 0.0)])
async def test_tensors_of_a_triton_client_are_compared_with_its_shadows(
    kserve: RunningKserve, dtype: str, likeness: float
) -> None:
    outputs = by_name([Tensor("OUT", dtype, (2,))])
    inputs = by_name([Tensor("IN", "FP32", (2,))])

    def made(version: int, *values: int) -> ServedTensors:
        answer = response(("OUT", dtype, [1, 2], list(values)))
        return ServedTensors(
            "any", FakeTensors(lambda request: [answer]), inputs, outputs, 4, version=version
        )

    shadow(kserve, made(1, 3, 4), made(2, 3, 5))
    async with grpc_aio.InferenceServerClient(kserve.grpc_url) as client:
        await client.infer("any", [grpc_input("IN", "FP32", [[1.0, 2.0]])])
    compared = await newest(kserve)
    assert not compared.is_equal
    assert likeness <= compared.likeness < 1
