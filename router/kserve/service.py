"""The methods of a gRPC service, by its description; their requests may be compressed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from router.kserve.compression import IDENTITY, encoding_of, inflate
from router.kserve.message_weight import check_weight
from router.kserve.tensors import refuse
from router.request.aside import LARGE_BYTES

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor


@dataclass(frozen=True, slots=True)
class Packed:
    """A request as it came, which nobody unpacks before it is known whose it is."""

    kind: type[Any]
    raw: bytes
    id: str = ""

    @property
    def is_plain(self) -> bool:
        return encoding_of(self.raw) == IDENTITY

    def unpack(self, most_bytes: int) -> Any:
        return _parse(self.kind, inflate(self.raw, encoding_of(self.raw), most_bytes))


def _parse(kind: type[Any], raw: bytes) -> Any:
    check_weight(kind, raw)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise refuse(f"the message is not a {kind.DESCRIPTOR.name}") from None


def _read(kind: type[Any], raw: bytes) -> Any:
    """Never raises: here nobody could be told. On the event loop, so what is large is left for later."""
    if len(raw) <= LARGE_BYTES and encoding_of(raw) == IDENTITY:
        try:
            return kind.FromString(raw)
        except DecodeError:
            pass
    return Packed(kind, raw)


def handler_of(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler[Any, Any]:
    """Those of its methods that the servicer has; the others are unimplemented."""
    handlers = {}
    for method in service.methods:
        if (serve := getattr(servicer, method.name, None)) is not None:
            kind, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            streams = method.client_streaming
            make = grpc.stream_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            handlers[method.name] = make(serve, partial(_read, kind), answer.SerializeToString)
    return grpc.method_handlers_generic_handler(service.full_name, handlers)
