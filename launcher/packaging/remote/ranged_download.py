"""Downloads files in parts, several at a time, and goes on where an earlier process was interrupted."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.remote.source import SourceError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.packaging.remote.source import Ranges, RemoteFile

PART_BYTES = 16 << 20
WORKERS = 8
ATTEMPTS = 4
PAUSE_S = 0.5
NOTE_S = 1.0  # what a crash of the machine can cost, beside the parts under way


@dataclass(frozen=True)
class Part:
    file: PartialFile
    number: int
    begin: int
    end: int


class PartialFile:
    """A file on its way: its bytes so far in NAME.part, and which parts are whole in NAME.parts.json."""

    def __init__(self, remote: RemoteFile, directory: Path) -> None:
        self.remote = remote
        self.target = directory / remote.name
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._data = self.target.with_name(f"{self.target.name}.part")
        self._notes = self.target.with_name(f"{self.target.name}.parts.json")
        self._lock = threading.Lock()
        self._noted_at_s = time.monotonic()
        self._descriptor: int | None = None
        self._whole: set[int] = set()

    @property
    def is_finished(self) -> bool:
        """As far as its size says; its hash is the caller's to check."""
        return self.target.is_file() and self.target.stat().st_size == self.remote.size_bytes

    def open(self) -> list[Part]:
        """What is missing of it."""
        if self.is_finished:
            return []
        self._whole = self._read_notes()
        self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._descriptor, self.remote.size_bytes)
        size_bytes = self.remote.size_bytes
        step = PART_BYTES if self.remote.is_divisible else max(size_bytes, 1)
        bounds = [(begin, min(begin + step, size_bytes)) for begin in range(0, size_bytes, step)]
        return [Part(self, number, *each) for number, each in enumerate(bounds) if number not in self._whole]

    def write(self, data: bytes, at: int) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written

    def keep(self, part: Part) -> None:
        with self._lock:
            self._whole.add(part.number)
            if time.monotonic() - self._noted_at_s >= NOTE_S:
                self._note()

    def close(self, is_whole: bool) -> None:
        if self._descriptor is None:
            return
        with self._lock:
            self._note()
            os.close(self._descriptor)
            self._descriptor = None
        if is_whole:
            self._data.replace(self.target)
            self._notes.unlink(missing_ok=True)

    @property
    def _identity(self) -> list[object]:
        return [self.remote.size_bytes, self.remote.sha256 or self.remote.tag, PART_BYTES]

    def _read_notes(self) -> set[int]:
        """None where the file has become another since."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            notes = json.loads(self._notes.read_text(encoding="utf-8"))
            if notes["of"] == self._identity and self._data.stat().st_size == self.remote.size_bytes:
                return {int(each) for each in notes["whole"]}
        return set()

    def _note(self) -> None:
        """The bytes are on the disk before it is said that they are."""
        assert self._descriptor is not None
        os.fdatasync(self._descriptor)
        text = json.dumps({"of": self._identity, "whole": sorted(self._whole)})
        written = self._notes.with_name(f"{self._notes.name}.new")
        written.write_text(text, encoding="utf-8")
        written.replace(self._notes)
        self._noted_at_s = time.monotonic()


class RangedDownload:
    """`advance` is told in the calling thread how many bytes there are, those of earlier tries too."""

    def __init__(self, ranges: Ranges, advance: Callable[[int], None], workers: int = WORKERS) -> None:
        self._ranges = ranges
        self._advance = advance
        self._workers = workers
        self._stopped = threading.Event()
        self._done_bytes = 0

    def run(self, files: Sequence[RemoteFile], into: Path) -> None:
        partial = [PartialFile(file, into) for file in files]
        parts = [part for file in partial for part in file.open()]
        self._done_bytes = sum(file.size_bytes for file in files) - sum(
            part.end - part.begin for part in parts
        )
        self._advance(self._done_bytes)
        is_whole = False
        try:
            self._fetch_all(parts)
            is_whole = True
        finally:
            for file in partial:
                file.close(is_whole)

    def _fetch_all(self, parts: Sequence[Part]) -> None:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="download") as pool:
            fetched = [pool.submit(self._fetch, part) for part in parts]
            try:
                for future in as_completed(fetched):
                    part = future.result()
                    self._done_bytes += part.end - part.begin
                    self._advance(self._done_bytes)
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _fetch(self, part: Part) -> Part:
        for attempt in range(ATTEMPTS):
            try:
                self._fetch_once(part)
                part.file.keep(part)
                return part
            except Unreachable:
                if attempt + 1 == ATTEMPTS or self._stopped.wait(PAUSE_S * 2**attempt):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _fetch_once(self, part: Part) -> None:
        at = part.begin
        for data in self._ranges.read(part.file.remote, part.begin, part.end):
            if self._stopped.is_set():
                raise SourceError("the download was stopped")
            if at + len(data) > part.end:
                raise SourceError(f"{part.file.remote.name}: the source sent more than was requested")
            part.file.write(data, at)
            at += len(data)
        if at != part.end:
            sent, asked = at - part.begin, part.end - part.begin
            raise Unreachable(f"{part.file.remote.name}: the source sent {sent} bytes of {asked}")
