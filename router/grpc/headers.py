"""The header blocks of answers: decoded once, and then known by their bytes.

We announce a header table of size 0. No block then depends on those before it, so one means the same whenever
it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from router.grpc.frames import ConnectionFailure, ErrorCode
from router.grpc.status import GrpcError, StatusCode, from_http_status, from_number

_MAX_KNOWN_BLOCKS = 512
_MAX_KNOWN_BLOCK_BYTES = 1 << 10
# Enough for an error text with a traceback in it.
MAX_HEADER_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """What an answer's header block says: the first block, the trailers, or both in one."""

    http_status: int | None
    is_grpc: bool
    grpc_status: int | None
    grpc_message: str

    @property
    def is_informational(self) -> bool:
        return self.http_status is not None and 100 <= self.http_status < 200

    def refusal(self) -> GrpcError | None:
        """Why a first block is not the start of a gRPC answer."""
        if self.http_status != 200:
            return from_http_status(self.http_status or 0)
        if not self.is_grpc:
            return GrpcError(StatusCode.UNKNOWN, "the answer is not gRPC")
        return None

    def outcome(self) -> GrpcError | None:
        """How the call ended, by its last block; None is OK."""
        if self.grpc_status is None:
            if self.http_status is not None and (refusal := self.refusal()) is not None:
                return refusal
            return GrpcError(StatusCode.UNKNOWN, "the stream ended without a status")
        if self.grpc_status == StatusCode.OK:
            return None
        return GrpcError(from_number(self.grpc_status), self.grpc_message)


_known: dict[bytes, ResponseHeaders] = {}


def read_block(block: bytes) -> ResponseHeaders:
    """Decodes a block that was not seen before; error texts differ, so what is kept is bounded."""
    found = _known.get(block)
    if found is None:
        found = _decode(block)
        if len(_known) >= _MAX_KNOWN_BLOCKS:
            _known.clear()
        if len(block) <= _MAX_KNOWN_BLOCK_BYTES:
            _known[block] = found
    return found


def _decode(block: bytes) -> ResponseHeaders:
    decoder = Decoder(max_header_list_size=2 * MAX_HEADER_BYTES)
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        fields = {_plain(field[0]): _plain(field[1]) for field in decoder.decode(block, raw=True)}
        status = fields.get(":status")
        grpc_status = fields.get("grpc-status")
        return ResponseHeaders(
            None if status is None else int(status),
            fields.get("content-type", "").startswith("application/grpc"),
            None if grpc_status is None else int(grpc_status),
            unquote(fields.get("grpc-message", ""), errors="replace"),
        )
    except (HPACKError, ValueError) as error:
        raise ConnectionFailure(
            ErrorCode.COMPRESSION_ERROR, f"a header block cannot be read: {error}"
        ) from None


def _plain(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
