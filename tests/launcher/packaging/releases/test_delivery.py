"""Files of releases go into the store once, and come out of it on hosts that share nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.packaging.releases import delivery
from launcher.packaging.releases.delivery import (
    Delivery,
    Undeliverable,
    publish,
    published_files,
    texts_beside,
)
from launcher.packaging.releases.directories import ReleaseDirectories
from launcher.packaging.releases.file_marks import mark_files
from router.control.releases.verification import find_tampering
from router.core.manifest import FileMark, Kind, Manifest
from router.store import release_files
from router.store.database import Store
from router.store.release_files import drop_others, find_beside, put_beside, read_pieces, whole_files
from tests.conftest import Unwatched

PIECE = 1000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for module in (delivery, release_files):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    opened = Store(f"sqlite:///{tmp_path / 'store.db'}")
    opened.prepare("pepper")
    yield opened
    opened.close()


@pytest.fixture
def host(tmp_path: Path, store: Store) -> Delivery:
    return Delivery(store, ReleaseDirectories(tmp_path / "releases"), tmp_path / "data", Unwatched())


@pytest.fixture
def release(tmp_path: Path, host: Delivery) -> Manifest:
    """Added here, and in the store."""
    checkpoint, entry = tmp_path / "checkpoint", host.directories.repository / "tiny.2"
    host.directories.make()
    (entry / "2").mkdir(parents=True)
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "vocab.txt").write_text("a\nb\n")
    (entry / "config.pbtxt").write_text('backend: "python"\n')
    (entry / "2" / "model.py").write_text("pass\n")
    outside = mark_files([checkpoint / "model.safetensors", checkpoint / "tokenizer.json"], Unwatched(), "")
    own = mark_files([entry / "config.pbtxt", entry / "2" / "model.py"], Unwatched(), "")
    repository = host.directories.repository
    inside = [replace(mark, path=Path(mark.path).relative_to(repository).as_posix()) for mark in own]
    manifest = Manifest(
        "tiny", 2, Kind.TEXT, ("tiny.2",), checkpoint_dir=str(checkpoint), files=(*outside, *inside)
    )
    host.directories.manifest_of(manifest).write_text(manifest.to_json())
    publish(host.store, published_files(manifest, repository), Unwatched())
    return manifest


def weights_of(manifest: Manifest) -> FileMark:
    return next(mark for mark in manifest.files if mark.path.endswith("model.safetensors"))


def partial_of(mark: FileMark) -> Path:
    path = Path(mark.path)
    return path.with_name(f".{path.name}.{mark.sha256[:12]}.partial")


def empty_disk(manifest: Manifest, host: Delivery) -> None:
    """As that of another host is, to which nothing but the store is common."""
    shutil.rmtree(manifest.checkpoint_dir)
    shutil.rmtree(host.directories.root)


def test_a_release_is_made_again_at_the_same_paths_and_is_what_was_added(
    host: Delivery, release: Manifest
) -> None:
    weights = Path(weights_of(release).path).read_bytes()
    empty_disk(release, host)
    assert host.bring(release)
    assert Path(weights_of(release).path).read_bytes() == weights
    assert find_tampering(release, release.digest, host.directories.root) is None
    assert not host.bring(release), "what is there is not fetched again"


def test_a_router_gets_no_weights(host: Delivery, release: Manifest) -> None:
    empty_disk(release, host)
    host.bring_texts(release)
    assert [path.name for path in Path(release.checkpoint_dir).iterdir()] == ["tokenizer.json"]
    assert (host.directories.repository / "tiny.2" / "config.pbtxt").is_file()
    assert not (host.directories.repository / "tiny.2" / "2").exists()


def test_a_file_that_was_changed_is_made_again(host: Delivery, release: Manifest) -> None:
    path = Path(release.checkpoint_dir, "tokenizer.json")
    path.write_text("[]")
    assert host.bring(release)
    assert path.read_text() == "{}"


def test_a_fetch_goes_on_behind_the_pieces_that_are_there(
    host: Delivery, release: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = weights_of(release)
    whole = Path(mark.path).read_bytes()
    Path(mark.path).unlink()
    partial_of(mark).write_bytes(whole[: 2 * PIECE + 7])
    asked: list[int] = []

    def noted(store: Store, sha256: str, first: int) -> Iterator[bytes]:
        asked.append(first)
        return read_pieces(store, sha256, first)

    monkeypatch.setattr(delivery, "read_pieces", noted)
    host.make([mark])
    assert Path(mark.path).read_bytes() == whole
    assert asked == [2]


def test_what_has_another_hash_is_refused_and_removed(host: Delivery, release: Manifest) -> None:
    mark = weights_of(release)
    Path(mark.path).unlink()
    partial_of(mark).write_bytes(b"x" * PIECE)
    with pytest.raises(Undeliverable, match="a different hash than when it was added; it was removed"):
        host.make([mark])
    assert not Path(mark.path).exists()
    assert not partial_of(mark).exists()


def test_a_file_that_the_store_does_not_have_is_named(host: Delivery, tmp_path: Path) -> None:
    with pytest.raises(Undeliverable, match=r"the store has 0 of the 5 bytes of .*missing"):
        host.make([FileMark(str(tmp_path / "missing"), 5, "0" * 64)])


def test_weights_that_have_an_address_are_not_put_into_the_store(host: Delivery, release: Manifest) -> None:
    fetched = replace(release, source="hf://org/name@1")
    names = {Path(mark.path).name for mark in published_files(fetched, host.directories.repository)}
    assert names == {"tokenizer.json", "config.pbtxt", "model.py"}


def test_weights_that_a_release_has_a_copy_of_come_from_the_store_whatever_its_source(
    host: Delivery, release: Manifest
) -> None:
    entry = host.directories.repository / "tiny.2"
    (entry / "2" / "table.safetensors").write_bytes(b"weights")
    (mark,) = mark_files([entry / "2" / "table.safetensors"], Unwatched(), "")
    files = [each for each in release.files if not Path(each.path).is_absolute()]
    files.append(replace(mark, path="tiny.2/2/table.safetensors"))
    model = replace(
        release, kind=Kind.TENSORS, source="hf://nobody/answers@1", checkpoint_dir="", files=tuple(files)
    )
    publish(host.store, published_files(model, host.directories.repository), Unwatched())
    shutil.rmtree(entry)
    host.directories.manifest_of(release).unlink()
    assert host.bring(model)
    assert (entry / "2" / "table.safetensors").read_bytes() == b"weights"


def test_what_lies_beside_is_remembered_with_the_release(host: Delivery, release: Manifest) -> None:
    beside = texts_beside(Path(release.checkpoint_dir), release.files, Unwatched())
    assert [Path(mark.path).name for mark in beside] == ["vocab.txt"]
    with host.store.begin() as connection:
        put_beside(host.store, connection, release.name, beside)
    with host.store.read() as connection:
        assert find_beside(connection, release.name) == beside
        assert find_beside(connection, "tiny@3") == []


def test_an_interrupted_upload_goes_on_and_half_a_file_is_seen_by_nobody(
    host: Delivery, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"ab" * 2500)
    (mark,) = mark_files([path], Unwatched(), "")

    def stop(done: int) -> None:
        if done >= 2 * PIECE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release_files.put_file(host.store, path, mark, stop)
    with host.store.read() as connection:
        assert whole_files(connection) == set()
    told: list[int] = []
    release_files.put_file(host.store, path, mark, told.append)
    assert told == [3000, 4000, 5000]
    assert b"".join(read_pieces(host.store, mark.sha256, 0)) == path.read_bytes()


def test_files_of_no_release_leave_the_store(host: Delivery, release: Manifest) -> None:
    kept = release.files[0].sha256
    with host.store.begin() as connection:
        drop_others(connection, {kept})
        assert whole_files(connection) == {kept}
    assert not list(read_pieces(host.store, release.files[1].sha256, 0))
