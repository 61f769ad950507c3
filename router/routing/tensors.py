"""A model that takes and gives the tensors its config.pbtxt names, whatever they mean."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from python_backend.wire.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from router.core.generation import RawGeneration
    from router.core.manifest import Manifest


class TensorPort(Protocol):
    """The model itself; a request names no model, which is the port's to fill in."""

    async def infer(self, request: Any, timeout_s: float) -> Any:
        """One request, one response. Raises InflightError; a cancelled call leaves nothing behind."""

    def stream(self, request: Any) -> RawGeneration:
        """One request, any number of responses; starts nothing until the first is asked for."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""


class TensorContract(NamedTuple):
    """What a config says to clients; dims are without the rows that a `max_batch_size` above 0 puts first."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    max_batch_size: int
    is_decoupled: bool


@dataclass(frozen=True, slots=True)
class ServedTensors:
    """A release of such a model."""

    name: str
    tensors: TensorPort
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    max_batch_size: int = 0
    is_decoupled: bool = False
    version: int = 1
    triton_name: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))

    async def ready(self) -> bool:
        return await self.tensors.ready()


def served_tensors(manifest: Manifest, contract: TensorContract, tensors: TensorPort) -> ServedTensors:
    return ServedTensors(
        manifest.model, tensors, *contract, version=manifest.version, triton_name=manifest.entry
    )


def read_config(path: Path) -> TensorContract:
    """Raises ValueError for a config that no client could use, naming what is wrong with it."""
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    return tensors_of(config)


def tensors_of(config: Any) -> TensorContract:
    """By a ModelConfig, as its author wrote it or as Triton completed it."""
    if config.HasField("sequence_batching"):
        raise ValueError("sequence_batching: models that keep state between requests are not served")
    inputs = _tensors(config.input, "input")
    outputs = _tensors(config.output, "output")
    decoupled = bool(config.model_transaction_policy.decoupled)
    return TensorContract(inputs, outputs, int(config.max_batch_size), decoupled)


def _tensors(given: Iterable[Any], what: str) -> dict[str, Tensor]:
    found = {each.name: _tensor(each, what) for each in given}
    if not found:
        raise ValueError(f"the config names no {what}: each {what} with its type and dims has to be in it")
    return found


def _tensor(given: Any, what: str) -> Tensor:
    if given.is_shape_tensor:
        raise ValueError(f"{what} '{given.name}': shape tensors are not served")
    kind = model_config_pb2.DataType.Name(given.data_type).removeprefix("TYPE_")
    if kind == "INVALID" or not given.name:
        raise ValueError(f"{what} '{given.name}': a name and a data_type are needed")
    dtype = "BYTES" if kind == "STRING" else kind
    return Tensor(given.name, dtype, tuple(given.dims), optional=bool(getattr(given, "optional", False)))
