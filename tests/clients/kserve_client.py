"""KServe's Python SDK, over REST and gRPC."""

# /// script
# requires-python = ">=3.10,<3.14"
# dependencies = ["kserve==0.21.0"]
# ///

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    InferResponse,
    RESTConfig,
)

from tests.clients.uses import STACK, check, main, use


def request(binary: bool) -> InferRequest:
    def tensor(name: str, dtype: str, array: Any) -> InferInput:
        made = InferInput(name, list(array.shape), dtype)
        made.set_data_from_numpy(array, binary_data=binary)
        return made

    inputs = [
        tensor("text_input", "BYTES", np.array([["The capital of France is"]], dtype=np.object_)),
        tensor("max_tokens", "INT32", np.array([[6]], dtype=np.int32)),
    ]
    return InferRequest(model_name="ensemble", infer_inputs=inputs)


def text_of(answer: InferResponse) -> str:
    (output,) = [output for output in answer.outputs if output.name == "text_output"]
    return str(output.as_numpy().flatten()[0])


def rest() -> InferenceRESTClient:
    return InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))


@use("REST: live, ready")
def rest_ready() -> None:
    async def ask() -> tuple[bool, bool, bool]:
        client = rest()
        return (
            await client.is_server_live(STACK.url),
            await client.is_server_ready(STACK.url),
            await client.is_model_ready(STACK.url, "ensemble"),
        )

    check(asyncio.run(ask()) == (True, True, True), "not ready")


@use("REST: infer, as JSON and as bytes")
def rest_infer() -> None:
    async def ask(binary: bool) -> str:
        answer = await rest().infer(STACK.url, request(binary), model_name="ensemble")
        return text_of(answer)

    for binary in (False, True):
        found = asyncio.run(ask(binary))
        check("Paris" in found, found)


@use("gRPC: live, ready, infer")
def by_grpc() -> None:
    async def ask(binary: bool) -> str:
        async with InferenceGRPCClient(url=STACK.grpc) as client:
            check(await client.is_server_live() and await client.is_server_ready(), "not ready")
            check(await client.is_model_ready("ensemble"), "the ensemble is not ready")
            answer = await client.infer(infer_request=request(binary))
            return text_of(answer)

    for binary in (False, True):
        found = asyncio.run(ask(binary))
        check("Paris" in found, found)


if __name__ == "__main__":
    main()
