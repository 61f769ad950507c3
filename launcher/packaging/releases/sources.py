"""What a release can be made from, recognised by what lies at the path."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.models.catalogue import KNOWN_MODELS
from launcher.packaging.models.checkpoint import CheckpointError, resolve_checkpoint
from launcher.packaging.models.embeddings import ALL_MINILM, resolve_embeddings
from launcher.packaging.models.fingerprint import TOKENIZER, WEIGHTS, find
from launcher.packaging.releases.checks import count_weights, read_json, weights_files
from launcher.packaging.releases.files import ADAPTER_FILES
from launcher.packaging.repository import CONFIG
from python_backend.gguf.header import read_header
from python_backend.wire.model_files import is_embedding_model
from router.core.manifest import Kind

if TYPE_CHECKING:
    from launcher.bundle import Bundled
    from launcher.packaging.models.checkpoint import Checkpoint
    from launcher.progress import Progress


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint stays where it is; the release knows its files, by their names in it, by their hashes."""

    kind: Kind
    checkpoint: Checkpoint
    weights: dict[str, Path]
    tokenizer: dict[str, Path]
    weights_count: int


def kind_at(path: str, may_run_code: bool = True) -> Kind:
    """Refuses what no release can be made from, saying what can.

    Files that came from an address are no Triton model, whatever they are called, unless they `may_run_code`.
    """
    if path == ALL_MINILM.name:
        return Kind.EMBEDDINGS
    if path in KNOWN_MODELS:
        return Kind.TEXT
    place = Path(path).expanduser()
    if is_adapter(path):
        return Kind.TEXT
    if place.suffix == ".gguf" and place.is_file():
        return Kind.TEXT
    if may_run_code and (place / CONFIG).is_file():
        return Kind.TENSORS
    if not place.is_dir() or not (place / "config.json").is_file():
        known = ", ".join(sorted([*KNOWN_MODELS, ALL_MINILM.name]))
        what = "has neither config.json nor config.pbtxt" if place.is_dir() else "does not exist"
        raise CheckpointError(
            f"{path!r} {what}; a release is made from a known model ({known}), a Hugging Face checkpoint "
            "directory, a .gguf file, a LoRA adapter's directory (adapter_config.json), or a directory with "
            "a Triton model's config.pbtxt"
        )
    config = read_json(place / "config.json")
    return Kind.EMBEDDINGS if is_embedding_model(place.resolve(), config) else Kind.TEXT


def is_adapter(path: str) -> bool:
    """Whether a LoRA adapter lies there, as PEFT writes it; one that lacks its weights is refused."""
    place = Path(path).expanduser()
    settings, weights = (place / name for name in ADAPTER_FILES)
    if not settings.is_file():
        return False
    read_json(settings)
    if not weights.is_file():
        raise CheckpointError(f"{place} has {settings.name} and no {weights.name}")
    count_weights(weights)  # refuses a file that is cut short
    return True


def find_checkpoint(
    kind: Kind, path: str, data_dir: Path, progress: Progress, needs_weights: bool, bundled: Bundled
) -> CheckpointSource:
    """Whole, as far as can be told without reading every byte."""
    if kind is Kind.EMBEDDINGS:
        checkpoint = resolve_embeddings(path, data_dir, progress, bundled)
    else:
        checkpoint = resolve_checkpoint(path, data_dir, progress, needs_weights, bundled)
    read_json(checkpoint.directory / "tokenizer.json")
    model = checkpoint.model_path
    tokenizer = find(checkpoint.directory, TOKENIZER)
    if model.suffix == ".gguf":
        count = sum(math.prod(tensor.shape) for tensor in read_header(model).tensors.values())
        return CheckpointSource(kind, checkpoint, {model.name: model}, tokenizer, count)
    read_json(checkpoint.directory / "config.json")
    count = sum(map(count_weights, weights_files(model))) if needs_weights else 0
    return CheckpointSource(kind, checkpoint, find(model, WEIGHTS), tokenizer, count)
