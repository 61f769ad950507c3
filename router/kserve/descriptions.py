"""Server, models and statistics in the fields of Triton's own descriptions, and what is not offered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from python_backend.wire.tensors import Tensor
    from router.core.record import Record
    from router.kserve.offers import Offer

SERVER_NAME = "inflight"
SERVER_VERSION = "2"  # of the protocol
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "parameters", "statistics")


def server() -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def metadata(offer: Offer, name: str, versions: Sequence[str]) -> dict[str, Any]:
    rows = (-1,) if offer.max_batch_size else ()
    return {
        "name": name,
        "versions": versions,
        "platform": offer.platform,
        "inputs": [_tensor(tensor, rows) for tensor in offer.inputs.values()],
        "outputs": [_tensor(tensor, rows) for tensor in offer.outputs.values()],
    }


def _tensor(tensor: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.dtype, "shape": [*rows, *tensor.dims]}


def config(offer: Offer, name: str) -> dict[str, Any]:
    """What a client can use of a model's config; how it is computed is not its business."""
    return {
        "name": name,
        "platform": offer.platform,
        "max_batch_size": offer.max_batch_size,
        "input": [{**_configured(each), "optional": each.optional} for each in offer.inputs.values()],
        "output": [_configured(each) for each in offer.outputs.values()],
        "model_transaction_policy": {"decoupled": offer.is_decoupled},
    }


def _configured(tensor: Tensor) -> dict[str, Any]:
    kind = "STRING" if tensor.dtype == "BYTES" else tensor.dtype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": list(tensor.dims)}


def statistics(found: Iterable[tuple[str, str, Tally]]) -> dict[str, Any]:
    """Of each the name, the version and what is known of it."""
    return {"model_stats": [_statistics(name, version, tally) for name, version, tally in found]}


def _statistics(name: str, version: str, tally: Tally) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "last_inference": tally.last_ms,
        "inference_count": tally.finished,
        "execution_count": tally.finished,
        "inference_stats": {
            "success": {"count": tally.finished, "ns": tally.finished_ns},
            "fail": {"count": tally.failed, "ns": tally.failed_ns},
        },
    }


def index(found: Iterable[tuple[str, str, bool]]) -> list[dict[str, str]]:
    """Of each the name, the version and whether it is ready."""
    return [
        {"name": name, "version": version, "state": "READY" if ready else "UNAVAILABLE", "reason": ""}
        for name, version, ready in found
    ]


_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Tally:
    """Since the router's start; a cancelled request counts as failed. `last_ms` is on the wall clock."""

    finished: int = 0
    finished_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    last_ms: int = 0


class Statistics:
    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def add(self, record: Record, finished: bool, now_s: float) -> None:
        """One request that has ended."""
        tally = self._tallies.setdefault((record.tenant, record.model, record.model_version), Tally())
        took_ns = int((now_s - record.arrived_s) * _NS_PER_S)
        if finished:
            tally.finished += 1
            tally.finished_ns += took_ns
        else:
            tally.failed += 1
            tally.failed_ns += took_ns
        tally.last_ms = int(time.time() * 1000)

    def of(self, tenant: str, model: str, version: str) -> Tally:
        return self._tallies.get((tenant, model, version), Tally())


_GET_POST = ("GET", "POST")
SHARED_MEMORY = "shared memory is not offered: send the tensors themselves"
REPOSITORY = "models are loaded and unloaded by the operator, not by clients"
TRACING = "tracing is the operator's to set"
LOGGING = "logging is the operator's to set"

# Methods, path, reason.
NOT_OFFERED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("POST",), "/v2/repository/models/{name}/load", REPOSITORY),
    (("POST",), "/v2/repository/models/{name}/unload", REPOSITORY),
    (_GET_POST, "/v2/trace/setting", TRACING),
    (_GET_POST, "/v2/models/{name}/trace/setting", TRACING),
    (_GET_POST, "/v2/logging", LOGGING),
    *(
        (methods, f"/v2/{kind}sharedmemory{rest}", SHARED_MEMORY)
        for kind in ("system", "cuda")
        for methods, rest in (
            (("GET",), "/status"),
            (("GET",), "/region/{region}/status"),
            (("POST",), "/region/{region}/register"),
            (("POST",), "/unregister"),
            (("POST",), "/region/{region}/unregister"),
        )
    ),
)

# Methods of gRPC, and the reason.
NOT_OFFERED_METHODS = {
    "RepositoryModelLoad": REPOSITORY,
    "RepositoryModelUnload": REPOSITORY,
    "TraceSetting": TRACING,
    "LogSettings": LOGGING,
    **{
        f"{kind}SharedMemory{act}": SHARED_MEMORY
        for kind in ("System", "Cuda")
        for act in ("Status", "Register", "Unregister")
    },
}
