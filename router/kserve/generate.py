"""Triton's generate extension: fields of a JSON object to tensors, tensors to fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from router.http import sse
from router.kserve.bodies import as_json, head_fields
from router.kserve.tensors import Sent, refuse, shown
from router.request.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.wire.tensors import Tensor
    from router.kserve.answers import Output
    from router.kserve.offers import Asked
    from router.kserve.tensors import Tensors


class GenerateBody(msgspec.Struct, frozen=True):
    """What most requests carry, for those who read the description; a model's other inputs are taken too."""

    text_input: str
    max_tokens: int
    stream: bool | None = None
    parameters: dict[str, Any] = {}
    id: str = ""


_decoder = msgspec.json.Decoder(dict[str, Any])


def read_body(body: bytes, known: Tensors, has_rows: bool = True) -> tuple[str, list[Sent], dict[str, Any]]:
    """The id, the inputs and the parameters: every field that no input is called after is one."""
    fields = decode(_decoder, body)
    client_id = fields.pop("id", "")
    if not isinstance(client_id, str):
        raise refuse("id: allowed is a text", "id")
    nested = fields.pop("parameters", {})
    if not isinstance(nested, dict):
        raise refuse("parameters: allowed is an object", "parameters")
    for name in nested:
        if name in fields:
            raise refuse(f"'{shown(name)}' is there twice", name)
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
        raise refuse(f"'{tensor.name}' can be sent to /infer alone", tensor.name)
    shape = (1, len(elements)) if has_rows else (len(elements),)
    return Sent(tensor.name, tensor.dtype, shape, elements)


def render(asked: Asked, outputs: Sequence[Output]) -> bytes:
    """One line, for every parser."""
    fields = head_fields(asked)
    for output in outputs:
        elements = as_json(output)
        fields[output.name] = elements[0] if len(elements) == 1 else elements
    return sse.one_line(msgspec.json.encode(fields))
