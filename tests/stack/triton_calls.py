"""Requests straight to Triton over gRPC, for the tests that look below the router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from python_backend.wire import codec
from python_backend.wire.tensors import CONTRACTS


def build_request(
    model: str,
    request_id: str,
    inputs: Mapping[str, Any],
    shapes: Mapping[str, list[int]] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in inputs.items():
        values = value if isinstance(value, list) else [value]
        dtype = CONTRACTS[model].input(name).dtype
        shape = (shapes or {}).get(name, [1, len(values)])
        request.inputs.add(name=name, datatype=dtype, shape=shape)
        request.raw_input_contents.append(codec.encode(dtype, values))
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, text in (parameters or {}).items():
        request.parameters[name].string_param = text
    return request


def outputs(response: service_pb2.ModelInferResponse) -> dict[str, list[Any]]:
    return {
        tensor.name: codec.decode(tensor.datatype, raw)
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


class TritonCalls:
    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(url)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> TritonCalls:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._channel.close(None)

    async def stream(self, request: service_pb2.ModelInferRequest) -> AsyncIterator[dict[str, list[Any]]]:
        """The outputs of each response, until the final one."""
        async for message in self.stub.ModelStreamInfer(iter([request])):
            if message.error_message:
                raise RuntimeError(message.error_message)
            yield outputs(message.infer_response)
            if message.infer_response.parameters["triton_final_response"].bool_param:
                return

    async def generate_ids(self, request_id: str, prompt_ids: list[int], count: int) -> list[int]:
        """Greedy ids from the engine itself, streamed; `count` of them, end token or not."""
        inputs = {
            "input_ids": prompt_ids,
            "input_lengths": len(prompt_ids),
            "request_output_len": count,
            "streaming": True,
        }
        ids: list[int] = []
        async for response in self.stream(build_request("tensorrt_llm", request_id, inputs)):
            ids += response.get("output_ids", [])
        return ids

    async def generate(
        self, request_id: str, prompt_ids: list[int], count: int, parameters: Mapping[str, str], **more: Any
    ) -> dict[str, list[Any]]:
        """The outputs of an answer that comes in one piece, with what the engine measured of it."""
        inputs = {
            "input_ids": prompt_ids,
            "input_lengths": len(prompt_ids),
            "request_output_len": count,
            "exclude_input_in_output": True,
            "return_perf_metrics": True,
            **more,
        }
        request = build_request("tensorrt_llm", request_id, inputs, parameters=parameters)
        (answer,) = [response async for response in self.stream(request) if response]
        return answer

    async def configure(self, **limits: int) -> None:
        """New limits for the engine's steps."""
        inputs = {"input_ids": [0], "input_lengths": 1, "request_output_len": 1}
        parameters = {"inflight_configure": json.dumps(limits)}
        request = build_request("tensorrt_llm", "configure", inputs, parameters=parameters)
        async for _ in self.stream(request):
            pass

    async def generate_all(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        return await asyncio.gather(
            *(self.generate_ids(f"all-{index}", prompt, count) for index, prompt in enumerate(prompts))
        )
