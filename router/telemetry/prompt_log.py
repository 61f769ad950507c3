"""Prompts and answers in files, where the operator asks for it: redacted, and gone after some days.

A folder a tenant and a file a day, so that what is old and what is a tenant's can be deleted as whole files.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import queue
import shutil
import threading
import time
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from router.telemetry.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from router.core.record import Record
    from router.request.answer import Job

log = logging.getLogger(__name__)

_DAY_S = 86_400.0
_SWEEP_S = 3_600.0
_LONGEST_S = 3_600.0  # from a request's arrival to its entry, around midnight
_MAX_WAITING_CHARS = 16 << 20
PATTERN = "*/prompts-*.jsonl"


class Entry(msgspec.Struct, frozen=True):
    """One request, as it is written once redacted."""

    at_s: float
    request_id: str
    tenant: str
    model: str
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    finish_reason: str

    @property
    def chars(self) -> int:
        return sum(map(len, (*self.prompts, *self.answers)))


class PromptLog:
    """Written by a thread of its own; what comes faster than the disk takes it is counted and dropped."""

    def __init__(
        self,
        directory: Path,
        keep_days: int,
        clock: Callable[[], float] = time.time,
        sweep_s: float = _SWEEP_S,
    ) -> None:
        self._directory = directory
        self._keep_days = keep_days
        self._clock = clock
        self._sweep_s = sweep_s
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._waiting_chars = 0
        self._turn = threading.Lock()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="prompt-log", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        """Refuses a directory that cannot be written, before the first request."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise PermissionError(
                errno.EACCES, "the prompt log directory is not writable", str(self._directory)
            )
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Returns when all that was given before is written."""
        self._entries.put(None)
        self._thread.join(timeout_s)

    hears_begin = True

    def begun(self, job: Job, record: Record) -> None:
        job.keep()

    def ended(self, job: Job, record: Record, cause: BaseException | None) -> None:
        """Whole or not: what the client was told."""
        if prompts := job.prompts():
            self.write(record, prompts, job.told())

    def write(self, record: Record, prompts: Sequence[str], answers: Sequence[str]) -> None:
        """Never waits; called on the event loop."""
        self.add(
            Entry(
                at_s=self._clock(),
                request_id=record.request_id,
                tenant=record.tenant,
                model=record.model,
                prompts=tuple(prompts),
                answers=tuple(answers),
                finish_reason=record.finish_reason,
            )
        )

    def forget(self, tenant: str) -> None:
        """All that was logged of one tenant, but for what is not written yet."""
        delete_prompts(self._directory, tenant)

    def find(self, tenant: str, request_id: str, at_s: float) -> Entry | None:
        """What was logged of one request, which ended about then; reads files, so not on the event loop."""
        for day in sorted({_day(at_s), _day(at_s + _LONGEST_S), _day(at_s - _LONGEST_S)}, reverse=True):
            line = _last_line_with(request_id.encode(), self._directory / tenant / f"prompts-{day}.jsonl")
            if line is not None:
                found = msgspec.json.decode(line, type=Entry)
                return found if found.request_id == request_id and found.tenant == tenant else None
        return None

    def add(self, entry: Entry) -> None:
        with self._turn:
            fits = self._waiting_chars + entry.chars <= _MAX_WAITING_CHARS
            self._waiting_chars += entry.chars if fits else 0
        if not fits:
            self.dropped += 1
            return
        self._entries.put(entry)

    def _run(self) -> None:
        swept_s = -self._sweep_s
        while True:
            if time.monotonic() - swept_s >= self._sweep_s:
                swept_s = time.monotonic()
                self._attempt(self._delete_old)
            try:
                entry = self._entries.get(timeout=self._sweep_s)
            except queue.Empty:
                continue
            if entry is None:
                return
            self._attempt(partial(self._append, entry))
            with self._turn:
                self._waiting_chars -= entry.chars

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
            self._failing = False
        except Exception as error:  # of any kind: without this thread nothing would be logged or deleted
            if not self._failing:
                reason = error.strerror if isinstance(error, OSError) else type(error).__name__
                log.error("prompts cannot be logged: %s", reason)
            self._failing = True

    def _append(self, entry: Entry) -> None:
        folder = self._directory / entry.tenant
        folder.mkdir(exist_ok=True, mode=0o700)
        path = folder / f"prompts-{_day(entry.at_s)}.jsonl"
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(_line(entry))

    def _delete_old(self) -> None:
        for path in self._directory.glob(PATTERN):
            if is_too_old(path.name, self._clock(), self._keep_days):
                path.unlink(missing_ok=True)


def is_too_old(name: str, now_s: float, keep_days: int) -> bool:
    """Whether a file is of a day that ended longer than `keep_days` ago; 0 keeps all."""
    day = name.removeprefix("prompts-").removesuffix(".jsonl")
    return bool(keep_days) and day < _day(now_s - keep_days * _DAY_S)


def delete_prompts(directory: Path, tenant: str) -> None:
    """All that was logged of one tenant."""
    shutil.rmtree(directory / tenant, ignore_errors=True)


def _day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).date().isoformat()


def _last_line_with(words: bytes, path: Path) -> bytes | None:
    """However large the file is, no more than that line of it is copied."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.rfind(b'"request_id":"' + words + b'"')
            if at < 0:
                return None
            end = content.find(b"\n", at)
            return content[content.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(content)]
    except (OSError, ValueError):  # not there, or empty
        return None


def _line(entry: Entry) -> bytes:
    values: dict[str, Any] = msgspec.to_builtins(entry)
    for field in ("prompts", "answers"):
        values[field] = [redact(text, addresses=True) for text in values[field]]
    return msgspec.json.encode(values) + b"\n"
