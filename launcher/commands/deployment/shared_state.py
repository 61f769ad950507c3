"""What the two commands of a deployment share: the state directory, and the secret between them."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.secret_files import read_secret
from launcher.settings import SettingsError, load_settings, state_dir
from router.store.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.settings import Settings

SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
MADE_SECRET = "triton-secret"


def deployment_settings(config: Path | None, flags: Mapping[str, object], state: Path | None) -> Settings:
    """As of `inflight up`; the state directory may be told by a flag as well."""
    settings = load_settings(config, flags)
    chosen = state.expanduser().absolute() if state else state_dir(settings)
    return replace(settings, router={**settings.router, "state_dir": str(chosen)})


def triton_secret(file: Path | None, settings: Settings) -> str:
    """The given one, or one that whoever comes first makes in the state directory."""
    if file is None:
        file = state_dir(settings) / MADE_SECRET
        make_secret(file)
    secret = read_secret(file, "--secret-file")
    if not SECRET.fullmatch(secret):
        raise SettingsError(f"--secret-file: {file} must hold 16 to 256 of A-Z, a-z, 0-9, '-' and '_'")
    return secret


def make_secret(file: Path) -> None:
    make_private(file.parent)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secrets.token_hex(16))
