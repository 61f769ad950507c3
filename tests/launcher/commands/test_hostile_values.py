"""Every command that shows what is stored, on a store whose texts are markup, escapes and controls."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sql
import typer.main
from typer.testing import CliRunner, Result

from launcher.commands.main import app
from python_backend.wire.visible_text import visible
from router.control.releases.states import State
from router.core.tenant import Role
from router.store.database import Store, sqlite_url
from router.store.schema import METADATA
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.launcher.commands.release.conftest import SYNTHETIC, Shell
from tests.launcher.commands.release.materials import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

MARKUP = "[/] k [red] :bomb:"
# Of an earlier version, a restored store or another program: no door lets such a name in.
HOSTILE = f"{MARKUP}\x1b]0;owned\x07\x1b[2J\u202e\n  forged line"
# Texts that somebody wrote, or that come from elsewhere.
WRITTEN = {
    "organisations": ("name",),
    "users": ("name",),
    "api_keys": ("name", "prefix"),
    "audit": ("actor", "action", "target", "key_id", "address"),
    "releases": ("notes", "reason"),
    "release_events": ("what", "reason"),
    "rollouts": ("reason",),
    "tuning_decisions": ("sentence", "action", "triton_model"),
    "usage": ("model", "user_id", "key_id"),
}
SHOWING = {
    "tenants list": (),
    "keys list": (),
    "prices list": (),
    "usage": ("--by", "organisation,user,key,model"),
    "audit": (),
    "release list": (),
    "release show": ("m@2",),
    "release status": (),
    "release history": (),
    "slo show": (),
    "tune explain": (),
    "tune history": (),
    "adapter list": (),
    "runtime list": (),
    "doctor": (),
}
# They show a router, a file or nothing that is stored, and have tests of their own.
OTHERS = {"top", "version", "release verify", "tenants export", "release tolerance"}
ACTING = {
    *("up", "perplexity", "chat", "ask", "simulate", "plan", "triton", "router", "chaos", "backup"),
    *("restore", "downgrade", "tenants create", "tenants limit", "tenants delete", "keys create"),
    *("keys rotate", "keys revoke", "prices set", "prices delete", "release add", "release remove"),
    *("release load", "release unload", "release split", "release canary", "release promote"),
    *("release rollback", "release pause", "release resume", "adapter add", "adapter remove", "slo set"),
    *("slo clear", "tune pause", "tune resume", "trtllm build", "trtllm repository", "trtllm check"),
    *("runtime install", "runtime use", "runtime remove", "loadtest run", "loadtest replay"),
    *("loadtest report", "loadtest compare"),
}


def commands() -> set[str]:
    def below(command: Any, path: str) -> set[str]:
        if not hasattr(command, "commands"):
            return {path.strip()}
        return {name for part, each in command.commands.items() for name in below(each, f"{path} {part}")}

    return below(typer.main.get_command(app), "")


def test_a_new_command_is_among_those_that_show_or_those_that_do_not() -> None:
    assert commands() == {*SHOWING, *OTHERS, *ACTING}


@pytest.fixture(scope="module")
def hostile(fresh_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenant with a user, a key, usage and two releases, one of which is tried; their texts are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    data_dir = shutil.copytree(fresh_data_dir, folder / "data")
    shell = Shell(data_dir)
    checkpoint = write_checkpoint(folder / "m")
    for version in (1, 2):
        shell("add", "m", str(checkpoint), *SYNTHETIC, "--notes", MARKUP)
        shell.comes_to("m", version, State.READY)
    shell("promote", "m@1")
    shell("canary", "m@2")
    store = Store(sqlite_url(data_dir / "store.db"))
    admin = Administration(store, (data_dir / "pepper").read_bytes())
    tenant = admin.create_organisation(SYSTEM, MARKUP)
    user = admin.create_user(SYSTEM, tenant.id, MARKUP, Role.OWNER)
    admin.create_key(SYSTEM, tenant.id, user.id, MARKUP)
    with store.begin() as connection:
        day = time.strftime("%Y-%m-%d", time.gmtime())
        row: dict[str, Any] = {
            "request_id": "r",
            "organisation_id": tenant.id,
            "user_id": user.id,
            "key_id": "k",
            "model": "m",
            "model_version": "1",
            "started_s": 1.0,
            "ended_s": 2.0,
            "day": day,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "completion_tokens": 1,
            "cost": 0,
            "outcome": "done",
            "stages": "{}",
        }
        connection.execute(sql.insert(METADATA.tables["usage"]).values(row))
        for name, columns in WRITTEN.items():
            table = METADATA.tables[name]
            for column in columns:
                text = sql.literal(HOSTILE) if column != "prefix" else sql.literal("[/]\x1b[2J")
                ours = table.c.name != "local" if name == "organisations" else sql.true()
                connection.execute(sql.update(table).where(ours).values({column: text}))
    store.close()
    return data_dir


def asked(data_dir: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(data_dir)], env={"COLUMNS": "400"})


@pytest.mark.parametrize("command", SHOWING)
def test_a_command_that_lists_shows_hostile_values_as_letters(hostile: Path, command: str) -> None:
    has_data_dir = command != "doctor"
    words = [*command.split(), *SHOWING[command]]
    done = asked(hostile, *words) if has_data_dir else CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (0, 1), done.output
    for forbidden in ("\x1b", "\x07", "\u202e", "\n  forged line", "\nforged line"):
        assert forbidden not in done.output


@pytest.mark.parametrize("command", ["tenants list", "keys list", "release list", "release history"])
def test_names_are_shown_whole_so_that_they_can_be_told_apart(hostile: Path, command: str) -> None:
    shown = "".join(asked(hostile, *command.split()).stdout.split())
    assert "".join(visible(HOSTILE).replace(r"\x07", "").split()) in shown.replace(r"\x07", "")


def test_a_key_whose_name_is_markup_can_be_found_and_revoked(own_data_dir: Path) -> None:
    name = "[/] k [red]"
    assert asked(own_data_dir, "tenants", "create", "acme").exit_code == 0
    made = asked(own_data_dir, "keys", "create", name, "--tenant", "acme")
    assert made.exit_code == 0, made.output
    listed = asked(own_data_dir, "keys", "list")
    assert listed.exit_code == 0, listed.output
    assert name in listed.stdout
    (key,) = json.loads(asked(own_data_dir, "keys", "list", "--json").stdout)
    assert key["id"] in listed.stdout
    revoked = asked(own_data_dir, "keys", "revoke", key["id"])
    assert revoked.exit_code == 0, revoked.output
    assert name in revoked.stdout
