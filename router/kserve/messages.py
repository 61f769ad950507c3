"""Triton's protobufs for requests and answers, read and written field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from router.kserve.offers import understand
from router.kserve.tensors import Sent, refuse, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.kserve.answers import Output
    from router.kserve.offers import Asked, Offers

FINAL = "triton_final_response"
_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def read_request(offers: Offers, record: Record, request: Any) -> Asked:
    # Looked at before anything is copied: a message may hold a million of them.
    for what, given, most in (("inputs", request.inputs, 128), ("outputs", request.outputs, 128)):
        if len(given) > most:
            raise refuse(f"there are {len(given)} {what}; allowed: up to {most}")
    for output in request.outputs:
        if output.parameters:
            name = next(iter(output.parameters))
            raise refuse(f"output '{shown(output.name)}': the parameter '{shown(name)}' is not offered")
    parameters = {name: _plain(name, value) for name, value in request.parameters.items()}
    names = [output.name for output in request.outputs]
    inputs = _inputs(request)
    offer = offers.choose(request.model_name, request.model_version, record)
    return understand(offer, request.model_name, request.id, inputs, names, parameters)


def _plain(name: str, parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise refuse(f"parameter '{shown(name)}' has no value", shown(name))
    return getattr(parameter, kind)


def _inputs(request: Any) -> list[Sent]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise refuse(f"there are {len(request.inputs)} inputs and {len(raw)} raw_input_contents")
    inputs = []
    for number, given in enumerate(request.inputs):
        if given.parameters:
            name = next(iter(given.parameters))
            why = "shared memory" if name.startswith("shared_memory") else f"the parameter '{shown(name)}'"
            raise refuse(f"input '{shown(given.name)}': {why} is not offered: send the tensor itself")
        if raw and given.HasField("contents"):
            raise refuse(f"input '{shown(given.name)}' has both contents and raw_input_contents")
        data = raw[number] if raw else _contents(given)
        inputs.append(Sent(given.name, given.datatype, given.shape, data))
    return inputs


def _contents(given: Any) -> list[Any]:
    field = _CONTENTS.get(given.datatype)
    for other, values in given.contents.ListFields():
        if other.name != field:
            hint = f"its type {shown(given.datatype)} goes in {field or 'raw_input_contents'}"
            raise refuse(f"input '{shown(given.name)}' has {len(values)} values in {other.name}; {hint}")
    return [] if field is None else list(getattr(given.contents, field))


def write_response(asked: Asked, outputs: Sequence[Output]) -> Any:
    response = service_pb2.ModelInferResponse(
        model_name=asked.name, model_version=asked.version, id=asked.client_id
    )
    for output in outputs:
        response.outputs.add(name=output.name, datatype=output.dtype, shape=output.shape)
        response.raw_output_contents.append(output.raw)
    return response
