"""Sizes and hashes of a checkpoint's files, so that damage is noticed before it is served."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.progress import Progress

MANIFEST = "manifest.json"
READ_BYTES = 1 << 20


def write_manifest(directory: Path, source: str) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(directory.iterdir())
        if path.name != MANIFEST
    }
    text = json.dumps({"source": source, "files": files}, indent=2) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def find_damage(directory: Path, source: str, progress: Progress) -> str | None:
    """Say what is wrong with the directory, or None when every file is as it was written.

    Every byte is hashed at each start: half a gigabyte takes half a second, and a flipped bit would otherwise
    show only as nonsense in the model's answers.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        found_source = manifest["source"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if found_source != source:
        return f"it was made from {found_source!r}, not {source!r}"
    total_bytes = sum(size for size, _ in expected.values())
    with progress.stage(f"Checking {directory.name}", total_bytes=total_bytes):
        return next(
            (damage for name in expected if (damage := damage_of(directory / name, *expected[name]))), None
        )


def damage_of(path: Path, size_bytes: int, digest: str) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != size_bytes:
        return f"{path.name} has {path.stat().st_size} bytes instead of {size_bytes}"
    if sha256(path) != digest:
        return f"{path.name} has changed since it was written"
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
