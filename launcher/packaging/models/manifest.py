"""Sizes and hashes of a checkpoint's files, so that damage is noticed before it is served."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from launcher.progress import Progress

MANIFEST = "manifest.json"
READ_BYTES = 1 << 20


def write_manifest(directory: Path, source: str, hashes: Mapping[Path, str] | None = None) -> None:
    """`hashes` are those of files that have been hashed already."""
    known = hashes or {}
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != MANIFEST]
    files = {
        path.relative_to(directory).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": known.get(path) or sha256(path),
        }
        for path in paths
    }
    text = json.dumps({"source": source, "files": files}, indent=2) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def read_source(directory: Path) -> str:
    """What the directory was made from, by its manifest."""
    return str(json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["source"])


def find_damage(directory: Path, source: str | None, progress: Progress, hashing: bool = True) -> str | None:
    """Say what is wrong with the directory, or None when every file is as it was written.

    With `hashing`, every byte is hashed at each start: half a gigabyte takes half a second, and a flipped bit
    would otherwise show only as nonsense in the model's answers. A `source` of None is any.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        found_source = manifest["source"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if source is not None and found_source != source:
        return f"it was made from {found_source!r}, not {source!r}"
    if not hashing:
        return next(
            (damage for name in expected if (damage := size_damage(directory / name, expected[name][0]))),
            None,
        )
    total_bytes = sum(size for size, _ in expected.values())
    with progress.stage(f"Checking {directory.name}", total_bytes=total_bytes):
        return next(
            (damage for name in expected if (damage := damage_of(directory / name, *expected[name]))), None
        )


def damage_of(path: Path, size_bytes: int, digest: str) -> str | None:
    if damage := size_damage(path, size_bytes):
        return damage
    return f"{path.name} has changed since it was written" if sha256(path) != digest else None


def size_damage(path: Path, size_bytes: int) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != size_bytes:
        return f"{path.name} has {path.stat().st_size} bytes instead of {size_bytes}"
    return None


def sha256(path: Path, on_read: Callable[[int], None] | None = None) -> str:
    """`on_read` is told how many bytes have been read so far."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    done_bytes = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            done_bytes += count
            if on_read is not None:
                on_read(done_bytes)
    return digest.hexdigest()
