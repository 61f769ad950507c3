"""Writes a bundle: the same files give the same bytes, whoever packs them and when."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_DICTIONARY_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_THOROUGH, _QUICK = 9, 0


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
    with (
        lzma.open(partial, "wb", filters=_filters(members)) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(members, key=_likeness):
            content = members[path].read()
            archive.addfile(_entry(path, members[path], len(content)), io.BytesIO(content))
            advance(len(content))
    partial.replace(target)
    return sha256(target)


def _filters(paths: Iterable[PurePosixPath]) -> list[dict[str, int]]:
    """Most is machine code, which the first makes more alike. Wheels are packed already."""
    preset = _QUICK if any(path.suffix == ".whl" for path in paths) else _THOROUGH
    packing = {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": _DICTIONARY_BYTES}
    return [{"id": lzma.FILTER_X86}, packing]


def _likeness(path: PurePosixPath) -> tuple[str, str]:
    """Files of a kind lie side by side: they pack smaller."""
    return path.suffix, str(path)


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
