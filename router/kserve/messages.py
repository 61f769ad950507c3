"""Requests and answers as they are sent: bodies of HTTP, and Triton's protobufs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from router.http import sse
from router.kserve.answers import Output
from router.kserve.offers import Asked, Offer, understand
from router.kserve.tensors import MAX_ELEMENTS, Sent, Tensors, refuse, shown
from router.request.decoding import decode
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from python_backend.wire.tensors import Tensor

HEADER_LENGTH = "inference-header-content-length"
# As JSON a number takes a hundred times as long as its bytes, and everybody else waits.
MAX_JSON_ELEMENTS = 1 << 16
_MAX_DEPTH = 8
_MAX_DIGITS = 12


class InputBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] = {}


class OutputBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any] = {}


class InferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inputs: list[InputBody]
    outputs: list[OutputBody] = []
    id: str = ""
    parameters: dict[str, Any] = {}
    model_name: str = ""  # as KServe's own client repeats it


_decoder = msgspec.json.Decoder(InferBody)


def read_body(body: bytes, header_length: str | None) -> tuple[InferBody, list[Sent]]:
    """The JSON part, and all inputs with what belongs to them of the bytes behind it."""
    end = _header_end(body, header_length)
    header = decode(_decoder, body[:end], has_numbers=True)
    inputs = []
    for given in header.inputs:
        size = _binary_size(given)
        if size is None:
            data: bytes | list[Any] = flat(given.name, given.data)
        else:
            if given.data is not None:
                raise refuse(f"input '{shown(given.name)}' has both data and binary_data_size", given.name)
            if end + size > len(body):
                raise refuse(f"input '{shown(given.name)}' extends past the end of the body", given.name)
            data = body[end : end + size]
            end += size
        inputs.append(Sent(given.name, given.datatype, given.shape, data))
    if end != len(body):
        raise refuse(f"{len(body) - end} trailing bytes in the body belong to no input")
    return header, inputs


def _header_end(body: bytes, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) <= _MAX_DIGITS
    if not is_number or int(header_length) > len(body):
        raise refuse("Inference-Header-Content-Length: allowed is the size of the JSON part in bytes")
    return int(header_length)


def _binary_size(given: InputBody) -> int | None:
    size: int | None = None
    for name, value in given.parameters.items():
        if name.startswith("shared_memory"):
            raise refuse("shared memory is not supported: send the tensor itself", name)
        if name != "binary_data_size":
            raise refuse(f"input '{shown(given.name)}' has an unknown parameter '{shown(name)}'", name)
        if type(value) is not int or value < 0:
            raise refuse("binary_data_size: allowed are whole numbers from 0", name)
        size = value
    return size


def flat(name: str, given: Any) -> list[Any]:
    """The elements of JSON lists in lists, in order."""
    if not isinstance(given, list):
        raise refuse(f"input '{shown(name)}': its data must be a list of elements", name)
    data: list[Any] = given
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if kinds != {list}:
            raise refuse(f"input '{shown(name)}': its lists have different depths", name)
        data = [element for row in data for element in row]
        if len(data) > MAX_ELEMENTS:
            raise refuse(f"input '{shown(name)}': allowed are up to {MAX_ELEMENTS} elements", name)
    raise refuse(f"input '{shown(name)}': its lists are nested too deeply", name)


def binary_outputs(body: InferBody, by_default: bool) -> Collection[str] | None:
    """The names of the outputs that are wanted as bytes; None where all are."""
    names = set()
    for output in body.outputs:
        for name in output.parameters:
            if name != "binary_data":
                why = "shared memory" if name.startswith("shared_memory") else f"'{shown(name)}'"
                raise refuse(f"output '{shown(output.name)}': {why} is not supported; allowed is binary_data")
        wanted = output.parameters.get("binary_data", by_default)
        if not isinstance(wanted, bool):
            raise refuse("binary_data: allowed are true and false", "binary_data")
        if wanted:
            names.add(output.name)
    return None if by_default and not body.outputs else names


def render(
    asked: Asked, outputs: Sequence[Output], binary: Collection[str] | None
) -> tuple[bytes, int | None]:
    """The answer's body, and the length of its JSON part where bytes follow."""
    described: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for output in outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.dtype, "shape": output.shape}
        if binary is None or output.name in binary:
            entry["parameters"] = {"binary_data_size": len(output.raw)}
            tail.append(output.raw)
        else:
            entry["data"] = as_json(output)
        described.append(entry)
    head = msgspec.json.encode({**head_fields(asked), "outputs": described})
    return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def head_fields(asked: Asked) -> dict[str, Any]:
    named: Mapping[str, Any] = {"id": asked.client_id} if asked.client_id else {}
    return {**named, "model_name": asked.name, "model_version": asked.version}


def as_json(output: Output) -> list[Any]:
    if output.dtype == "BF16":
        raise refuse(f"output '{output.name}' is BF16: request it with binary_data", output.name)
    if output.count > MAX_JSON_ELEMENTS:
        raise refuse(
            f"output '{output.name}' has {output.count} elements; as JSON up to {MAX_JSON_ELEMENTS} are "
            "allowed: request it with binary_data",
            output.name,
        )
    return output.elements()


class GenerateBody(msgspec.Struct, frozen=True):
    """What most requests carry, for those who read the description; a model's other inputs are taken too."""

    text_input: str
    max_tokens: int
    stream: bool | None = None
    parameters: dict[str, Any] = {}
    id: str = ""


_fields_decoder = msgspec.json.Decoder(dict[str, Any])


def read_fields(body: bytes, known: Tensors, has_rows: bool = True) -> tuple[str, list[Sent], dict[str, Any]]:
    """The id, the inputs and the parameters: every field that no input is called after is one."""
    fields = decode(_fields_decoder, body, has_numbers=True)
    client_id = fields.pop("id", "")
    if not isinstance(client_id, str):
        raise refuse("id: allowed is a text", "id")
    nested = fields.pop("parameters", {})
    if not isinstance(nested, dict):
        raise refuse("parameters: allowed is an object", "parameters")
    for name in nested:
        if name in fields:
            raise refuse(f"'{shown(name)}' is given twice", name)
    inputs: list[Sent] = []
    parameters: dict[str, Any] = {}
    for name, value in (*fields.items(), *nested.items()):
        if name in known:
            inputs.append(_sent(known[name], value, has_rows))
        else:
            parameters[name] = value
    return client_id, inputs, parameters


def _sent(tensor: Tensor, value: Any, has_rows: bool) -> Sent:
    """One row, where there are any; a single value stands for a list of one."""
    elements = value if isinstance(value, list) else [value]
    if any(isinstance(element, (list, dict)) or element is None for element in elements):
        raise refuse(f"'{tensor.name}': allowed is a value, or a list of values", tensor.name)
    if len(tensor.dims) > 1:
        raise refuse(f"'{tensor.name}' can only be sent to /infer", tensor.name)
    shape = (1, len(elements)) if has_rows else (len(elements),)
    return Sent(tensor.name, tensor.dtype, shape, elements)


def render_fields(asked: Asked, outputs: Sequence[Output]) -> bytes:
    """One line, for every parser."""
    fields = head_fields(asked)
    for output in outputs:
        elements = as_json(output)
        fields[output.name] = elements[0] if len(elements) == 1 else elements
    return sse.one_line(msgspec.json.encode(fields))


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


def read_request(request: Any, offer: Offer) -> Asked:
    # Looked at before anything is copied: a message may hold a million of them.
    for what, given, most in (("inputs", request.inputs, 128), ("outputs", request.outputs, 128)):
        if len(given) > most:
            raise refuse(f"there are {len(given)} {what}; allowed: up to {most}")
    for output in request.outputs:
        if output.parameters:
            name = next(iter(output.parameters))
            raise refuse(f"output '{shown(output.name)}': the parameter '{shown(name)}' is not supported")
    parameters = {name: _plain(name, value) for name, value in request.parameters.items()}
    names = [output.name for output in request.outputs]
    inputs = _inputs(request)
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
            _check_input_parameters(given, raw[number] if raw else b"")
        if raw and given.HasField("contents"):
            raise refuse(f"input '{shown(given.name)}' has both contents and raw_input_contents")
        data = raw[number] if raw else _contents(given)
        inputs.append(Sent(given.name, given.datatype, given.shape, data))
    return inputs


def _check_input_parameters(given: Any, raw: bytes) -> None:
    """KServe's client says with each input how many bytes it has."""
    for name, value in given.parameters.items():
        if name != "binary_data_size":
            why = "shared memory" if name.startswith("shared_memory") else f"the parameter '{shown(name)}'"
            raise refuse(f"input '{shown(given.name)}': {why} is not supported: send the tensor itself")
        if value.int64_param != len(raw):
            said = f"binary_data_size says {value.int64_param} bytes"
            raise refuse(f"input '{shown(given.name)}': {said}, and there are {len(raw)}", name)


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
