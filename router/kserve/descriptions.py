"""Server and models in the fields of Triton's own descriptions, and what is not offered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from python_backend.wire.tensors import CONTRACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from python_backend.wire.ensemble_steps import Step
    from python_backend.wire.tensors import Tensor
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
    described = _config(
        name, offer.inputs.values(), offer.outputs.values(), offer.max_batch_size, offer.is_decoupled
    )
    if offer.steps:
        steps = [_scheduled(each, step) for each, step in offer.steps.items()]
        described["ensemble_scheduling"] = {"step": steps}
    return {**described, "platform": offer.platform}


def step_config(step: Step, name: str, max_batch_size: int) -> dict[str, Any]:
    """Of a model inside another one."""
    contract = CONTRACTS[step.model]
    return _config(name, contract.inputs, contract.outputs, max_batch_size, step.is_decoupled)


def _config(
    name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor], max_batch_size: int, is_decoupled: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "max_batch_size": max_batch_size,
        "input": [{**_configured(each), "optional": each.optional} for each in inputs],
        "output": [_configured(each) for each in outputs],
        "model_transaction_policy": {"decoupled": is_decoupled},
    }


def _scheduled(name: str, step: Step) -> dict[str, Any]:
    maps = {"input_map": dict(step.input_map), "output_map": dict(step.output_map)}
    return {"model_name": name, "model_version": -1, **maps}


def _configured(tensor: Tensor) -> dict[str, Any]:
    kind = "STRING" if tensor.dtype == "BYTES" else tensor.dtype
    return {"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": list(tensor.dims)}


def index(found: Iterable[tuple[str, str, bool]]) -> list[dict[str, str]]:
    """Of each the name, the version and whether it is ready."""
    return [
        {"name": name, "version": version, "state": "READY" if ready else "UNAVAILABLE", "reason": ""}
        for name, version, ready in found
    ]


_GET_POST = ("GET", "POST")
SHARED_MEMORY = "shared memory is not supported: send the tensors themselves"
REPOSITORY = "models are loaded and unloaded by the operator, not by clients"
TRACING = "tracing is configured by the operator"
LOGGING = "logging is configured by the operator"

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
