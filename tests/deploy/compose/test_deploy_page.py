"""docs/deploy.md: its commands name what is there, and back up and restore a store that is a real one."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
import typer.main

from deploy.compose_file import ROOT, compose, example_environment
from launcher.commands.chaos.backing import postgres_binaries
from launcher.commands.main import app
from router.store.database import PepperError, Store
from router.store.schema import facts
from tests.deploy.compose.reading import replaced
from tests.router.tenants.postgres import Postgres, running_postgres

PAGE = (ROOT / "docs" / "deploy.md").read_text()
SERVICES: dict[str, Any] = compose()["services"]
COMMANDS: Any = typer.main.get_command(app)
PROFILES = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
OF_A_SERVICE = {"exec", "run", "logs", "stop", "start", "restart"}
OF_ALL = {"up", "down", "build", "ps"}


def commands_in(page: str, program: str) -> list[list[str]]:
    """Lines of blocks, and what stands between backticks, that begin with these words."""
    blocks = [line for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    found = [line for line in blocks + inline if line.startswith(f"{program} ")]
    return [shlex.split(re.split(r" [<>] ", line)[0])[len(program.split()) :] for line in found]


def check_inflight(words: list[str]) -> None:
    """Follows the words through groups of commands; options must be the last one's."""
    command = COMMANDS
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no {words}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}, words


@pytest.mark.parametrize("words", commands_in(PAGE, "docker compose"), ids=" ".join)
def test_documented_compose_commands_name_existing_services_and_profiles(words: list[str]) -> None:
    while words[0] == "--profile":
        assert words[1] in PROFILES
        words = words[2:]
    subcommand, *rest = words
    assert subcommand in OF_A_SERVICE | OF_ALL
    if scaled := [word for word in rest if "=" in word and subcommand == "up"]:
        assert scaled[0].split("=")[0] in SERVICES
    if subcommand not in OF_A_SERVICE:
        return
    service, *inside = [word for word in rest if word not in ("-T", "-f", "--rm", "--since", "1h")] or [
        "router"
    ]
    assert service in SERVICES
    if subcommand == "run":
        check_inflight([*SERVICES[service]["entrypoint"][1:], *(word for word in inside if word != "...")])
    elif inside and inside[0] == "inflight":
        check_inflight(inside[1:])
    elif inside[:2] == ["sh", "-c"]:
        check_inflight(shlex.split(inside[2].partition(" inflight ")[2]))
        named = re.findall(r"/run/secrets/(\w+)", inside[2])
        assert set(named) <= set(SERVICES[service]["secrets"])
    elif subcommand in ("logs", "restart"):
        assert set(inside) <= SERVICES.keys()


@pytest.mark.parametrize("words", commands_in(PAGE, "inflight"), ids=" ".join)
def test_documented_inflight_commands_have_existing_options(words: list[str]) -> None:
    check_inflight(words)


def test_documented_variables_secrets_and_ports_exist() -> None:
    variables = set(re.findall(r"\b(?:INFLIGHT|TRITON|ROUTER|COMPOSE)_[A-Z_]+\b", PAGE))
    assert variables <= example_environment().keys() | {"INFLIGHT_API_KEY"}
    table = PAGE.split("## Secrets", 1)[1].split("## ", 1)[0]
    named = {
        name for row in re.findall(r"^\| (`[^|]+)\|", table, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == compose()["secrets"].keys()
    ports = set(re.findall(r"^\| (\d{4}) \|", PAGE, re.M))
    assert ports == {port.split(":")[1] for each in SERVICES.values() for port in each.get("ports", ())}


def test_every_volume_is_explained() -> None:
    table = PAGE.split("| volume |", 1)[1].split("\n\n", 1)[0]
    named = {
        name for row in re.findall(r"^\| (`[^|]+)\|", table, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == compose()["volumes"].keys()


def test_the_store_is_healthy_and_its_backup_can_be_restored_as_documented() -> None:
    dump, restore = (
        next(words for words in commands_in(PAGE, "docker compose") if program in words)
        for program in ("pg_dump", "pg_restore")
    )
    with running_postgres() as postgres:
        store = Store(postgres.new_database("inflight"))
        with postgres.connect() as connection:
            connection.execute("CREATE ROLE inflight SUPERUSER LOGIN")
        healthy = replaced(
            SERVICES["postgres"]["healthcheck"]["test"][1:],
            ("pg_isready", str(postgres_binaries() / "pg_isready")),
            ("127.0.0.1", str(postgres.socket_dir)),
        )
        subprocess.run(healthy, check=True)
        try:
            store.prepare("a pepper")
            backup = run_inside(postgres, dump)
            with store.begin() as connection_to_store:
                connection_to_store.execute(sql.delete(facts))
                connection_to_store.execute(sql.text("CREATE TABLE of_a_newer_version (id int)"))
            store.engine.dispose()  # the routers have been stopped
            run_inside(postgres, restore, backup)
            with pytest.raises(PepperError):
                store.prepare("another pepper, since the first one is known again")
            assert "of_a_newer_version" not in sql.inspect(store.engine).get_table_names()
        finally:
            store.close()


def run_inside(postgres: Postgres, words: list[str], given: bytes | None = None) -> bytes:
    """A command of the container's, on a server that listens elsewhere."""
    program, *options = words[words.index("postgres") + 1 :]
    command: list[str | Path] = [postgres_binaries() / program, f"--host={postgres.socket_dir}", *options]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
