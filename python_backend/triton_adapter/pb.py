"""Triton's `triton_python_backend_utils`, typed: the module exists only inside a Triton stub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from python_backend.wire.errors import InflightError

Array = npt.NDArray[Any]


class PbTensor(Protocol):
    def name(self) -> str: ...
    def as_numpy(self) -> Array: ...


class ResponseSender(Protocol):
    def send(self, response: Any = None, flags: int = 0) -> None: ...
    def is_cancelled(self) -> bool: ...


class PbRequest(Protocol):
    def inputs(self) -> Sequence[PbTensor]: ...
    def request_id(self) -> str: ...
    def parameters(self) -> str: ...
    def requested_output_names(self) -> Sequence[str]: ...
    def get_response_sender(self) -> ResponseSender: ...


def utils() -> Any:
    import triton_python_backend_utils

    return triton_python_backend_utils


def model_parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The `parameters` of the model's config.pbtxt, as plain strings."""
    config = json.loads(args["model_config"])
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


def is_decoupled(args: Mapping[str, str]) -> bool:
    """Whether the model's config lets it answer a request with any number of responses."""
    policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
    return bool(policy.get("decoupled", False))


def max_queue_size(args: Mapping[str, str]) -> int:
    """How many requests may wait, by the model's config; 0: any number."""
    batching = json.loads(args["model_config"]).get("dynamic_batching") or {}
    return int((batching.get("default_queue_policy") or {}).get("max_queue_size", 0))


def request_parameters(request: PbRequest) -> dict[str, Any]:
    text = request.parameters()
    parameters: dict[str, Any] = json.loads(text) if text else {}
    return parameters


def arrays(request: PbRequest) -> dict[str, Array]:
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def tensor(name: str, values: Any, dtype: Any) -> Any:
    return utils().Tensor(name, np.asarray(values, dtype=dtype))


def error(failure: InflightError) -> Any:
    pb_utils = utils()
    code = getattr(pb_utils.TritonError, failure.kind.triton_code, pb_utils.TritonError.INTERNAL)
    return pb_utils.TritonError(failure.to_text(), code)
