"""Server, models and statistics, in the fields of Triton's own descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from python_backend.wire.tensors import Tensor
    from router.kserve.offers import Offer
    from router.kserve.statistics import Tally

SERVER_NAME = "inflight"
SERVER_VERSION = "2"  # of the protocol
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "parameters", "statistics")
_TYPES = {"BYTES": "TYPE_STRING"}


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
        "input": [
            {
                "name": tensor.name,
                "data_type": _type(tensor),
                "dims": list(tensor.dims),
                "optional": tensor.optional,
            }
            for tensor in offer.inputs.values()
        ],
        "output": [
            {"name": tensor.name, "data_type": _type(tensor), "dims": list(tensor.dims)}
            for tensor in offer.outputs.values()
        ],
        "model_transaction_policy": {"decoupled": offer.is_decoupled},
    }


def _type(tensor: Tensor) -> str:
    return _TYPES.get(tensor.dtype, f"TYPE_{tensor.dtype}")


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
