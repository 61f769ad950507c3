"""The newest prompts of a model in the prompt log, for releases that are to be compared on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from router.telemetry.prompt_log import PATTERN, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The ends of so many files, the ones that were written to last, are read: however large the log is, it takes
# no longer.
_MOST_FILES, _MOST_BYTES = 32, 1 << 20
_MOST_CHARS = 32_768
_ANSWERED = ("stop", "length")


class RecordedPrompts:
    """Read anew each time: a prompt that was deleted is gone here too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def newest(self, model: str, most: int) -> list[tuple[str, str]]:
        """Those that were answered, by the ids of their requests; the newest first."""
        found = [
            entry
            for path in self._files()
            for entry in _entries(path)
            if entry.model == model and entry.finish_reason in _ANSWERED and _is_usable(entry)
        ]
        found.sort(key=lambda entry: entry.at_s, reverse=True)
        return [(entry.request_id, entry.prompts[0]) for entry in found[:most]]

    def _files(self) -> list[Path]:
        written = []
        for path in self._directory.glob(PATTERN):
            try:
                written.append((path.stat().st_mtime, path))
            except FileNotFoundError:  # deleted just now
                continue
        return [path for _, path in sorted(written, reverse=True)[:_MOST_FILES]]


def _is_usable(entry: Entry) -> bool:
    return len(entry.prompts) == 1 and 0 < len(entry.prompts[0]) <= _MOST_CHARS


def _entries(path: Path) -> Iterator[Entry]:
    """Those at its end; what is not whole, or no entry, is passed over."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES)
            file.seek(begin)
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines[1:] if begin else lines:
        try:
            yield msgspec.json.decode(line, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
