"""Usage records on their way to the store: in a file when `append` returns, in the store once each.

The event loop writes a line to the present segment, into the kernel's memory, which a killed process does not
take with it. One thread syncs the segment to the disk ten times a second; another one hands closed segments
to the store and removes them. Delivery is idempotent, so a crash between the two only means that a segment is
delivered again. What cannot be written, because the disk is full, waits in memory."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import sqlalchemy as sql

from router.core.tenant import UsageRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Deliver = Callable[[Sequence[UsageRecord]], object]

_SUFFIX = ".usage"
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


def read_segment(path: Path) -> Contents:
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


log = logging.getLogger(__name__)

FLUSH_S = 0.1
_SEGMENT_BYTES = 4 << 20
_BATCH = 500
_WRITE_AT_ONCE = 5_000
# What the store will never take; kept for a person to look at.
_UNACCEPTABLE = (sql.exc.DataError, sql.exc.IntegrityError)
_MOST_SPOOLS = 64


class SpoolInUse(Exception):
    """Another process holds this directory."""


class UsageSpool:
    """One directory of one process; `process` is its name for good, also after a restart."""

    def __init__(self, directory: Path, max_bytes: int = 256 << 20, flush_s: float = FLUSH_S) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._lock_file = _lock(directory)
        self.process = _process_name(directory)
        self._max_bytes = max_bytes
        self._flush_s = flush_s
        self._pending: deque[UsageRecord] = deque()
        self._segment: Segment | None = None
        # Held for microseconds: a file is detached before it is synced, closed or delivered.
        self._swapping = threading.Lock()
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._closed_bytes = sum(path.stat().st_size for path in self._closed())
        self.failed_writes = 0
        self.damaged_lines = 0
        self.is_full = self._is_over()  # new requests should be refused; running ones are still recorded
        self._thread = threading.Thread(target=self._run, name="usage-spool", daemon=True)

    def start(self) -> None:
        with self._writing:
            self._open_segment()
        self._thread.start()

    def append(self, record: UsageRecord) -> None:
        """From the event loop: what it costs is one write of a line, which waits for no disk."""
        with self._swapping:
            segment = self._segment
            if segment is not None and not segment.is_broken and not self._pending:
                try:
                    segment.write(to_line(record))
                    if self._closed_bytes + segment.bytes > self._max_bytes:
                        self.is_full = True
                    return
                except OSError as error:
                    self._complain(error)
            self._pending.append(record)
            self.is_full = self._is_over()

    @property
    def bytes(self) -> int:
        """On disk, not yet in the store."""
        return self._closed_bytes + (self._segment.bytes if self._segment else 0)

    @property
    def pending(self) -> int:
        """Records that are in memory alone."""
        return len(self._pending)

    def _is_over(self) -> bool:
        waits = self.failed_writes > 0 and len(self._pending) > _WRITE_AT_ONCE
        return waits or self.bytes > self._max_bytes

    def _look(self) -> None:
        """There may be room again."""
        with self._swapping:
            self.is_full = self._is_over()

    def flush(self) -> None:
        """Everything appended so far is on disk, unless the disk is full: then it stays in memory."""
        with self._writing:
            try:
                while self._pending:
                    self._write_pending()
                if self._segment is not None:
                    self._segment.sync()
                    if self._segment.bytes >= _SEGMENT_BYTES:
                        self._open_segment()
            except OSError as error:
                self._complain(error)
            else:
                self.failed_writes = 0
            self._look()

    def deliver(self, deliver: Deliver) -> int:
        """Hands all there is to the store, oldest first; raises what the store raises, losing nothing.

        Closed segments go first: while the store is unreachable the current one is not split into small ones.
        """
        delivered = self._deliver_closed(deliver)
        self.flush()
        with self._writing:
            if self._segment is not None and (self._segment.bytes or self._segment.is_broken):
                self._open_segment()
        return delivered + self._deliver_closed(deliver)

    def close(self) -> None:
        """On disk when it returns."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()
        with self._writing:
            self._swap(None)
        os.close(self._lock_file)

    def _run(self) -> None:
        while not self._stopping.wait(self._flush_s):
            self.flush()

    def _write_pending(self) -> None:
        if self._segment is None or self._segment.is_broken:
            self._open_segment()
        segment = self._segment
        assert segment is not None
        # Only this thread takes records away, so that those it has copied are still the first ones.
        batch = list(islice(self._pending, _WRITE_AT_ONCE))
        lines = b"".join(map(to_line, batch))
        with self._swapping:
            segment.write(lines)
            for _ in batch:
                self._pending.popleft()

    def _open_segment(self) -> None:
        """Replaces the current file by a new one, and closes it."""
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        self._swap(Segment(self._directory / name))

    def _swap(self, fresh: Segment | None) -> None:
        with self._swapping:
            former, self._segment = self._segment, fresh
        if former is not None:
            try:
                former.sync()
            finally:
                self._closed_bytes += former.close()

    def _complain(self, error: OSError) -> None:
        if not self.failed_writes:
            log.error(
                "usage cannot be written to disk; %d records are waiting: %s", self.pending, error.strerror
            )
        self.failed_writes += 1

    def _closed(self) -> list[Path]:
        current = None if self._segment is None else self._segment.path
        return sorted(path for path in self._directory.glob(f"*{_SUFFIX}") if path != current)

    def _deliver_closed(self, deliver: Deliver) -> int:
        with self._writing:
            paths = self._closed()
        return sum(self._deliver(path, deliver) for path in paths)

    def _deliver(self, path: Path, deliver: Deliver) -> int:
        contents = read_segment(path)
        for start in range(0, len(contents.records), _BATCH):
            self._hand_over(contents.records[start : start + _BATCH], deliver)
        with self._writing:
            self._closed_bytes -= path.stat().st_size
            self._look()
        if contents.damaged_lines:
            self.damaged_lines += contents.damaged_lines
            log.error("%d lines of %s are damaged; the file is kept", contents.damaged_lines, path.name)
            path.rename(path.with_suffix(".damaged"))
        else:
            path.unlink()
        return len(contents.records)

    def _hand_over(self, records: Sequence[UsageRecord], deliver: Deliver) -> None:
        try:
            deliver(records)
        except _UNACCEPTABLE:
            if len(records) > 1:
                for record in records:
                    self._hand_over([record], deliver)
                return
            log.exception(
                "the store refuses the usage record of %s; it is kept aside, in refused",
                records[0].request_id,
            )
            with open(self._directory / "refused", "ab") as file:
                file.write(to_line(records[0]))


def claim_spool(base: Path, max_bytes: int) -> UsageSpool:
    """The first spool below `base` that no other process holds; what a dead one left is delivered first."""
    for number in range(_MOST_SPOOLS):
        with contextlib.suppress(SpoolInUse):
            return UsageSpool(base / str(number), max_bytes)
    raise SpoolInUse(f"{base}: {_MOST_SPOOLS} other processes already spool their usage here")


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolInUse(f"{directory}: another process already spools its usage here") from None
    return descriptor


def _process_name(directory: Path) -> str:
    path = directory / "process"
    if not path.exists() or not path.read_text():
        fresh = path.with_suffix(".new")
        fresh.write_text(secrets.token_hex(8))
        fresh.replace(path)
    return path.read_text()
