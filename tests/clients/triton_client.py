"""Triton's own Python clients, over HTTP and gRPC."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["tritonclient[all]==2.73.0", "grpcio-health-checking==1.81.1", "grpcio-reflection==1.81.1"]
# ///

from __future__ import annotations

import queue
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.clients.uses import STACK, check, main, use


def headers() -> dict[str, str]:
    """Its own for each call: the HTTP client writes into them."""
    return {"authorization": f"Bearer {STACK.key}"}


def tensor(kind: Any, name: str, dtype: str, value: Any) -> Any:
    numpy_type = {"BYTES": np.object_, "INT32": np.int32, "BOOL": np.bool_}[dtype]
    made = kind.InferInput(name, [1, 1], dtype)
    made.set_data_from_numpy(np.array([[value]], dtype=numpy_type))
    return made


def prompt(kind: Any, streamed: bool = False) -> list[Any]:
    return [
        tensor(kind, "text_input", "BYTES", b"The capital of France is"),
        tensor(kind, "max_tokens", "INT32", 6),
        tensor(kind, "exclude_input_in_output", "BOOL", True),
        tensor(kind, "stream", "BOOL", streamed),
    ]


@use("live, ready, metadata, config, index, over both")
def descriptions() -> None:
    for kind, address in ((by_grpc, STACK.grpc), (by_http, STACK.address)):
        with kind.InferenceServerClient(address) as client:
            check(client.is_server_live() and client.is_server_ready(), "not ready")
            check(client.is_model_ready("ensemble", headers=headers()), "the ensemble is not ready")
            check(not client.is_model_ready("nope", headers=headers()), "nope is ready")
            check(client.get_model_metadata("ensemble", headers=headers()), "no metadata")
            check(client.get_model_config("ensemble", headers=headers()), "no config")
            check(client.get_model_repository_index(headers=headers()), "no index")


@use("infer, over both")
def infer() -> None:
    for kind, address in ((by_grpc, STACK.grpc), (by_http, STACK.address)):
        with kind.InferenceServerClient(address) as client:
            answer = client.infer("ensemble", prompt(kind), headers=headers())
            check(b"Paris" in answer.as_numpy("text_output")[0], answer.as_numpy("text_output"))


@use("compressed requests, over both")
def compressed() -> None:
    with by_grpc.InferenceServerClient(STACK.grpc) as client:
        for algorithm in ("gzip", "deflate"):
            answer = client.infer(
                "ensemble", prompt(by_grpc), headers=headers(), compression_algorithm=algorithm
            )
            check(b"Paris" in answer.as_numpy("text_output")[0], algorithm)
    with by_http.InferenceServerClient(STACK.address) as client:
        for algorithm in ("gzip", "deflate"):
            answer = client.infer(
                "ensemble",
                prompt(by_http),
                headers=headers(),
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            check(b"Paris" in answer.as_numpy("text_output")[0], algorithm)


@use("priority and timeout")
def priority_and_timeout() -> None:
    with by_grpc.InferenceServerClient(STACK.grpc) as client:
        answer = client.infer("ensemble", prompt(by_grpc), headers=headers(), priority=1, timeout=60_000_000)
        check(answer.as_numpy("text_output")[0], answer)


@use("sampling parameters, over both")
def sampling_parameters() -> None:
    """By the first only the likeliest token may come; by the second the full stop ends the answer."""
    given = {"inflight_min_p": "1.0", "inflight_stop_token_ids": "[30]", "inflight_special_tokens": True}
    for module, address in ((by_http, STACK.address), (by_grpc, STACK.grpc)):
        with module.InferenceServerClient(address) as client:
            answer = client.infer("ensemble", prompt(module), headers=headers(), parameters=given)
            text = answer.as_numpy("text_output")[0]
            check(text == b" Paris.", text)


@use("stream")
def stream() -> None:
    results: queue.Queue[Any] = queue.Queue()
    with by_grpc.InferenceServerClient(STACK.grpc) as client:
        client.start_stream(lambda result, error: results.put(error or result), headers=headers())
        client.async_stream_infer("ensemble", prompt(by_grpc, True), enable_empty_final_response=True)
        text = b""
        while True:
            result = results.get(timeout=60)
            check(not isinstance(result, Exception), result)
            piece = result.as_numpy("text_output")
            text += b"" if piece is None else b"".join(piece.flatten())
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    check(b"Paris" in text, text)


@use("embeddings and statistics")
def embeddings() -> None:
    with by_grpc.InferenceServerClient(STACK.grpc) as client:
        found = client.infer("embeddings", [tensor(by_grpc, "TEXT", "BYTES", b"one")], headers=headers())
        check(abs(np.linalg.norm(found.as_numpy("EMBEDDING")) - 1) < 1e-3, found)
        (told,) = client.get_inference_statistics("embeddings", headers=headers()).model_stats
        counts = {part: getattr(told.inference_stats, part).count for part in ("success", "queue")}
        check(counts["success"] == counts["queue"] > 0, counts)


@use("gRPC's health service and reflection")
def standard_services() -> None:
    with grpc.insecure_channel(STACK.grpc) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        check(answer.status == health_pb2.HealthCheckResponse.SERVING, answer)
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        check("inference.GRPCInferenceService" in services, services)


if __name__ == "__main__":
    main()
