from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from router.control.releases import verification
from router.control.releases.verification import drop_bytecode, find_tampering
from router.core.manifest import FileMark, Manifest
from tests.router.control.releases.values import built_in, manifest, written

CONFIG = "smol.1.tensorrt_llm/config.pbtxt"


@pytest.fixture
def release(tmp_path: Path) -> Manifest:
    return written(tmp_path, manifest(1))


def overwrite(directory: Path) -> None:
    path = directory / "repository" / CONFIG
    path.write_bytes(bytes(path.stat().st_size))


def lengthen(directory: Path) -> None:
    with (directory / "repository" / CONFIG).open("ab") as file:
        file.write(b"#")


def link_away(directory: Path) -> None:
    path = directory / "repository" / CONFIG
    path.rename(directory / "moved")
    path.symlink_to(directory / "moved")


def link_directory(directory: Path) -> None:
    path = directory / "repository" / "smol.1"
    path.rename(directory / "moved")
    path.symlink_to(directory / "moved")


def retell(directory: Path) -> None:
    path = directory / "manifests" / "smol@1.json"
    path.write_text(replace(written(directory / "x", manifest(1)), weights_sha256="other").to_json())


TAMPERINGS: list[tuple[Callable[[Path], object], str]] = [
    (overwrite, f"{CONFIG} has changed since it was added"),
    (lengthen, f"{CONFIG} has 29 bytes; it had 28 when it was added"),
    (lambda path: (path / "repository" / CONFIG).unlink(), f"{CONFIG} is missing"),
    (link_away, f"{CONFIG} is not a regular file"),
    (link_directory, "the Triton model smol.1 is missing"),
    (
        lambda path: (path / "repository" / "smol.1" / "1" / "model.py").write_text("import os"),
        "smol.1/1/model.py did not exist when it was added",
    ),
    (
        lambda path: (path / "repository" / "smol.1" / "1" / "link").symlink_to("/"),
        "smol.1/1/link did not exist when it was added",
    ),
    (lambda path: (path / "manifests" / "smol@1.json").unlink(), "its description is missing on disk"),
    (
        lambda path: (path / "manifests" / "smol@1.json").write_text("{"),
        "its description on disk cannot be read",
    ),
    (retell, "its description on disk has changed since it was added"),
]


def test_an_untouched_release_passes_verification(tmp_path: Path, release: Manifest) -> None:
    assert find_tampering(release, release.digest, tmp_path) is None


@pytest.mark.parametrize(("tamper", "told"), TAMPERINGS)
def test_any_tampering_with_a_release_is_found(
    tmp_path: Path, release: Manifest, tamper: Callable[[Path], object], told: str
) -> None:
    assert find_tampering(release, release.digest, tmp_path) is None
    tamper(tmp_path)
    assert find_tampering(release, release.digest, tmp_path) == told


def test_leftover_bytecode_is_removed_and_a_link_in_its_place_is_not_followed(
    tmp_path: Path, release: Manifest
) -> None:
    folder = tmp_path / "repository" / "smol.1" / "1"
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"\0")
    assert find_tampering(release, release.digest, tmp_path) is not None
    drop_bytecode(release, tmp_path)
    assert find_tampering(release, release.digest, tmp_path) is None
    (tmp_path / "elsewhere").mkdir()
    (folder / "__pycache__").symlink_to(tmp_path / "elsewhere")
    drop_bytecode(release, tmp_path)
    assert (tmp_path / "elsewhere").is_dir()
    assert find_tampering(release, release.digest, tmp_path) is not None


def test_a_stored_manifest_has_the_digest_it_was_added_with(tmp_path: Path, release: Manifest) -> None:
    other = replace(release, weights_sha256="other")
    told = find_tampering(other, release.digest, tmp_path)
    assert told == "its description in the store has changed since it was added"


def test_no_path_leads_out_of_the_repository(tmp_path: Path, release: Manifest) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    mark = FileMark("../outside", 1, "0")
    astray = replace(release, files=(*release.files, mark))
    (tmp_path / "manifests" / "smol@1.json").write_text(astray.to_json())
    told = find_tampering(astray, astray.digest, tmp_path)
    assert told == "../outside is outside the release's directories"


def test_a_checkpoint_may_be_links_and_its_path_is_not_shown(tmp_path: Path, release: Manifest) -> None:
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    digest = "4a65eed1ddd2b0dd59ba3cae01a1ac8a0e67fb2ddbafc8efc99c3b5bb13b0d47"
    mark = FileMark(str(tmp_path / "model.safetensors"), 7, digest)
    heavy = replace(release, files=(*release.files, mark))
    (tmp_path / "manifests" / "smol@1.json").write_text(heavy.to_json())
    told = find_tampering(heavy, heavy.digest, tmp_path)
    assert told == "model.safetensors has changed since it was added"


def test_a_file_is_hashed_again_only_when_it_was_written_to(
    tmp_path: Path, release: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_tampering(release, release.digest, tmp_path) is None
    with monkeypatch.context() as patch:
        patch.setattr(verification, "hashlib", None)  # without it nothing can be hashed
        assert verification._fault_of(release.files[0], tmp_path / "repository") is None
    path = tmp_path / "repository" / CONFIG
    times_ns = path.stat().st_atime_ns, path.stat().st_mtime_ns
    overwrite(tmp_path)
    os.utime(path, ns=times_ns)
    assert find_tampering(release, release.digest, tmp_path) == f"{CONFIG} has changed since it was added"


def test_a_built_in_release_has_no_files_to_verify(tmp_path: Path) -> None:
    assert find_tampering(built_in(), built_in().digest, tmp_path) is None
