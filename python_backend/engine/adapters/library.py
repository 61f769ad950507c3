"""Where adapters lie on disk, by name, and what tells their content apart."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from python_backend.wire.errors import ErrorKind, InflightError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,190}")


def check_name(name: str) -> None:
    """Raises InflightError for one that could lead out of the directory."""
    if not _NAME.fullmatch(name):
        raise InflightError(
            ErrorKind.INVALID_REQUEST,
            f"the request parameter inflight_adapter is {name!r}; allowed: a name of letters, digits, '.', "
            "'_' and '-'",
            "inflight_adapter",
        )


def find_adapter(directory: Path, name: str) -> Path:
    """A directory as PEFT writes it; raises InflightError where there is none."""
    check_name(name)
    if not (directory / name / CONFIG).is_file():
        raise InflightError(ErrorKind.INVALID_REQUEST, f"adapter {name} not found", "inflight_adapter")
    return directory / name


def identity_of(place: Path, name: str) -> bytes:
    """Of the files as they are now: one that is written anew under the same name is another adapter."""
    digest = hashlib.blake2b(name.encode(), digest_size=16, person=b"adapter")
    for path in (place / CONFIG, place / WEIGHTS):
        found = path.stat()
        digest.update(f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.digest()
