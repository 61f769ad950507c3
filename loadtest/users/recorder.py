"""Every request's result as a line of JSON, written as it ends and read back when all have."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.results import RequestResult

_SUFFIX = ".jsonl"


class Recorder:
    """One file for each process that asks; the first line says when it began, by the machine's clock.

    A process that starts again, from Locust's web page, removes its earlier file.
    """

    def __init__(self, folder: Path, began_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.began_s = began_s
        for former in folder.glob(f"{os.getpid()}-*{_SUFFIX}"):
            former.unlink()
        path = folder / f"{os.getpid()}-{time.monotonic_ns()}{_SUFFIX}"
        self._file = path.open("w", buffering=1, encoding="utf-8")
        self._write({"began_s": began_s})

    def note(self, result: RequestResult) -> None:
        self._write(asdict(result))

    def note_users(self, at_s: float, users: int, late_s: float) -> None:
        """How many there are, and by how much this process was late for a moment it had planned."""
        self._write({"at_s": round(at_s, 3), "users": users, "late_s": round(late_s, 4)})

    def close(self) -> None:
        self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(row) + "\n")


@dataclass
class RecordedRun:
    """What all processes of a run wrote, so far."""

    began_s: float | None = None
    results: list[RequestResult] = field(default_factory=list)
    users: dict[str, int] = field(default_factory=dict)  # by process
    late_s: list[float] = field(default_factory=list)


class RecordReader:
    """Reads on from where it was; a line that is still being written waits for the next time."""

    def __init__(self, folder: Path) -> None:
        self.recorded = RecordedRun()
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}

    def read(self) -> list[RequestResult]:
        """What is new since the last call."""
        if not all(path.exists() for path in self._read_bytes):
            self.recorded = RecordedRun()
            self._read_bytes.clear()
        known = len(self.recorded.results)
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            for line in self._lines(path):
                self._take(path.stem, json.loads(line))
        return self.recorded.results[known:]

    def _lines(self, path: Path) -> Iterable[bytes]:
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path, 0))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read_bytes[path] = self._read_bytes.get(path, 0) + whole
        return data[:whole].splitlines()

    def _take(self, process: str, row: dict[str, Any]) -> None:
        recorded = self.recorded
        if "began_s" in row:
            recorded.began_s = min(recorded.began_s or row["began_s"], row["began_s"])
        elif "users" in row:
            recorded.users[process] = row["users"]
            recorded.late_s.append(row["late_s"])
        else:
            recorded.results.append(RequestResult(**row))
