"""Stands in for a Triton whose models gather batches: it counts, and is loaded with other queue delays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import Parse
from tritonclient.grpc import model_config_pb2, service_pb2

from router.triton.control import ControlError, TritonControl
from router.triton.server import TritonServer

_NS_PER_MS = 1_000_000


@dataclass
class GatheringModel:
    """A batch of n rows takes base_ms + row_ms n; where nothing `joins`, each request is a batch."""

    base_ms: float = 4.0
    row_ms: float = 0.5
    joins: bool = True
    max_batch: int = 64
    own_delay_us: int = 0
    is_decoupled: bool = False
    gathers: bool = True
    is_on_gpu: bool = False
    load_error: str = ""
    loads: int = 0
    is_deaf: bool = False  # loads, and keeps what it has
    config: Any = None
    statistics: Any = field(default_factory=service_pb2.ModelStatistics)

    def __post_init__(self) -> None:
        self.config = model_config_pb2.ModelConfig(name="m", max_batch_size=self.max_batch)
        self.config.model_transaction_policy.decoupled = self.is_decoupled
        kind = model_config_pb2.ModelInstanceGroup
        self.config.instance_group.add(count=1, kind=kind.KIND_GPU if self.is_on_gpu else kind.KIND_CPU)
        if self.gathers:
            self.config.dynamic_batching.preferred_batch_size.append(self.max_batch)
            self.config.dynamic_batching.max_queue_delay_microseconds = self.own_delay_us

    @property
    def delay_us(self) -> int:
        return int(self.config.dynamic_batching.max_queue_delay_microseconds)

    def serve(self, requests: int, per_s: float) -> None:
        """So many requests of one row, as they come."""
        joined = max(1, min(self.max_batch, round(1 + per_s * self.delay_us / 1e6))) if self.joins else 1
        took_ns = int((self.base_ms + self.row_ms * joined) * _NS_PER_MS)
        batches, stats = requests // joined, self.statistics
        stats.inference_count += batches * joined
        stats.execution_count += batches
        stats.inference_stats.success.count += batches * joined
        stats.inference_stats.success.ns += batches * joined * (took_ns + self.delay_us * 1000)
        stats.inference_stats.queue.ns += batches * joined * self.delay_us * 1000
        stats.inference_stats.compute_infer.ns += batches * joined * took_ns
        found = next((each for each in stats.batch_stats if each.batch_size == joined), None)
        found = found or stats.batch_stats.add(batch_size=joined)
        found.compute_infer.count += batches
        found.compute_infer.ns += batches * took_ns


class GatheringControl(TritonControl):
    def __init__(self, models: dict[str, GatheringModel], secret: str = "secret") -> None:
        super().__init__("127.0.0.1:1", secret)
        self.models = models
        self.is_away = False

    async def config(self, model: str) -> Any:
        copy = model_config_pb2.ModelConfig()
        copy.CopyFrom(self._model(model).config)
        return copy

    async def statistics(self, model: str) -> Any:
        return service_pb2.ModelStatisticsResponse(model_stats=[self._model(model).statistics])

    async def load(self, model: str, config_json: str | None = None) -> None:
        """As Triton: a new copy counts from 0, and what cannot be loaded leaves the old one."""
        found = self._model(model)
        found.loads += 1
        if found.load_error:
            raise ControlError(found.load_error)
        assert config_json is not None
        if not found.is_deaf:
            found.config = Parse(config_json, model_config_pb2.ModelConfig())
            found.statistics = service_pb2.ModelStatistics()

    def _model(self, model: str) -> GatheringModel:
        if self.is_away or model not in self.models:
            raise ControlError("connection refused" if self.is_away else f"unknown model '{model}'")
        return self.models[model]


class GatheringServer(TritonServer):
    def __init__(self, name: str, models: dict[str, GatheringModel], secret: str = "secret") -> None:
        super().__init__(name, "127.0.0.1:1", secret)
        self.control: GatheringControl = GatheringControl(models, secret)
        self.models = models
