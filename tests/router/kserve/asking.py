"""Inputs for Triton's own clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from tests.fakes.triton_server import FakeTriton

NUMPY = {"BYTES": np.object_, "INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64}


def array(dtype: str, values: Any) -> Any:
    return np.array(values, dtype=NUMPY[dtype])


def grpc_input(name: str, dtype: str, values: Any) -> grpcclient.InferInput:
    data = array(dtype, values)
    tensor = grpcclient.InferInput(name, list(data.shape), dtype)
    tensor.set_data_from_numpy(data)
    return tensor


def http_input(name: str, dtype: str, values: Any, binary: bool = True) -> httpclient.InferInput:
    data = array(dtype, values)
    tensor = httpclient.InferInput(name, list(data.shape), dtype)
    tensor.set_data_from_numpy(data, binary_data=binary)
    return tensor


def prompt_inputs(make: Any, text: str = "hi", max_tokens: int = 4, **more: tuple[str, Any]) -> list[Any]:
    return [
        make("text_input", "BYTES", [[text.encode()]]),
        make("max_tokens", "INT32", [[max_tokens]]),
        *(make(name, dtype, values) for name, (dtype, values) in more.items()),
    ]


def received(triton: FakeTriton, number: int = 0) -> dict[str, list[Any]]:
    """The inputs of a request as the fake Triton got them."""
    request = triton.requests[number]
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    return {tensor.name: codec.decode(tensor.datatype, raw) for tensor, raw in pairs}


def outcome(act: Callable[[], Any]) -> Any:
    """What it gives, or the clear error that it raises; any other error is a defect."""
    try:
        return act()
    except InflightError as error:
        return error


def is_clear(found: Any, kind: ErrorKind = ErrorKind.INVALID_REQUEST) -> bool:
    return not isinstance(found, InflightError) or (found.kind is kind and found.message.isprintable())
