"""Header blocks: requests as literal bytes, answers decoded once and then known by their bytes.

We announce a header table of size 0. No block then depends on those before it, so an answer's block means the
same whenever it comes; and requests use no table either, so theirs can be made beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from router.grpc.frames import ConnectionFailure, ErrorCode
from router.grpc.status import GrpcError, StatusCode, from_http_status, from_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"  # whole fields of the static table
_MAX_KNOWN_BLOCKS = 512
_MAX_KNOWN_BLOCK_BYTES = 1 << 10
# Enough for an error text with a traceback in it.
MAX_HEADER_BYTES = 256 << 10
_LARGEST_TIMEOUT = 99_999_999  # eight digits


def _length(size: int) -> bytes:
    """An integer with a prefix of seven bits, the first bit 0: no Huffman coding."""
    if size < 127:
        return bytes((size,))
    rest = size - 127
    encoded = bytearray((127,))
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    encoded.append(rest)
    return bytes(encoded)


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return _length(len(data)) + data


def literal(name: str, value: str) -> bytes:
    """A field that no table remembers."""
    return b"\x00" + _text(name) + _text(value)


class RequestHeaders:
    """The blocks of all methods that are called on one server."""

    def __init__(
        self, authority: str, metadata: Mapping[str, str] | None = None, is_encrypted: bool = False
    ) -> None:
        fields = {
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "inflight-router",
            **(metadata or {}),
        }
        # Field 1 of the static table is :authority, field 4 is :path.
        self._start = _POST + (_HTTPS if is_encrypted else _HTTP) + b"\x01" + _text(authority) + b"\x04"
        self._end = b"".join(literal(name, value) for name, value in fields.items())
        self._blocks: dict[str, bytes] = {}

    def block(self, method: str, timeout_s: float | None = None) -> bytes:
        found = self._blocks.get(method)
        if found is None:
            found = self._blocks[method] = self._start + _text(method) + self._end
        return found if timeout_s is None else found + literal("grpc-timeout", timeout_text(timeout_s))


def timeout_text(timeout_s: float) -> str:
    """Rounded up: the server must not be the first to give up."""
    milliseconds = max(1, -int(-timeout_s * 1000 // 1))
    if milliseconds <= _LARGEST_TIMEOUT:
        return f"{milliseconds}m"
    return f"{min(milliseconds // 1000 + 1, _LARGEST_TIMEOUT)}S"


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
