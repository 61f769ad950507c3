"""Compressed requests: read as far as an uncompressed one could be long, and no further."""

from __future__ import annotations

import zlib

from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.tensors import refuse

IDENTITY, GZIP, DEFLATE = ENCODINGS = ("identity", "gzip", "deflate")
_WINDOW_BITS = {GZIP: 16 + zlib.MAX_WBITS, DEFLATE: zlib.MAX_WBITS}


def inflate(data: bytes, encoding: str, most_bytes: int) -> bytes:
    """Raises for what is no such data, or too much of it."""
    if encoding == IDENTITY:
        if len(data) > most_bytes:
            message = f"the request has {len(data)} bytes; allowed: at most {most_bytes}"
            raise InflightError(ErrorKind.TOO_LARGE, message)
        return data
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        found = stream.decompress(data, most_bytes + 1)
    except zlib.error:
        raise refuse(f"the request is not valid {encoding} data") from None
    if len(found) > most_bytes:
        message = f"the request is larger than {most_bytes} bytes when it is decompressed"
        raise InflightError(ErrorKind.TOO_LARGE, message)
    if not stream.eof or stream.unused_data:
        raise refuse(f"the request is not one whole piece of {encoding} data")
    return found


def encoding_of(message: bytes) -> str:
    """Of a message of gRPC, whose library tells nobody.

    No request here begins like compressed data: 1f is no tag at all, and 78 that of a field that none has.
    """
    start = message[:2]
    if start == b"\x1f\x8b":
        return GZIP
    return DEFLATE if start[:1] == b"\x78" and int.from_bytes(start, "big") % 31 == 0 else IDENTITY
