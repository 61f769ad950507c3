"""The `embeddings` model in a real Triton that has no other: batched, refused one by one, and its speed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from launcher.packaging.repository import set_parameters
from launcher.packaging.triton_runtime import build_runtime
from launcher.stack.ports import claim_port
from launcher.stack.processes import STACK_ID_VARIABLE, ChildProcess
from launcher.stack.runs import open_run
from launcher.stack.triton_door import ADDRESS, SocketDoor
from launcher.stack.triton_server import TritonServer
from python_backend.embeddings.model import EmbeddingModel
from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError

pytestmark = pytest.mark.stack

ROOT = Path(__file__).parents[2]
MODEL = "embeddings"
START_LIMIT_S = 30.0


class Client:
    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def embed(self, rows: Sequence[Any], dimensions: int = 0) -> tuple[np.ndarray[Any, Any], list[int]]:
        """`rows` are texts, or ids of one length."""
        count = len(rows)
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        if isinstance(rows[0], list):
            request.inputs.add(name="INPUT_IDS", datatype="INT32", shape=[count, len(rows[0])])
            request.raw_input_contents.append(codec.encode("INT32", [each for row in rows for each in row]))
        else:
            request.inputs.add(name="TEXT", datatype="BYTES", shape=[count, 1])
            request.raw_input_contents.append(codec.encode("BYTES", rows))
        request.inputs.add(name="DIMENSIONS", datatype="INT32", shape=[count, 1])
        request.raw_input_contents.append(codec.encode("INT32", [dimensions] * count))
        response = self._stub.ModelInfer(request, timeout=30)
        raw = {
            output.name: data
            for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        return np.frombuffer(raw["EMBEDDING"], "<f4").reshape(count, -1), codec.decode("INT32", raw["TOKENS"])

    def batches(self) -> dict[int, int]:
        """How many batches there were, by their size in rows."""
        request = service_pb2.ModelStatisticsRequest(name=MODEL)
        (statistics,) = self._stub.ModelStatistics(request).model_stats
        return {each.batch_size: each.compute_infer.count for each in statistics.batch_stats}


@pytest.fixture(scope="module")
def client(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with open_run(tmp_path_factory.mktemp("triton")) as run:
        copy = run.directory / "model_repository" / MODEL
        shutil.copytree(ROOT / "model_repository" / MODEL, copy, ignore=shutil.ignore_patterns("__pycache__"))
        set_parameters(copy / "config.pbtxt", {"checkpoint_dir": str(checkpoint)})
        metrics_port = claim_port(ADDRESS, 0, "", set())
        door = SocketDoor(run.socket_directory() / "triton", 1)
        runtime = build_runtime(ROOT, run.directory)
        prefix = run.shared_memory_prefix(0)
        server = TritonServer(runtime, (copy.parent,), prefix, door, metrics_port, (MODEL,))
        environment = {**os.environ, STACK_ID_VARIABLE: run.stack_id}
        child = ChildProcess(server.command(), runtime.environment(environment), run.directory / "triton.log")
        child.start()
        try:
            wait_until_ready(server, child)
            with door.channel() as channel:
                yield Client(channel)
        finally:
            child.terminate()
            deadline_s = time.monotonic() + 10
            while child.running and time.monotonic() < deadline_s:
                time.sleep(0.05)
            child.kill()


def wait_until_ready(server: TritonServer, child: ChildProcess) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while not server.is_ready(MODEL):
        assert child.running, "\n".join(child.log_lines())
        assert time.monotonic() < deadline_s, "\n".join(child.log_lines())
        time.sleep(0.05)


def test_texts_and_ids_give_the_models_own_vectors(client: Client, model: EmbeddingModel) -> None:
    texts = ["How do I reset my password?", "", "日本語のテキスト", "word " * 1000]
    ids = model.word_pieces.encode(texts)
    expected = model.embed(ids)
    vectors, tokens = client.embed(texts)
    assert np.abs(vectors - expected).max() < 1e-6
    assert tokens == [len(row) for row in ids]
    by_ids, _ = client.embed([ids[0]])
    assert np.abs(by_ids - expected[:1]).max() < 1e-6
    short, _ = client.embed(texts[:1], dimensions=64)
    assert short.shape == (1, 64)
    assert short[0] == pytest.approx(expected[0, :64] / np.linalg.norm(expected[0, :64]), abs=1e-6)


def test_concurrent_requests_are_computed_together(client: Client, model: EmbeddingModel) -> None:
    texts = [f"text number {number} of a crowd" for number in range(48)]
    (first,) = model.word_pieces.encode(texts[:1])
    before = sum(size * count for size, count in client.batches().items())
    with ThreadPoolExecutor(48) as pool:
        answers = list(pool.map(lambda text: client.embed([text])[0][0], texts))
        # Ids of different lengths share batches too.
        lengths = list(range(1, 17))
        list(pool.map(lambda length: client.embed([first[1:2] * length]), lengths))
    assert np.abs(np.array(answers) - model.embed(model.word_pieces.encode(texts))).max() < 1e-6
    batches = client.batches()
    rows = sum(size * count for size, count in batches.items()) - before
    assert rows == len(texts) + len(lengths)
    assert max(batches) >= 4, f"batches by size: {batches}"


def test_short_texts_of_a_batch_with_long_ones_are_answered_first(
    client: Client, model: EmbeddingModel
) -> None:
    """Some requests of a batch are answered while Triton still waits for the rest of it."""
    texts = [text for number in range(16) for text in (f"short {number}", f"long {number} " * 100)]
    ended: list[str] = []

    def ask(text: str) -> Any:
        found = client.embed([text])[0][0]
        ended.append(text)
        return found

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(ask, texts))
    assert np.abs(np.array(answers) - model.embed(model.word_pieces.encode(texts))).max() < 1e-5
    places = {kind: sum(ended.index(text) for text in texts if text.startswith(kind)) for kind in ("s", "l")}
    assert places["s"] < places["l"]
    assert sum(size * count for size, count in client.batches().items()) >= len(texts)


def test_a_refusal_keeps_its_kind_and_affects_no_other_request(client: Client) -> None:
    def ask(rows: list[Any]) -> InflightError | None:
        try:
            client.embed(rows)
        except grpc.RpcError as error:
            call: Any = error
            return InflightError.from_text(call.details())
        return None

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, [["fine"], [b"\xff"]] * 8))
    assert answers[::2] == [None] * 8
    for refusal in answers[1::2]:
        assert refusal is not None
        assert refusal.kind is ErrorKind.INVALID_REQUEST
        assert refusal.message == "TEXT is not valid UTF-8 (byte 0)"
