"""Local copies of models that lie elsewhere: each state of each address is fetched once, checked and kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.models.checkpoint import CheckpointError, exclusive, served_name
from launcher.packaging.models.fingerprint import combined, hash_files, remember_hashes
from launcher.packaging.models.manifest import find_damage, read_source, write_manifest
from launcher.packaging.remote.address import Address, AddressError, is_address, parse_address
from launcher.packaging.remote.data_files import all_but_backends, named, only_data
from launcher.packaging.remote.looking import look_at, open_source
from launcher.packaging.remote.source import SourceError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.packaging.remote.source import Listing, Source
    from launcher.progress import Progress

MODELS, MODELS_WITH_CODE = "models", "models-with-code"
KNOWN_COPIES = "addresses.json"
SPARE_DISK_BYTES = 100_000_000


@dataclass(frozen=True)
class LocalCopy:
    """`path` is a directory or a .gguf file, called as the model is; `pinned` the address of its bytes."""

    path: Path
    pinned: str


def local_path(model: str, data_dir: Path, progress: Progress) -> str:
    """Where an address has been fetched to; anything else is left as it is."""
    return str(fetch_model(model, data_dir, progress).path) if is_address(model) else model


def fetch_model(text: str, data_dir: Path, progress: Progress, runs_code: bool = False) -> LocalCopy:
    """From the place itself, or what was fetched from there before when it does not answer.

    Files that are not data come along only with `runs_code`, into a place of their own.
    """
    try:
        address = parse_address(text)
        if address.scheme == "file":
            return _on_this_machine(address, data_dir, progress)
        models_dir = data_dir / (MODELS_WITH_CODE if runs_code else MODELS)
        return Copies(models_dir, data_dir, progress, all_but_backends if runs_code else only_data).of(
            address
        )
    except (AddressError, SourceError) as error:
        raise CheckpointError(str(error)) from None


def is_fetched(path: Path, data_dir: Path) -> bool:
    """Whether it lies where copies are kept: whoever names it by its path names an address all the same."""
    places = [(data_dir / name).resolve() for name in (MODELS, MODELS_WITH_CODE)]
    return any(place in path.expanduser().resolve().parents for place in places)


def _on_this_machine(address: Address, data_dir: Path, progress: Progress) -> LocalCopy:
    path = Path(address.path)
    if not path.exists():
        raise SourceError(f"file://{path} was not found")
    pinned = f"file://{path}"
    if address.sha256:
        found = _tree_sha256(path, _hashes(path, data_dir, progress))
        if found != address.sha256:
            raise SourceError(f"{pinned} has the sha256 {found}, not {address.sha256}")
        pinned = f"{pinned}#sha256={found}"
    return LocalCopy(path, pinned)


class Copies:
    """`allowed` takes what a source has, and leaves what may be fetched of it."""

    def __init__(
        self,
        models_dir: Path,
        data_dir: Path,
        progress: Progress,
        allowed: Callable[[Listing, str], Listing] = only_data,
    ) -> None:
        self._allowed = allowed
        self._models_dir = models_dir
        self._data_dir = data_dir
        self._progress = progress

    def of(self, address: Address) -> LocalCopy:
        known = self._known(address.asked)
        if address.is_pinned and (found := self._sound(known, address)):
            return found  # it cannot have changed
        with closing(open_source(address)) as source:
            try:
                with self._progress.stage(f"Looking at {address.asked}"):
                    listing = self._allowed(look_at(address), address.without_pin.rstrip("/"))
            except Unreachable as error:
                if found := self._sound(known, address):
                    with self._progress.stage(f"{error}; serving the copy fetched earlier"):
                        return found
                raise
            found = self._fetched(address, source, listing)
        self._remember(address.asked, found.path.parent if address.is_one_file else found.path)
        return found

    def _known(self, asked: str) -> Path | None:
        try:
            name = json.loads((self._models_dir / KNOWN_COPIES).read_text(encoding="utf-8"))[asked]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return self._models_dir.joinpath(*Path(str(name)).parts[-2:])

    def _remember(self, asked: str, directory: Path) -> None:
        path = self._models_dir / KNOWN_COPIES
        with exclusive(self._models_dir / f".{KNOWN_COPIES}.lock", self._progress):
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                known = {}
            known[asked] = directory.relative_to(self._models_dir).as_posix()
            written = path.with_name(f".{KNOWN_COPIES}.new")
            written.write_text(json.dumps(known, indent=1), encoding="utf-8")
            os.replace(written, path)

    def _sound(self, directory: Path | None, address: Address) -> LocalCopy | None:
        """Whole by its names and sizes; its bytes are hashed when they are used first, or have changed."""
        if directory is None or find_damage(directory, None, self._progress, hashing=False):
            return None
        path = directory / Path(address.path).name if address.is_one_file else directory
        return LocalCopy(path, read_source(directory))

    def _fetched(self, address: Address, source: Source, listing: Listing) -> LocalCopy:
        mark = hashlib.sha256(f"{address.without_pin} {listing.state}".encode()).hexdigest()[:12]
        target = self._models_dir / mark / served_name(address.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target.parent / ".lock", self._progress):
            found = self._sound(target, address)
            if found is None:
                self._download(address, source, listing, target)
                found = self._sound(target, address)
        if found is None:
            raise SourceError(f"{target} was damaged while it was written: check the disk")
        return found

    def _download(self, address: Address, source: Source, listing: Listing, target: Path) -> None:
        work = target.parent / f".{target.name}.partial"
        work.mkdir(exist_ok=True)
        self._require_disk(listing, work)
        stays = f"; not fetched: {named(listing)}" if listing.left_out else ""
        label = f"Downloading {address.without_pin} ({len(listing.files)} files{stays})"
        with self._progress.stage(label, total_bytes=listing.total_bytes) as stage:
            source.download(listing, work, stage.advance_to)
        _keep_only(listing, work)
        hashes = hash_files(
            {work / file.name for file in listing.files}, self._data_dir, address.name, self._progress
        )
        _refuse_wrong(address, listing, work, hashes)
        whole = _tree_sha256(work / listing.files[0].name if address.is_one_file else work, hashes)
        if address.sha256 and whole != address.sha256 and listing.left_out:
            whole = self._sha256_of_all(source, listing, work, hashes)
        if address.sha256 and whole != address.sha256:
            shutil.rmtree(work)
            raise SourceError(
                f"{address.without_pin} has the sha256 {whole}, not {address.sha256}: it was removed"
            )
        write_manifest(work, address.pinned_to(listing.revision, whole), hashes)
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
        remember_hashes(
            {target / path.relative_to(work): each for path, each in hashes.items()}, self._data_dir
        )

    def _sha256_of_all(self, source: Source, listing: Listing, work: Path, hashes: Mapping[Path, str]) -> str:
        """The hash that pins of 0.8.0 have, over the files that are not data too: those are not kept."""
        others = replace(listing, files=listing.left_out, left_out=())
        with tempfile.TemporaryDirectory(dir=work.parent, prefix=".hashed-") as folder:
            source.download(others, Path(folder), lambda _: None)
            names = {file.name: Path(folder) / file.name for file in others.files}
            found = hash_files({*names.values()}, self._data_dir, work.name, self._progress)
            names.update({path.relative_to(work).as_posix(): path for path in hashes})
            return combined(names, {**found, **hashes})

    def _require_disk(self, listing: Listing, work: Path) -> None:
        there = sum(path.stat().st_blocks * 512 for path in work.rglob("*") if path.is_file())
        needed, free = listing.total_bytes - there + SPARE_DISK_BYTES, shutil.disk_usage(work).free
        if free < needed:
            raise SourceError(
                f"{work.parent} has {free // 10**6:,} MB free, and {needed // 10**6:,} MB are needed "
                "(choose another place with --data-dir)"
            )


def _keep_only(listing: Listing, work: Path) -> None:
    """Without what clients have left beside the files."""
    if links := [path for path in work.rglob("*") if path.is_symlink()]:
        raise SourceError(f"{links[0]} is a link, which a model from an address cannot have")
    wanted = {work / file.name for file in listing.files}
    for path in [each for each in work.rglob("*") if each.is_file() and each not in wanted]:
        path.unlink()
    for folder in sorted((each for each in work.rglob("*") if each.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _refuse_wrong(address: Address, listing: Listing, work: Path, hashes: Mapping[Path, str]) -> None:
    for file in listing.files:
        path = work / file.name
        if file.sha256 and hashes[path] != file.sha256:
            path.unlink()
            raise SourceError(
                f"{address.without_pin}: {file.name} has the sha256 {hashes[path]}, and should have "
                f"{file.sha256}: it was removed"
            )


def _hashes(path: Path, data_dir: Path, progress: Progress) -> dict[Path, str]:
    files = {path} if path.is_file() else {each for each in path.rglob("*") if each.is_file()}
    return hash_files(files, data_dir, path.name, progress)


def _tree_sha256(path: Path, hashes: Mapping[Path, str]) -> str:
    """Of one file its own hash; of a folder that over the names, sizes and hashes of all its files."""
    if path.is_file():
        return hashes[path]
    return combined({each.relative_to(path).as_posix(): each for each in hashes}, dict(hashes))
