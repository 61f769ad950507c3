"""What a release can be made from on this machine: names for places that the operator has chosen.

Whoever asks over HTTP gives a name, never a path: nothing else of the disk can be reached or found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from router.control.releases import records
from router.core.manifest import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection

_CHECKPOINT, _TRITON_MODEL, _GGUF = "config.json", "config.pbtxt", ".gguf"
_MOST_SOURCES = 500


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """`of` is the release that it is the checkpoint of, where it is one's."""

    name: str
    path: Path
    what: str
    of: str = ""


def list_sources(connection: Connection, folders: Sequence[str]) -> list[ReleaseSource]:
    """Checkpoints of releases that there are, then what lies in the folders, by name."""
    known = {each.path: each for each in reversed(list(_of_releases(connection)))}
    for folder in folders:
        for path in _in_folder(Path(folder)):
            if path not in known:
                known[path] = ReleaseSource(f"{path.parent.name}/{path.name}", path, _what(path))
    found = sorted(known.values(), key=lambda each: (not each.of, each.name))
    return found[:_MOST_SOURCES]


def _of_releases(connection: Connection) -> Iterator[ReleaseSource]:
    for release in records.list_releases(connection):
        manifest = release.manifest
        if manifest.kind is Kind.TENSORS or not manifest.checkpoint_dir:
            continue
        path = _model_at(Path(manifest.checkpoint_dir))
        if path is not None:
            yield ReleaseSource(manifest.name, path, _what(path), manifest.name)


def _in_folder(folder: Path) -> Iterable[Path]:
    """A folder that is a model itself, or those in it."""
    try:
        if _is_model(folder):
            return [folder]
        inside = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:  # gone, or not for us
        return []
    found = [each if each.suffix == _GGUF and each.is_file() else _model_at(each) for each in inside]
    return [each for each in found if each is not None]


def _is_model(place: Path) -> bool:
    return (place / _CHECKPOINT).is_file() or (place / _TRITON_MODEL).is_file()


def _model_at(place: Path) -> Path | None:
    """Itself, or the only .gguf file in it."""
    try:
        if _is_model(place):
            return place
        files = sorted(place.glob(f"*{_GGUF}")) if place.is_dir() else []
    except OSError:
        return None
    return files[0] if len(files) == 1 else None


def _what(path: Path) -> str:
    if path.suffix == _GGUF:
        return "gguf"
    return "checkpoint" if (path / _CHECKPOINT).is_file() else "triton model"
