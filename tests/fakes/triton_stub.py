"""Triton's Python stub as a model sees it: the `triton_python_backend_utils` module, requests and senders."""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

FINAL = 1


class Tensor:
    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self._array


class TritonError:
    INTERNAL, INVALID_ARG, UNSUPPORTED, UNAVAILABLE, NOT_FOUND, CANCELLED = range(6)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class MetricFamily:
    GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
    alive: ClassVar[list[MetricFamily]] = []

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.metrics: list[Metric] = []
        MetricFamily.alive.append(self)

    def Metric(self, labels: Mapping[str, str], buckets: list[float] | None = None) -> Metric:
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        metric = Metric(self.kind, dict(labels), buckets or [])
        self.metrics.append(metric)
        return metric


@dataclass
class Metric:
    kind: str
    labels: dict[str, str]
    buckets: list[float]
    value: float = 0.0
    observations: list[float] = field(default_factory=list)

    def set(self, value: float) -> None:
        assert self.kind == MetricFamily.GAUGE
        self.value = value

    def increment(self, value: float) -> None:
        assert self.kind == MetricFamily.COUNTER
        assert value >= 0
        self.value += value

    def observe(self, value: float) -> None:
        assert self.kind == MetricFamily.HISTOGRAM
        self.observations.append(value)


def metric(family: str, **labels: str) -> Metric:
    """One metric of the newest family of that name."""
    metrics = next(each for each in reversed(MetricFamily.alive) if each.name == family).metrics
    (found,) = (each for each in metrics if labels.items() <= each.labels.items())
    return found


def utils_module() -> types.ModuleType:
    module = types.ModuleType("triton_python_backend_utils")
    module.__dict__.update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        MetricFamily=MetricFamily,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    )
    return module


@dataclass
class Sender:
    """Notes what a model sends; `fail_at` makes the n-th send raise, as a full shared memory would."""

    fail_at: int | None = None
    responses: list[InferenceResponse] = field(default_factory=list)
    finals: int = 0
    is_caller_gone: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    attempts: int = 0
    questions: int = 0
    needs_response: bool = False  # as of a model that is not decoupled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self.attempts += 1
        if self.attempts == self.fail_at:
            raise RuntimeError("no shared memory left")
        assert self.finals == 0, "a response after the final one"
        if self.needs_response and flags == FINAL and response is None and not self.responses:
            raise RuntimeError("Non-decoupled model cannot send complete final before sending a response")
        if response is not None:
            self.responses.append(response)
        if flags == FINAL:
            self.finals += 1
            self.ended.set()

    def is_cancelled(self) -> bool:
        assert self.finals == 0, "Triton has freed what this question is about"
        self.questions += 1
        return self.is_caller_gone

    @property
    def ids(self) -> list[int]:
        arrays = [response.outputs["output_ids"] for response in self.responses if response.error is None]
        return [token_id for array in arrays for token_id in array.reshape(-1).tolist()]

    @property
    def error(self) -> str | None:
        return next((r.error.message for r in self.responses if r.error), None)


@dataclass
class Request:
    arrays: Mapping[str, np.ndarray[Any, Any]]
    id: str = ""
    request_parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("output_ids", "sequence_length", "finish_reason")
    sender: Sender = field(default_factory=Sender)

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.arrays.items()]

    def request_id(self) -> str:
        return self.id

    def parameters(self) -> str:
        return json.dumps(self.request_parameters)

    def requested_output_names(self) -> tuple[str, ...]:
        return self.outputs

    def get_response_sender(self) -> Sender:
        return self.sender


def arguments(
    model: str, parameters: Mapping[str, str], decoupled: bool = True, max_queue_size: int = 0
) -> dict[str, str]:
    """What Triton hands to `initialize`."""
    config = {
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        "model_transaction_policy": {"decoupled": decoupled},
        "dynamic_batching": {"default_queue_policy": {"max_queue_size": max_queue_size}},
    }
    return {"model_config": json.dumps(config), "model_name": model, "model_version": "1"}
