"""Keys and values of prompts on their way from one engine to another, in a folder that both see.

Each transfer is a folder of its own under a name that nobody can guess: `of` says what it is the prompt of,
each process of the engine writes parts, from their first block on, and `.done` behind its last. Whoever takes
it removes it; what nobody comes for is removed by its age.
"""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path

_NAME = re.compile("[0-9a-f]{32}")
# Of the room that is left, so that a burst of prompts fills no disk.
_MOST_SHARE = 0.5


class KvFiles:
    """`ranks` are the processes that each hold a part of every layer, or some of the layers."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks

    def begin(self, of: str, size_bytes: int) -> str | None:
        """A new transfer; None where there is no room for it."""
        if size_bytes > shutil.disk_usage(self._folder).free * _MOST_SHARE:
            return None
        name = secrets.token_hex(16)
        (self._folder / name).mkdir(mode=0o700)
        (self._folder / name / "of").write_text(of)
        return name

    def has(self, name: str, of: str) -> bool:
        """Whether all of it is there, and of this."""
        if not _NAME.fullmatch(name):
            return False
        place = self._folder / name
        try:
            return (place / "of").read_text() == of and all(
                (place / f"{rank}.done").exists() for rank in range(self._ranks)
            )
        except OSError:
            return False

    def part(self, name: str, rank: int, first: int) -> Path:
        return self._folder / name / f"{rank}.{first}.safetensors"

    def parts(self, name: str, rank: int) -> list[tuple[int, Path]]:
        """From the first on, each with the number of its first block."""
        found = (self._folder / name).glob(f"{rank}.*.safetensors")
        return sorted((int(path.name.split(".")[1]), path) for path in found)

    def finish(self, name: str, rank: int) -> None:
        (self._folder / name / f"{rank}.done").touch()

    def drop(self, name: str) -> None:
        if _NAME.fullmatch(name):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def drop_older(self, than_s: float) -> None:
        """Those that were begun before this moment, of the system's clock."""
        for place in self._folder.iterdir():
            try:
                is_old = _NAME.fullmatch(place.name) is not None and (place / "of").stat().st_mtime < than_s
            except OSError:  # somebody else was first, or is about to write it
                continue
            if is_old:
                self.drop(place.name)
