"""The signature of a backup: who can write its file and does not know the pepper cannot change what it says.

It stands behind the content, as a gzip member of a fixed length. Therefore it is checked before a byte of the
content is decompressed, and versions that know no signatures read past it.
"""

from __future__ import annotations

import gzip
import hmac
import io
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEY = b"inflight backups"
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 32
_FINGERPRINT_CHARS = 16


class SignatureError(Exception):
    """The content is not what was signed."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs the backups of a deployment, and recognises them: those of its pepper."""

    pepper: bytes
    fingerprint: str

    def sign(self, file: BinaryIO) -> None:
        """Append the signature of all that is in the file."""
        file.seek(0)
        mac = self._mac()
        while piece := file.read(_PIECE_BYTES):
            mac.update(piece)
        file.write(_member(self.fingerprint, mac.digest()))

    def content(self, file: BinaryIO, signature: Signature) -> SignedContent:
        return SignedContent(file, signature, self._mac())

    def _mac(self) -> hmac.HMAC:
        return hmac.new(hmac.digest(self.pepper, _KEY, "sha256"), digestmod="sha256")


@dataclass(frozen=True, slots=True)
class Signature:
    """Stands at the end of a file, behind so many bytes; it names the pepper that it was made with."""

    content_bytes: int
    fingerprint: str
    digest: bytes

    @classmethod
    def of(cls, file: BinaryIO) -> Signature | None:
        """Return the signature of a file, which says nothing yet; None if there is none."""
        content_bytes = file.seek(0, os.SEEK_END) - SIGNATURE_BYTES
        if content_bytes < 0:
            return None
        file.seek(content_bytes)
        found = file.read()
        try:
            said = json.loads(gzip.decompress(found))["signature"]
            fingerprint, digest = str(said["pepper"]), bytes.fromhex(said["hmac_sha256"])
        except (OSError, EOFError, ValueError, LookupError, TypeError):
            return None
        return cls(content_bytes, fingerprint, digest)


class SignedContent(io.RawIOBase):
    """What was signed; its end is reached only by who has read what was signed, byte for byte."""

    def __init__(self, file: BinaryIO, signature: Signature, mac: hmac.HMAC) -> None:
        file.seek(0)
        self._file = file
        self._left_bytes = signature.content_bytes
        self._signed = signature.digest
        self._mac = mac

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        piece = self._file.read(min(memoryview(buffer).nbytes, self._left_bytes))
        if not piece and not hmac.compare_digest(self._mac.digest(), self._signed):
            raise SignatureError
        self._left_bytes -= len(piece)
        self._mac.update(piece)
        memoryview(buffer).cast("B")[: len(piece)] = piece
        return len(piece)

    def check(self) -> None:
        """Read all of it."""
        while self.read(_PIECE_BYTES):
            pass


def _member(fingerprint: str, digest: bytes) -> bytes:
    """Of one length: not compressed, and without a moment."""
    line = json.dumps({"signature": {"pepper": fingerprint, "hmac_sha256": digest.hex()}}) + "\n"
    return gzip.compress(line.encode(), compresslevel=0, mtime=0)


SIGNATURE_BYTES = len(_member("0" * _FINGERPRINT_CHARS, bytes(_DIGEST_BYTES)))
