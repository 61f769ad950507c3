"""Marks the files that a release is made of: size and hash of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.packaging.models.manifest import sha256
from router.core.manifest import FileMark

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from launcher.progress import Progress


def mark_files(paths: Iterable[Path], progress: Progress, label: str) -> list[FileMark]:
    """One mark for each, by its absolute path."""
    sizes = {path: path.stat().st_size for path in paths}
    marks: list[FileMark] = []
    done_bytes = 0
    with progress.stage(label, total_bytes=sum(sizes.values())) as stage:
        for path, size_bytes in sizes.items():
            digest = sha256(path, lambda count: stage.advance_to(done_bytes + count))  # noqa: B023
            marks.append(FileMark(str(path), size_bytes, digest))
            done_bytes += size_bytes
    return marks
