"""What a checkpoint is known by, whatever it is called and wherever it lies: hashes of what it is made of."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.models.manifest import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.packaging.models.checkpoint import Checkpoint
    from launcher.progress import Progress

CACHE_FILE = "fingerprints.json"
WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
# Whatever changes the tokens that a text becomes, the text that tokens become, or how a text is asked.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
    "generation_config.json",
    "config.json",
    "sentence_bert_config.json",
    "modules.json",
    "1_Pooling/config.json",
)


@dataclass(frozen=True)
class Fingerprint:
    weights_sha256: str
    tokenizer_sha256: str
    weights_bytes: int


def fingerprint(checkpoint: Checkpoint, data_dir: Path, progress: Progress) -> Fingerprint:
    """Hashes each file once; after that its size, times and inode say that it is the same. Raises OSError."""
    path = checkpoint.model_path
    weights = {path.name: path} if path.is_file() else find(path, WEIGHTS)
    tokenizer = find(checkpoint.directory, TOKENIZER)
    hashes = hash_files({*weights.values(), *tokenizer.values()}, data_dir, checkpoint.name, progress)
    return Fingerprint(
        weights_sha256=combined(weights, hashes),
        tokenizer_sha256=combined(tokenizer, hashes),
        weights_bytes=sum(file.stat().st_size for file in weights.values()),
    )


def find(directory: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """The files of a checkpoint by the names they have in it."""
    found = (file for pattern in patterns for file in directory.glob(pattern) if file.is_file())
    return {str(file.relative_to(directory)): file for file in found}


def combined(files: dict[str, Path], hashes: dict[Path, str]) -> str:
    lines = (f"{name} {files[name].stat().st_size} {hashes[files[name]]}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_files(files: set[Path], data_dir: Path, name: str, progress: Progress) -> dict[Path, str]:
    """Each file once; `name` is what the user is told that they belong to."""
    known = _read_cache(data_dir / CACHE_FILE)
    hashes = {file: known[key] for file in files if (key := _key(file)) in known}
    missing = sorted(files - hashes.keys())
    if not missing:
        return hashes
    done_bytes = 0
    with progress.stage(f"Hashing {name}", total_bytes=sum(file.stat().st_size for file in missing)) as stage:
        for file in missing:
            before = _key(file)
            hashes[file] = sha256(file, lambda count: stage.advance_to(done_bytes + count))  # noqa: B023
            done_bytes += file.stat().st_size
            if _key(file) == before:  # one that is being written is not the one that was hashed
                known[before] = hashes[file]
    _write_cache(data_dir / CACHE_FILE, known)
    return hashes


def remember_hashes(hashes: Mapping[Path, str], data_dir: Path) -> None:
    """Of files that were hashed where they lay before."""
    known = _read_cache(data_dir / CACHE_FILE)
    _write_cache(data_dir / CACHE_FILE, {**known, **{_key(file): digest for file, digest in hashes.items()}})


def _key(file: Path) -> str:
    facts = file.stat()
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino} {file.resolve()}"


def _read_cache(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in known.items()} if isinstance(known, dict) else {}


def _write_cache(path: Path, known: dict[str, str]) -> None:
    """Without what no longer lies there; a disk that cannot be written costs the next start its time."""
    kept = {key: value for key, value in known.items() if _is_current(key)}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".fingerprints-", delete=False) as file:
            json.dump(kept, file, indent=1)
        os.replace(file.name, path)


def _is_current(key: str) -> bool:
    try:
        return _key(Path(key.split(" ", 4)[4])) == key
    except (OSError, IndexError, ValueError):
        return False
