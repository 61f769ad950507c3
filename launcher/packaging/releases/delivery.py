"""Files of releases to and from the store, for hosts whose disks are their own.

Whoever adds a release puts its files into the store, by their hashes; weights that came from an address stay
there. Every Triton and every router then makes the same files at the same paths of its own disk, checked by
their hashes before anybody can see them. A router needs no weights.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.models.checkpoint import exclusive
from launcher.packaging.models.fingerprint import hash_files
from launcher.packaging.releases.file_marks import mark_files
from launcher.packaging.releases.files import moved_in, work_dir
from launcher.packaging.remote.copies import fetch_model
from launcher.packaging.repository import CONFIG
from router.control.releases.verification import clean_and_verify
from router.core.manifest import Kind
from router.store.release_files import PIECE_BYTES, put_file, read_pieces, whole_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.packaging.releases.directories import ReleaseDirectories
    from launcher.progress import Progress
    from router.core.manifest import FileMark, Manifest
    from router.store.database import Store

_WEIGHTS = frozenset({".safetensors", ".gguf"})
LARGEST_TEXT_BYTES = 64 << 20


class Undeliverable(Exception):
    """A file cannot be made here; the message says which, and why."""


def is_weights(mark: FileMark) -> bool:
    return Path(mark.path).suffix in _WEIGHTS


def publish(store: Store, files: Mapping[FileMark, Path], progress: Progress) -> None:
    """Those that the store does not have yet."""
    with store.read() as connection:
        there = whole_files(connection)
    missing = {mark: path for mark, path in files.items() if mark.sha256 not in there}
    if not missing:
        return
    done_bytes = 0
    with progress.stage("Putting files into the store", sum(mark.bytes for mark in missing)) as stage:
        for mark, path in missing.items():
            put_file(store, path, mark, lambda count: stage.advance_to(done_bytes + count))  # noqa: B023
            done_bytes += mark.bytes


def published_files(manifest: Manifest, repository: Path) -> dict[FileMark, Path]:
    """What the store has of a release: all of it, but not weights that can be fetched from an address."""
    is_fetched = _has_weights_at_address(manifest)
    wanted = (mark for mark in manifest.files if not (is_fetched and is_weights(mark)))
    return {mark: repository / mark.path for mark in wanted}


def _has_weights_at_address(manifest: Manifest) -> bool:
    """A Triton model and an adapter have their weights among their own files."""
    return bool(manifest.source) and manifest.kind is not Kind.TENSORS and not manifest.base


def texts_beside(directory: Path, known: Iterable[FileMark], progress: Progress) -> list[FileMark]:
    """What lies in a checkpoint beside weights and what is known: whoever runs the model may read it."""
    there = {Path(mark.path) for mark in known}
    found = [path for path in sorted(directory.rglob("*")) if path.is_file() and path not in there]
    texts = [
        path for path in found if path.suffix not in _WEIGHTS and path.stat().st_size <= LARGEST_TEXT_BYTES
    ]
    return mark_files(texts, progress, "Hashing what lies beside")


@dataclass(frozen=True)
class Delivery:
    """`data_dir` has the hashes of files that were looked at before."""

    store: Store
    directories: ReleaseDirectories
    data_dir: Path
    progress: Progress

    def bring(self, manifest: Manifest, beside: Sequence[FileMark] = ()) -> bool:
        """All that a Triton needs; whether anything was missing. Raises Undeliverable."""
        if manifest.is_built_in or self._is_there(manifest):
            return False
        self.directories.make()
        with exclusive(self.directories.lock, self.progress), work_dir(self.directories) as work:
            if self._is_there(manifest):
                return False
            if _has_weights_at_address(manifest):
                self._fetch(manifest)
            self.make([*(mark for mark in manifest.files if Path(mark.path).is_absolute()), *beside])
            own = [mark for mark in manifest.files if not Path(mark.path).is_absolute()]
            for mark in own:
                self._make(mark, work / mark.path)
                (work / mark.path).chmod(0o400)
            with moved_in(work, self.directories, manifest):
                return True

    def bring_texts(self, manifest: Manifest, beside: Sequence[FileMark] = ()) -> None:
        """What a router reads: tokenizer, templates, and the configs of tensor models."""
        self.make(beside)
        self.make(mark for mark in manifest.files if Path(mark.path).is_absolute() and not is_weights(mark))
        for mark in manifest.files:
            if not Path(mark.path).is_absolute() and Path(mark.path).name == CONFIG:
                self._make(mark, self.directories.repository / mark.path)

    def make(self, marks: Iterable[FileMark]) -> None:
        """At the paths that they had where they were added."""
        for mark in marks:
            self._make(mark, Path(mark.path))

    def _is_there(self, manifest: Manifest) -> bool:
        return clean_and_verify(manifest, manifest.digest, self.directories.root) is None

    def _is_same(self, path: Path, mark: FileMark) -> bool:
        try:
            if path.stat().st_size != mark.bytes:
                return False
            return hash_files({path}, self.data_dir, path.name, self.progress)[path] == mark.sha256
        except OSError:
            return False

    def _fetch(self, manifest: Manifest) -> None:
        found = fetch_model(manifest.source, self.data_dir, self.progress).path
        weights = [Path(mark.path) for mark in manifest.files if is_weights(mark)]
        if strays := [path for path in weights if path != found and found not in path.parents]:
            raise Undeliverable(
                f"{manifest.name} was added with its weights in {strays[0].parent}, and here they are in "
                f"{found}: hosts that share only the store need the same data directory, each on its own disk"
            )

    def _make(self, mark: FileMark, path: Path) -> None:
        """Goes on behind what is there of it; what turns out to be something else is removed."""
        if self._is_same(path, mark):
            return
        partial = path.with_name(f".{path.name}.{mark.sha256[:12]}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("ab") as file, ExitStack() as showing:
                number = file.tell() // PIECE_BYTES
                file.truncate(number * PIECE_BYTES)
                file.seek(number * PIECE_BYTES)
                stage = showing.enter_context(self.progress.stage(f"Fetching {path.name}", mark.bytes))
                for data in read_pieces(self.store, mark.sha256, number):
                    file.write(data)
                    stage.advance_to(file.tell())
                file.flush()
                os.fsync(file.fileno())
            self._check(mark, partial)
            partial.replace(path)
        except OSError as error:
            raise Undeliverable(f"{path} cannot be written: {error.strerror or error}") from error

    def _check(self, mark: FileMark, partial: Path) -> None:
        digest, size_bytes = hashlib.sha256(), partial.stat().st_size
        with partial.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                digest.update(data)
        if size_bytes < mark.bytes:
            raise Undeliverable(f"the store has {size_bytes:,} of the {mark.bytes:,} bytes of {mark.path}")
        if digest.hexdigest() != mark.sha256:
            partial.unlink()
            raise Undeliverable(f"{mark.path} has a different hash than when it was added; it was removed")
