"""The keys that a deployment is given by file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.commands.deployment import first_keys
from launcher.commands.deployment.first_keys import FirstKey, ensure_keys
from launcher.settings import SettingsError
from router.core.tenant import ApiKey, Role, Scope
from router.tenants.administration import Administration
from router.tenants.keys import mint
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration


@pytest.fixture
def keys(tmp_path: Path) -> tuple[FirstKey, ...]:
    for name in ("admin", "metrics"):
        (tmp_path / name).write_text(f"{mint()[0]}\n")
    return (
        FirstKey("admin", tmp_path / "admin", is_admin=True),
        FirstKey("metrics", tmp_path / "metrics", is_admin=False),
    )


@contextmanager
def the_office(tmp_path: Path) -> Iterator[Administration]:
    with open_administration(tmp_path / "state") as admin:
        yield admin


def kept(tmp_path: Path) -> dict[str, ApiKey]:
    with the_office(tmp_path) as admin:
        return {key.name: key for key in admin.list_keys(SYSTEM, "local")}


def test_first_keys_exist_after_the_first_start_and_are_created_once(
    keys: tuple[FirstKey, ...], tmp_path: Path
) -> None:
    assert ensure_keys(keys, tmp_path / "state", {}) == ["admin", "metrics"]
    assert ensure_keys(keys, tmp_path / "state", {}) == []
    found = kept(tmp_path)
    assert found["deployment-admin"].scopes == frozenset(Scope)
    assert found["deployment-metrics"].scopes == {Scope.METRICS_READ}
    assert (tmp_path / "admin").read_text()[3:11] == found["deployment-admin"].prefix
    with the_office(tmp_path) as admin:
        users = {user.name: user for user in admin.list_users(SYSTEM, "local")}
    assert users["deployment-admin"].platform_admin
    assert not users["deployment-metrics"].platform_admin


def test_the_key_for_load_tests_asks_models_for_thirty_days_and_does_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "loadtest").write_text(mint()[0])
    key = FirstKey("loadtest", tmp_path / "loadtest", is_admin=False, is_for_load=True)
    assert ensure_keys([key], tmp_path / "state", {}) == ["loadtest"]
    found = kept(tmp_path)["deployment-loadtest"]
    assert found.scopes == {Scope.INFERENCE, Scope.EMBEDDINGS}
    assert found.expires_s is not None
    assert 29 * 86400 < found.expires_s - time.time() <= 30 * 86400
    with the_office(tmp_path) as admin:
        (user,) = (each for each in admin.list_users(SYSTEM, "local") if each.name == "deployment-loadtest")
    assert (user.role, user.platform_admin) == (Role.MEMBER, False)


def test_a_rotated_or_revoked_first_key_does_not_come_back(
    keys: tuple[FirstKey, ...], tmp_path: Path
) -> None:
    ensure_keys(keys, tmp_path / "state", {})
    with the_office(tmp_path) as admin:
        by_name = {key.name: key.id for key in admin.list_keys(SYSTEM, "local")}
        admin.rotate_key(SYSTEM, "local", by_name["deployment-admin"])
        admin.revoke_key(SYSTEM, "local", by_name["deployment-metrics"])
    assert ensure_keys(keys, tmp_path / "state", {}) == []
    assert len(kept(tmp_path)) == 2


def test_a_new_text_in_the_file_is_one_more_key_of_the_same_user(
    keys: tuple[FirstKey, ...], tmp_path: Path
) -> None:
    ensure_keys(keys, tmp_path / "state", {})
    keys[0].file.write_text(mint()[0])
    assert ensure_keys(keys, tmp_path / "state", {}) == ["admin"]
    with the_office(tmp_path) as admin:
        assert len(admin.list_keys(SYSTEM, "local")) == 3


def test_two_routers_that_create_first_keys_at_once_do_no_harm(
    keys: tuple[FirstKey, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([False, True])
    known = first_keys.is_known
    ensure_keys(keys[:1], tmp_path / "state", {})
    # It looks before the other has written, and once more when its own write is refused.
    monkeypatch.setattr(first_keys, "is_known", lambda admin, text: next(seen) and known(admin, text))
    ensure_keys(keys[:1], tmp_path / "state", {})
    assert len(kept(tmp_path)) == 1


def test_an_invalid_key_file_is_refused_without_showing_its_content(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("correct horse")
    key = FirstKey("admin", tmp_path / "admin", is_admin=True)
    with pytest.raises(
        SettingsError, match=r"--admin-key-file: .*admin does not hold an API key; a key has 52 characters"
    ) as refused:
        ensure_keys([key], tmp_path / "state", {})
    assert "horse" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"--metrics-key-file: .*nowhere cannot be read"):
        ensure_keys([FirstKey("metrics", tmp_path / "nowhere", False)], tmp_path / "state", {})


def test_an_unusable_store_is_named(keys: tuple[FirstKey, ...], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\[router\] store_url: expected"):
        ensure_keys(keys, tmp_path / "state", {"store_url": "cheese"})
    assert ensure_keys([], tmp_path / "state", {"store_url": "cheese"}) == []
