"""Files of usage records: one a line, each with its checksum, written once and removed when delivered."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from router.core.tenant import UsageRecord

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".usage"
_HEAD_BYTES = 9  # the checksum and a space
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageRecord).decode


def to_line(record: UsageRecord) -> bytes:
    body = _encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def from_line(line: bytes) -> UsageRecord | None:
    """None where the line is not what was written."""
    body = line[_HEAD_BYTES:-1]
    if not line.endswith(b"\n") or line[:_HEAD_BYTES] != b"%08x " % zlib.crc32(body):
        return None
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Contents:
    """A segment as it was found: a torn last line is what a crash leaves, any other bad line is damage."""

    records: list[UsageRecord]
    damaged_lines: int


def read(path: Path) -> Contents:
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    found = [from_line(line) for line in lines]
    records = [record for record in found if record is not None]
    return Contents(records, len(found) - len(records))


class Segment:
    """The file that is being written; closed to more after a failed write.

    What was written outlives the process at once, and the machine once it was synced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.is_broken = False
        self._synced_bytes = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, lines: bytes) -> None:
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.is_broken = True  # whatever reached the file stays its end
            raise
        self.bytes += len(lines)

    def sync(self) -> None:
        size = self.bytes
        if size != self._synced_bytes:
            if not self._synced_bytes:
                _sync_directory(self.path.parent)
            os.fsync(self._descriptor)
            self._synced_bytes = size

    def close(self) -> int:
        """Answers the size of the file; one without a whole write is removed."""
        size = os.fstat(self._descriptor).st_size
        os.close(self._descriptor)
        if self.bytes:
            return size
        self.path.unlink()
        return 0


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
