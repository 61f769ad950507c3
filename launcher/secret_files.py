"""Secrets that are told by file: what must stand neither on a command line nor in a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.settings import SECRETS_BY_FILE, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_secrets(router: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of [router] with, for instance, `store_url` in the place of `store_url_file`.

    Asked for where the secret is needed: not every command of a deployment is given each file.
    """
    resolved = {key: value for key, value in router.items() if key not in SECRETS_BY_FILE}
    for key, of in SECRETS_BY_FILE.items():
        if not router.get(key):
            continue
        if router.get(of):
            raise SettingsError(f"router.{of} and router.{key} are both given: one of them is enough")
        resolved[of] = read_secret(Path(str(router[key])), f"router.{key}")
    return resolved


def read_store_url(router: Mapping[str, Any]) -> str:
    """The one secret that hosts have which share only the store; the others are not theirs to read."""
    named = {key: value for key, value in router.items() if key in ("store_url", "store_url_file")}
    return str(with_secrets(named).get("store_url", ""))


def read_secret(path: Path, what: str) -> str:
    """One line, without its end; `what` names the setting or the flag."""
    try:
        secret = path.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{what}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what}: {path} is not text") from error
    if not secret or "\n" in secret:
        raise SettingsError(f"{what}: {path} must hold one line, the secret")
    return secret
