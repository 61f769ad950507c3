"""`inflight tenants`, `keys`, `prices`, `usage` and `audit`, on a store of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launcher.commands.main import app
from router.content.files import rows
from router.content.files.model import StoredFile
from router.core.tenant import LOCAL, Caller
from router.store.database import sqlite_url
from router.tenants.keys import Refused
from router.tenants.tenancy import Tenancy, TenancySettings
from tests.router.tenants.values import usage


class Shell:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def ask(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--data-dir", str(self.data_dir)])

    def __call__(self, *words: str) -> str:
        result = self.ask(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refusal(self, *words: str) -> str:
        result = self.ask(*words)
        assert result.exit_code == 2, result.output
        return result.stderr

    def tenancy(self) -> Tenancy:
        """As a router that runs beside it sees things."""
        settings = TenancySettings(
            sqlite_url(self.data_dir / "store.db"),
            (self.data_dir / "pepper").read_bytes(),
            self.data_dir / "spool",
        )
        return Tenancy(settings)


@pytest.fixture
def inflight(own_data_dir: Path) -> Shell:
    return Shell(own_data_dir)


def verify(tenancy: Tenancy, key: str) -> Caller | Refused:
    tenancy.catalogue.refresh()
    return tenancy.keyring.verify(key, 2e9)


def test_a_key_is_created_used_rotated_and_revoked(inflight: Shell) -> None:
    inflight("tenants", "create", "acme")
    key = inflight("keys", "create", "laptop", "--tenant", "acme").strip()
    tenancy = inflight.tenancy()
    caller = verify(tenancy, key)
    assert isinstance(caller, Caller)
    assert (caller.organisation.name, caller.user.name, caller.key.name) == ("acme", "owner", "laptop")
    fresh = inflight("keys", "rotate", "laptop", "--grace", "0m").strip()
    assert isinstance(verify(tenancy, key), Refused)
    assert isinstance(verify(tenancy, fresh), Caller)
    inflight("keys", "revoke", "laptop")
    assert isinstance(verify(tenancy, fresh), Refused)
    listed = inflight("keys", "list")
    assert "revoked" in listed
    assert key not in listed
    tenancy.store.close()


def test_the_first_key_needs_only_a_name(inflight: Shell) -> None:
    assert inflight("keys", "create", "mine").startswith("ik-")
    (kept,) = json.loads(inflight("keys", "list", "--json"))
    assert (kept["organisation_id"], kept["name"]) == ("local", "mine")
    assert "digest" not in kept


def test_a_key_for_an_existing_user_never_has_fewer_rights_than_requested(inflight: Shell) -> None:
    inflight("keys", "create", "first")
    message = "the user owner already exists, as owner and no platform admin; choose another --user"
    assert message in inflight.refusal("keys", "create", "second", "--platform-admin")
    assert message in inflight.refusal("keys", "create", "second", "--role", "viewer")
    inflight("keys", "create", "second", "--role", "owner")
    inflight("keys", "create", "third", "--user", "boss", "--platform-admin")
    inflight("keys", "create", "fourth", "--user", "boss")
    assert len(json.loads(inflight("keys", "list", "--json"))) == 4


def test_limits_prices_and_usage_are_shown_in_dollars(inflight: Shell) -> None:
    inflight("tenants", "create", "acme")
    shown = inflight("tenants", "limit", "acme", "--tokens-per-min", "5000", "--monthly-budget", "12.5")
    assert "5000" in shown
    assert "$12.5" in shown
    shown = inflight("tenants", "limit", "acme", "--weight", "3", "--slot-percent", "25")
    assert "25 %" in shown
    assert "weight" in shown
    assert "$0.6" in inflight("prices", "set", "tiny", "--prompt", "0.15", "--completion", "0.6")
    assert "$0.15" in inflight("prices", "list")
    assert "cost nothing" in inflight("prices", "delete", "tiny")
    assert "0.15" not in inflight("prices", "list")
    (tenant,) = (each for each in json.loads(inflight("tenants", "list", "--json")) if each["name"] == "acme")
    tenancy = inflight.tenancy()
    tenancy.record(usage("r1", organisation_id=tenant["id"], cost=2_500_000))
    tenancy.deliver()
    tenancy.store.close()
    shown = inflight("usage", "--since", "2000-01-01", "--until", "2999-01-01")
    assert "acme" in shown
    assert "$2.5" in shown
    assert (
        json.loads(inflight("usage", "--json", "--tenant", "acme", "--since", "2000-01-01"))[0]["requests"]
        == 1
    )
    assert "limits.write_organisation" in inflight("audit", "--tenant", "acme")
    exported = json.loads(inflight("tenants", "export", "acme"))
    assert exported["organisation"]["name"] == "acme"
    inflight("tenants", "delete", "acme", "--yes")
    assert "acme" not in inflight("tenants", "list")


def test_an_export_includes_the_contents_of_files(inflight: Shell, tmp_path: Path) -> None:
    inflight("tenants", "list")
    file = StoredFile("file-1", LOCAL, "a.txt", "user_data", 6, 1.0)
    store = inflight.tenancy().store
    with store.begin() as connection:
        rows.begin(connection, file)
        rows.add_piece(connection, file.id, 0, b"abc")
        rows.add_piece(connection, file.id, 1, b"def")
        rows.finish(connection, file.id, 6, "")
    store.close()
    files = tmp_path / "files"
    exported = json.loads(inflight("tenants", "export", "local", "--files", str(files)))
    assert [each["filename"] for each in exported["files"]] == ["a.txt"]
    assert {path.name: path.read_bytes() for path in files.iterdir()} == {"file-1": b"abcdef"}
    assert "File exists" in inflight.refusal("tenants", "export", "local", "--files", str(files))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("keys create x --tenant nope", "there is no tenant 'nope'; there are: local"),
        ("keys create x --scope fly", "scope 'fly': allowed are inference, embeddings"),
        ("keys create x --role king", "role 'king': allowed are owner, admin, member, viewer"),
        (
            "keys create x --expires soon",
            "--expires: 'soon' is not a duration; allowed: a number with m, h or d",
        ),
        (
            "keys create x --expires 9999999d",
            "expires: expected a time in the future, before the year",
        ),
        ("keys revoke nothing", "no key called 'nothing': `inflight keys list` shows ids"),
        ("tenants create local", "the name already exists"),
        ("usage --by colour", "by: colour: allowed are organisation, user, key, model, day"),
        ("usage --since yesterday", "since: expected a day as YYYY-MM-DD, got 'yesterday'"),
        ("prices set .. --prompt 1 --completion 1", "is not the name of a model"),
        ("prices set x --prompt inf --completion 1", "inf is not a number of dollars"),
        ("tenants limit local --monthly-budget inf", "inf is not a number of dollars"),
        ("tenants limit local --monthly-budget 1e300", "monthly_budget: expected 0 to"),
    ],
)
def test_an_impossible_command_is_one_line_that_says_what_is_possible(
    inflight: Shell, words: str, message: str
) -> None:
    assert message in inflight.refusal(*words.split())


def test_an_unusable_store_is_named(inflight: Shell, tmp_path: Path) -> None:
    config = tmp_path / "inflight.toml"
    for url, message in (
        ("mysql://x", "store: mysql is not supported"),
        ("nonsense", "store_url: expected sqlite:///PATH or postgresql://"),
        ("postgresql://127.0.0.1:1/none", "the store cannot be reached"),
    ):
        config.write_text(f'[router]\nstore_url = "{url}"\n')
        assert message in inflight.refusal("keys", "list", "--config", str(config))
