"""Whether a release is what it was when it was added: its description, and every file that it is made of."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from router.core.manifest import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.core.manifest import FileMark, Manifest

_PIECE_BYTES = 1 << 20

# What changes whenever anybody writes to a file, short of turning the clock back: inode, size, times.
_Mark = tuple[int, int, int, int, int]
_hashed: dict[str, tuple[_Mark, str]] = {}


def find_tampering(manifest: Manifest, digest: str, releases_dir: Path) -> str | None:
    """What is wrong, in a sentence without paths; reads files, so not for the event loop."""
    if manifest.digest != digest:
        return "its description in the store has changed since it was added"
    if manifest.is_built_in:
        return None  # written anew at each start of the stack, which watches over it
    if fault := _fault_of_description(manifest, digest, releases_dir):
        return fault
    repository = releases_dir / "repository"
    for mark in manifest.files:
        if fault := _fault_of(mark, repository):
            return fault
    return _stranger_in(manifest, repository)


def clean_and_verify(manifest: Manifest, digest: str, releases_dir: Path) -> str | None:
    """What is wrong with what Triton loads, or has just loaded, in a sentence."""
    drop_bytecode(manifest, releases_dir)
    return find_tampering(manifest, digest, releases_dir)


def drop_bytecode(manifest: Manifest, releases_dir: Path) -> None:
    """What Python may have left beside a release's programs: it would be run in their place, unverified.

    What cannot be removed is found by `find_tampering`.
    """
    if manifest.is_built_in or manifest.base:
        return
    for member in manifest.members:
        for directory in (releases_dir / "repository" / Path(member).name).rglob("__pycache__"):
            shutil.rmtree(directory, ignore_errors=True)


def _fault_of_description(manifest: Manifest, digest: str, releases_dir: Path) -> str | None:
    try:
        text = (releases_dir / "manifests" / f"{manifest.name}.json").read_text(encoding="utf-8")
        written = from_json(text)
    except FileNotFoundError:
        return "its description is missing on disk"
    except (OSError, ValueError):
        return "its description on disk cannot be read"
    return None if written.digest == digest else "its description on disk has changed since it was added"


def _fault_of(mark: FileMark, repository: Path) -> str | None:
    shown = mark.path if not os.path.isabs(mark.path) else os.path.basename(mark.path)
    if ".." in Path(mark.path).parts:
        return f"{shown} is outside the release's directories"
    try:
        path = repository / mark.path
        # Checkpoints may be kept as links; what Triton reads is where it says it is.
        found = os.stat(path) if os.path.isabs(mark.path) else os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return f"{shown} is not a regular file"
        if found.st_size != mark.bytes:
            return f"{shown} has {found.st_size} bytes; it had {mark.bytes} when it was added"
        if _sha256(path) != mark.sha256:
            return f"{shown} has changed since it was added"
    except FileNotFoundError:
        return f"{shown} is missing"
    except OSError as error:
        return f"{shown} cannot be read: {error.strerror}"
    return None


def _sha256(path: Path) -> str:
    """Remembered for as long as the file is the same one and nobody has written to it."""
    with path.open("rb") as file:
        before = _mark_of(file.fileno())
        known = _hashed.get(str(path))
        if known is not None and known[0] == before:
            return known[1]
        digest = hashlib.sha256()
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        if _mark_of(file.fileno()) == before:
            _hashed[str(path)] = (before, digest.hexdigest())
    return digest.hexdigest()


def _mark_of(descriptor: int) -> _Mark:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _stranger_in(manifest: Manifest, repository: Path) -> str | None:
    """Anything that Triton would find there, and that nobody has vouched for."""
    known = {mark.path for mark in manifest.files}
    for member in () if manifest.base else manifest.members:  # an adapter has none of its own
        if Path(member).name != member:
            return f"{member!r} is not the name of a Triton model"
        if (repository / member).is_symlink() or not (repository / member).is_dir():
            return f"the Triton model {member} is missing"
        for path in _all_below(repository / member):
            relative = path.relative_to(repository).as_posix()
            if relative not in known:
                return f"{relative} did not exist when it was added"
    return None


def _all_below(directory: Path) -> Iterator[Path]:
    """Files and links; directories hold nothing by themselves."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _all_below(Path(entry.path))
            else:
                yield Path(entry.path)
