"""Several releases of a model, as Triton's own clients see them: its versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from router.routing.models import Lineup, Served
from router.routing.split import ModelSplit, Sticky
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, http_input, prompt_inputs
from tests.router.kserve.running import RunningKserve
from tests.router.running import EMBEDDER, MODEL


def publish(kserve: RunningKserve, *arms: tuple[int, float], sticky: Sticky = Sticky.REQUEST) -> None:
    releases: dict[int, Served] = {version: kserve.text(version) for version, _ in arms}
    lineup = Lineup(MODEL, releases, ModelSplit(MODEL, arms, "salt", sticky))
    kserve.registry.publish({**kserve.registry.lineups, MODEL: lineup})


@pytest.fixture
async def grpc(kserve: RunningKserve) -> AsyncIterator[grpc_aio.InferenceServerClient]:
    publish(kserve, (2, 0.0), (1, 1.0))
    async with grpc_aio.InferenceServerClient(kserve.grpc_url) as opened:
        yield opened


@pytest.fixture
async def http(kserve: RunningKserve) -> AsyncIterator[http_aio.InferenceServerClient]:
    publish(kserve, (2, 0.0), (1, 1.0))
    async with http_aio.InferenceServerClient(kserve.http_url) as opened:
        yield opened


async def ask(client: Any, name: str = MODEL, version: str = "", **more: Any) -> str:
    """The version that answered."""
    make = grpc_input if isinstance(client, grpc_aio.InferenceServerClient) else http_input
    result = await client.infer(name, prompt_inputs(make), model_version=version, **more)
    response = result.get_response()
    return str(response["model_version"] if isinstance(response, dict) else response.model_version)


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_version_pins_a_release_and_the_answer_names_it(
    kserve: RunningKserve, kind: str, grpc: Any, http: Any
) -> None:
    client = {"grpc": grpc, "http": http}[kind]
    pin = {"x-inflight-release": "2"}
    assert [await ask(client), await ask(client, version="2"), await ask(client, f"{MODEL}@2")] == list("122")
    assert [
        await ask(client, headers=pin),
        await ask(client, "ensemble"),
        await ask(client, version="1"),
    ] == [
        "2",
        "1",
        "1",
    ]
    sent = [each.model_name for each in kserve.triton.requests]
    assert sent == ["ensemble", "tiny.2", "tiny.2", "tiny.2", "ensemble", "ensemble"]
    with pytest.raises(InferenceServerException, match="has no version '3'; it has 1, 2"):
        await ask(client, version="3")


async def test_versions_are_the_releases_in_metadata_and_index(grpc: Any, http: Any) -> None:
    assert (await grpc.get_model_metadata(MODEL)).versions == ["1", "2"]
    assert (await http.get_model_metadata(MODEL, "2"))["versions"] == ["1", "2"]
    listed = await http.get_model_repository_index()
    assert [(each["name"], each["version"]) for each in listed] == [
        (MODEL, "1"),
        (MODEL, "2"),
        (EMBEDDER, "1"),
    ]
    assert await grpc.is_model_ready(MODEL, "2")
    assert not await http.is_model_ready(MODEL, "3")


async def test_statistics_are_kept_for_each_version(grpc: Any, http: Any) -> None:
    for version in ("", "2", "2"):
        await ask(grpc, version=version)
    found = await http.get_inference_statistics(MODEL)
    assert [(each["version"], each["inference_count"]) for each in found["model_stats"]] == [
        ("1", 1),
        ("2", 2),
    ]
    (second,) = (await grpc.get_inference_statistics(f"{MODEL}@2")).model_stats
    assert (second.version, second.inference_count) == ("2", 2)
    everything = await grpc.get_inference_statistics()
    counts = {(each.name, each.version): each.inference_count for each in everything.model_stats}
    assert [counts[MODEL, "1"], counts[MODEL, "2"], counts[EMBEDDER, "1"]] == [1, 2, 0]
    assert [counts["ensemble", "1"], counts["ensemble", "2"]] == [1, 2]
    assert [counts["tensorrt_llm", "1"], counts[f"{MODEL}.2.tensorrt_llm", "1"]] == [1, 2]


async def test_usage_and_metrics_name_the_release(kserve: RunningKserve, grpc: Any) -> None:
    await ask(grpc, version="2")
    who = {"model": MODEL, "tenant": "local", "release": "2"}
    await kserve.router.until(
        lambda: kserve.router.metric("inflight_requests_ended_total", outcome="finished", **who) == 1
    )


async def test_http_answers_name_the_release_in_a_header_too(kserve: RunningKserve, http: Any) -> None:
    body = {"text_input": "hi", "max_tokens": 3, "stream": True}
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as plain:
        for method in ("generate", "generate_stream"):
            answer = await plain.post(f"/v2/models/{MODEL}/versions/2/{method}", json=body)
            assert answer.headers["x-inflight-release"] == "2"
            assert '"model_version":"2"' in answer.text


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_conversation_stays_with_its_release(
    kserve: RunningKserve, kind: str, grpc: Any, http: Any
) -> None:
    publish(kserve, (2, 0.5), (1, 0.5), sticky=Sticky.CONVERSATION)
    client = {"grpc": grpc, "http": http}[kind]
    firsts = []
    for number in range(8):
        headers = {"x-inflight-conversation": f"talk-{number}"}
        first, second = await ask(client, headers=headers), await ask(client, headers=headers)
        assert first == second
        firsts.append(first)
    assert set(firsts) == {"1", "2"}


async def test_a_release_that_is_loading_does_not_make_the_server_unready(
    kserve: RunningKserve, grpc: Any
) -> None:
    assert await grpc.is_server_ready()
    lineup = kserve.registry.lineups[MODEL]
    empty = Lineup(MODEL, {}, lineup.split)
    kserve.registry.publish({**kserve.registry.lineups, MODEL: empty})
    assert not await grpc.is_server_ready()
    with pytest.raises(InferenceServerException) as refused:
        await ask(grpc)
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert "no release" in str(refused.value)
