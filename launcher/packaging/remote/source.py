"""What every place that models come from can do: say what lies there, and hand it over."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class SourceError(Exception):
    """It cannot be had from there: the message says what was asked for, and why."""


class Unreachable(SourceError):
    """Nobody answers there now: what was fetched before still counts."""


@dataclass(frozen=True)
class RemoteFile:
    """`tag` changes when the content does; `sha256` is known of some sources only."""

    name: str
    size_bytes: int
    tag: str = ""
    sha256: str = ""
    is_divisible: bool = True  # whether parts of it can be asked for

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        is_odd = not self.name.isprintable() or "\\" in self.name
        if not self.name or path.is_absolute() or ".." in path.parts or is_odd:
            raise SourceError(
                f"the source has a file {self.name!r}, which would be written outside the model's directory"
            )


@dataclass(frozen=True)
class Listing:
    """The files of a model as they are now; `revision` is by what the source itself knows this state.

    Those that are `left_out` are there, and stay there.
    """

    files: tuple[RemoteFile, ...]
    revision: str = ""
    left_out: tuple[RemoteFile, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def state(self) -> str:
        """What differs when anything does."""
        files = (*self.files, *self.left_out)
        lines = [f"{each.name} {each.size_bytes} {each.sha256 or each.tag}\n" for each in files]
        return self.revision or hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


class Source(Protocol):
    """A model somewhere. Looking and downloading raise SourceError."""

    def look(self) -> Listing:
        """What is there now."""

    def download(self, listing: Listing, into: Path, advance: Callable[[int], None]) -> None:
        """All of it; what an earlier try has left in the directory is gone on with."""

    def close(self) -> None:
        """Its connections."""


class Ranges(Protocol):
    """Whoever gives out parts of files."""

    def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        """Bytes `begin` to `end`, or SourceError if the file is not the one that was listed."""


def shown(url: str) -> str:
    """A query may be a secret."""
    return url.partition("?")[0]
