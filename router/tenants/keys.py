"""What a key looks like, how one is made, and the only form in which it is kept."""

from __future__ import annotations

import hmac
import os
import secrets
import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_START = "ik-"
PREFIX_CHARS = 8
SECRET_CHARS = 40
_PREFIX_AT = len(_START)
_DASH_AT = _PREFIX_AT + PREFIX_CHARS
KEY_CHARS = _DASH_AT + 1 + SECRET_CHARS
_PEPPER_BYTES = 32


def mint() -> tuple[str, str]:
    """A new key as its holder sees it, once, and the prefix by which it is named from then on."""
    prefix = _random_text(PREFIX_CHARS)
    return f"{_START}{prefix}-{_random_text(SECRET_CHARS)}", prefix


def prefix_of(presented: str) -> str:
    """The prefix of what was presented; an empty one where it does not look like a key."""
    if len(presented) == KEY_CHARS and presented.startswith(_START) and presented[_DASH_AT] == "-":
        return presented[_PREFIX_AT:_DASH_AT]
    return ""


def digest(presented: str, pepper: bytes) -> bytes:
    """A secret has 238 random bits: one keyed SHA-256 is enough, a slow hash would only slow requests."""
    return hmac.digest(pepper, presented.encode("utf-8", "surrogatepass"), "sha256")


def load_pepper(path: Path) -> bytes:
    """Reads the secret of this installation, made on first use; without it no stored key can be tried out."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pepper = path.read_bytes()
    else:
        pepper = secrets.token_bytes(_PEPPER_BYTES)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pepper)
            file.flush()
            os.fsync(descriptor)
    if len(pepper) != _PEPPER_BYTES:
        raise ValueError(f"{path}: expected {_PEPPER_BYTES} bytes, found {len(pepper)}")
    return pepper


def fingerprint(pepper: bytes) -> str:
    """Kept in the store, so that a router with another pepper says so instead of refusing every key."""
    return hmac.digest(pepper, b"inflight pepper fingerprint", "sha256").hex()[:16]


def _random_text(chars: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(chars))
