"""The keys that a deployment is given by file: nobody reaches a router from elsewhere without any."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.secret_files import read_secret
from launcher.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from router.tenants.administration import Administration

TENANT = "local"
LOAD_KEY_LASTS_S = 30 * 86400.0


@dataclass(frozen=True)
class FirstKey:
    """`is_admin`: for all that can be asked and administered; `is_for_load`: for asking models, for a while.

    Else for reading metrics alone.
    """

    name: str
    file: Path
    is_admin: bool
    is_for_load: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}-key-file"


def ensure_keys(keys: Sequence[FirstKey], state_dir: Path, router: Mapping[str, Any]) -> list[str]:
    """Which of them were not known to the store, and are now."""
    if not keys:
        return []
    texts = [(key, key_text(key)) for key in keys]
    with _administration(state_dir, router) as admin:
        return [key.name for key, text in texts if ensure(admin, key, text)]


def ensure_store(state_dir: Path, router: Mapping[str, Any]) -> None:
    """That it can be used, and has the tables of this version."""
    with _administration(state_dir, router):
        pass


@contextmanager
def _administration(state_dir: Path, router: Mapping[str, Any]) -> Iterator[Administration]:
    from router.tenants.tenancy import StoreUnusable, open_administration

    try:
        with open_administration(
            state_dir, router.get("store_url", ""), router.get("pepper_file", "")
        ) as admin:
            yield admin
    except (StoreUnusable, ValueError) as error:
        raise SettingsError(f"[router] {error}") from error


def key_text(key: FirstKey) -> str:
    from router.tenants.keys import KEY_CHARS, prefix_of

    text = read_secret(key.file, key.flag)
    if not prefix_of(text):
        shape = f"a key has {KEY_CHARS} characters: ik-, 8 characters, - and the secret"
        raise SettingsError(f"{key.flag}: {key.file} does not hold an API key; {shape}")
    return text


def ensure(admin: Administration, key: FirstKey, text: str) -> bool:
    from router.tenants.audited import AlreadyThere

    if is_known(admin, text):
        return False
    try:
        make(admin, key, text)
    except AlreadyThere:
        # Another router does the same at this moment, and may have come as far as the user alone.
        if not is_known(admin, text):
            make(admin, key, text)
    return True


def is_known(admin: Administration, text: str) -> bool:
    """Be it revoked: what somebody has ended does not come back with the next start."""
    from router.tenants.keys import prefix_of
    from router.tenants.rbac import SYSTEM

    prefix = prefix_of(text)
    every = (key for each in admin.list_organisations(SYSTEM) for key in admin.list_keys(SYSTEM, each.id))
    return any(prefix in (key.prefix, key.previous_prefix) for key in every)


def make(admin: Administration, key: FirstKey, text: str) -> None:
    from router.core.tenant import Role, Scope
    from router.tenants.rbac import SYSTEM

    tenant = next(each.id for each in admin.list_organisations(SYSTEM) if each.name == TENANT)
    users = {user.name: user for user in admin.list_users(SYSTEM, tenant)}
    name = f"deployment-{key.name}"
    role, scopes, expires_s = Role.VIEWER, frozenset({Scope.METRICS_READ}), None
    if key.is_admin:
        role, scopes = Role.OWNER, frozenset(Scope)
    elif key.is_for_load:
        role, scopes = Role.MEMBER, frozenset({Scope.INFERENCE, Scope.EMBEDDINGS})
        expires_s = time.time() + LOAD_KEY_LASTS_S
    user = users.get(name) or admin.create_user(SYSTEM, tenant, name, role, key.is_admin)
    admin.create_key(SYSTEM, tenant, user.id, name, scopes, expires_s=expires_s, text=text)
