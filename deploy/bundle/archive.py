"""Writes a bundle: the same files give the same bytes, whoever packs them and when."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import IO, Any

_CHUNK_BYTES = 1 << 20
# Most of the rest is machine code, which the first of these makes more alike.
_THOROUGHLY: list[dict[str, int]] = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 64 << 20},
]
# Next to nothing is looked for, because nothing would be found.
_AS_IT_IS: list[dict[str, int]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096, "mf": lzma.MF_HC3, "depth": 1, "nice_len": 3}
]


@dataclass(frozen=True)
class Member:
    """One file: where its bytes come from, and whether it can be run."""

    read: Callable[[], bytes]
    is_executable: bool = False


def write_archive(
    target: Path, members: Mapping[PurePosixPath, Member], advance: Callable[[int], None] = lambda size: None
) -> str:
    """Returns its SHA-256; `advance` is told how many bytes went in."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as file:
        packed = _Streams(file)
        with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for is_packed, paths in groupby(sorted(members, key=_likeness), key=_is_packed):
                packed.begin(_AS_IT_IS if is_packed else _THOROUGHLY)
                for path in paths:
                    content = members[path].read()
                    archive.addfile(_entry(path, members[path], len(content)), io.BytesIO(content))
                    advance(len(content))
        packed.end()
    partial.replace(target)
    return sha256(target)


class _Streams(io.BufferedIOBase):
    """An .xz file of one stream behind the other, each packed in its own way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packer: lzma.LZMACompressor | None = None

    def begin(self, filters: list[dict[str, int]]) -> None:
        self.end()
        self._packer = lzma.LZMACompressor(filters=filters)

    def write(self, content: Any, /) -> int:
        assert self._packer is not None
        self._file.write(self._packer.compress(content))
        return len(content)

    def end(self) -> None:
        if self._packer is not None:
            self._file.write(self._packer.flush())


def _is_packed(path: PurePosixPath) -> bool:
    return path.suffix == ".whl"


def _likeness(path: PurePosixPath) -> tuple[bool, str, str]:
    """Files of a kind lie side by side: they pack smaller."""
    return _is_packed(path), path.suffix, str(path)


def _entry(path: PurePosixPath, member: Member, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(str(path))
    entry.size = size
    entry.mode = 0o755 if member.is_executable else 0o644
    entry.uname = entry.gname = "root"
    return entry


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
