"""Models that make no text have releases too: embeddings, and whatever Triton model a user brings."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from google.protobuf.json_format import MessageToJson

from benchmarks.traffic import traffic
from launcher.settings import StackSettings
from python_backend.embeddings.model import EmbeddingModel
from router.control.releases.records import RolloutState
from router.core.manifest import Manifest
from tests.pace import patience
from tests.router.kserve.asking import grpc_input, http_input
from tests.stack.multiplier import write_multiplier
from tests.stack.releasing import IN_FLIGHT, LOADED_WITHIN_S, ReleaseStack
from tests.triton_adapter.onnx_files import write_onnx
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

EMBEDDINGS = StackSettings().embeddings
CANARY = ("--steps", "50%,100%", "--min-requests", "5", "--min-duration", "1s")
# What a canary must show takes longer than these tests should.
UNPROVEN = ("--time-limit", "1s", "--on-timeout", "promote")
OTHER_DELAY_US = 5000
USUAL_DELAY_US = 500


@pytest.fixture(scope="module")
def doublers(
    release_stack: ReleaseStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Manifest, Manifest]]:
    """Both releases of a user's model: the second one triples."""
    path = write_multiplier(tmp_path_factory.mktemp("users") / "doubler", {1: 2, 2: 3})
    for version in ("1", "2"):
        release_stack.command("add", "doubler", str(path), "--from-version", version)
    first, second = (release_stack.find_version("doubler", version) for version in (1, 2))
    release_stack.command("promote", "doubler@1")
    release_stack.load(first, second)
    yield first, second
    release_stack.command("promote", "doubler@1")
    release_stack.command("unload", "doubler@2", "--no-wait")


def of_ten(client: Any, make: Any, **more: Any) -> float:
    answer = client.infer("doubler", [make("x", "FP32", [[10.0]])], **more)
    return float(answer.as_numpy("y")[0, 0])


def test_tritons_own_clients_reach_both_releases_of_a_users_model(
    release_stack: ReleaseStack, doublers: tuple[Manifest, Manifest]
) -> None:
    address = release_stack.url.removeprefix("http://")
    with (
        grpcclient.InferenceServerClient(release_stack.stack.grpc_url) as grpc,
        httpclient.InferenceServerClient(address) as http,
    ):
        for client, make in ((grpc, grpc_input), (http, http_input)):
            assert of_ten(client, make) == 20
            assert of_ten(client, make, model_version="2") == 30
            assert client.is_model_ready("doubler", "2")
        assert set(http.get_model_metadata("doubler")["versions"]) == {"1", "2"}
        release_stack.command("split", "doubler", "1=50%", "2=50%")
        release_stack.wait_until_read()
        answers = Counter(of_ten(http, http_input) for _ in range(60))
        assert set(answers) == {20, 30}
        assert min(answers.values()) >= 12  # 5 standard deviations below the half
        assert of_ten(http, http_input, model_version="1") == 20
        release_stack.command("promote", "doubler@1")


def test_an_onnx_model_is_released_like_any_other(release_stack: ReleaseStack, tmp_path: Path) -> None:
    release_stack.command("add", "line", str(write_onnx(tmp_path / "line", factor=3)))
    release_stack.command("promote", "line@1")
    release_stack.load(release_stack.find_version("line", 1))
    with grpcclient.InferenceServerClient(release_stack.stack.grpc_url) as grpc:
        wait_until(lambda: grpc.is_model_ready("line"), "line is not ready", LOADED_WITHIN_S)
        answer = grpc.infer("line", [grpc_input("x", "FP32", [[1.0, 2.0], [3.0, 4.0]])])
    assert answer.as_numpy("y").tolist() == [[4.0, 7.0], [10.0, 13.0]]


def test_a_decoder_is_released_as_a_reranker(release_stack: ReleaseStack, tmp_path: Path) -> None:
    from tests.embeddings.test_decoders import write_reranker

    write_reranker(tmp_path)
    release_stack.command("add", "judge", str(tmp_path))
    release_stack.command("promote", "judge@1")
    release_stack.load(release_stack.find_version("judge", 1))
    body = {"model": "judge", "query": "w1 w2", "documents": ["w3", "w4 w5", "w6 w7 w8"]}

    def ask() -> httpx.Response:
        return httpx.post(f"{release_stack.url}/v1/rerank", json=body, timeout=patience(60))

    wait_until(lambda: ask().status_code == 200, "judge does not answer", LOADED_WITHIN_S)
    model = EmbeddingModel.load(tmp_path)
    pairs = model.word_pieces.encode_pairs([("w1 w2", document) for document in body["documents"]])
    expected = sorted(model.embed(pairs)[:, 0].tolist(), reverse=True)
    assert [each["relevance_score"] for each in ask().json()["results"]] == pytest.approx(expected, abs=1e-5)
    assert ask().json()["usage"]["prompt_tokens"] == sum(map(len, pairs))


def test_an_unloaded_release_is_loaded_again_despite_leftover_bytecode(
    release_stack: ReleaseStack, doublers: tuple[Manifest, Manifest]
) -> None:
    release_stack.command("unload", "doubler@2")
    release_stack.command("load", "doubler@2")
    release_stack.command("verify", "doubler@2")


def multiplied(number: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}


def test_a_users_model_and_embeddings_are_rolled_out_by_canary(
    release_stack: ReleaseStack, doublers: tuple[Manifest, Manifest]
) -> None:
    embeddings = release_stack.add(EMBEDDINGS, EMBEDDINGS)
    usual = release_stack.embed("Hello")
    with (
        traffic(
            release_stack.url,
            multiplied,
            20,
            path="/v2/models/doubler/infer",
            most_in_flight=IN_FLIGHT,
        ) as numbers,
        traffic(
            release_stack.url,
            lambda number: {"model": EMBEDDINGS, "input": f"number {number}"},
            20,
            path="/v1/embeddings",
            most_in_flight=IN_FLIGHT,
        ) as vectors,
    ):
        release_stack.command("canary", "doubler@2", *CANARY, *UNPROVEN)
        release_stack.command("canary", embeddings.name, *CANARY, *UNPROVEN)
        for model in ("doubler", EMBEDDINGS):
            assert release_stack.wait_for_end(model).state is RolloutState.PROMOTED
        release_stack.wait_until_read()
        numbers.wait_for(5)
    for running, version in ((numbers, 2), (vectors, embeddings.version)):
        assert running.errors == []
        assert {each.release for each in running.answered} == {"1", str(version)}
    assert release_stack.weights("doubler") == {2: 1.0}
    version, vector = release_stack.embed("Hello")
    # Beside others in a batch its last digits may differ.
    assert (version, vector == pytest.approx(usual[1], abs=1e-5)) == (embeddings.version, True)
    release_stack.command("rollback", EMBEDDINGS)
    release_stack.wait_until_read()
    version, vector = release_stack.embed("Hello")
    assert (version, vector == pytest.approx(usual[1], abs=1e-5)) == (usual[0], True)
    release_stack.unload(embeddings)


@pytest.mark.thorough("tests/stack/test_tuning.py changes delays under traffic too")
async def test_a_changed_queue_delay_is_loaded_under_traffic_and_no_request_fails(
    release_stack: ReleaseStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each client asks again when it is answered: as much traffic as the machine can do, and never more."""
    took_s: list[float] = []
    is_over = asyncio.Event()
    async with (
        httpx.AsyncClient(base_url=release_stack.url, timeout=patience(60)) as http,
        release_stack.control() as control,
    ):

        async def ask_again_and_again(client: int) -> None:
            while not is_over.is_set():
                body = {"model": EMBEDDINGS, "input": f"number {len(took_s)} of {client}"}
                began_s = time.monotonic()
                response = await http.post("/v1/embeddings", json=body)
                assert response.status_code == 200, response.text
                took_s.append(time.monotonic() - began_s)

        async def answered(more: int) -> None:
            wanted = len(took_s) + more
            while len(took_s) < wanted and not any(each.done() for each in clients):  # noqa: ASYNC110  # a count
                await asyncio.sleep(0.01)

        async def reload(delay_us: int) -> None:
            config = await control.config("embeddings")
            config.dynamic_batching.max_queue_delay_microseconds = delay_us
            await control.load("embeddings", MessageToJson(config, preserving_proto_field_name=True))
            found = await control.config("embeddings")
            assert found.dynamic_batching.max_queue_delay_microseconds == delay_us

        clients = [asyncio.create_task(ask_again_and_again(number)) for number in range(IN_FLIGHT)]
        await answered(200)
        before = len(took_s)
        await reload(OTHER_DELAY_US)
        meanwhile = len(took_s) - before
        await answered(1200)
        is_over.set()
        await asyncio.gather(*clients)
        await reload(USUAL_DELAY_US)
    assert meanwhile > IN_FLIGHT, "whoever asked while it was loaded waited for the end of that"
    usual_s, longest_s = float(np.median(took_s[:before])), max(took_s)
    with capsys.disabled():
        print(
            f"\n{len(took_s):,} requests, {meanwhile} while it was loaded: {usual_s * 1e3:.0f} ms, "
            f"at most {longest_s * 1e3:.0f}"
        )
