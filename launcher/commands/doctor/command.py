"""The command line of `inflight doctor`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli import URL_VARIABLE, KeyOption
from client.terminal import print
from python_backend.wire.visible_text import visible

if TYPE_CHECKING:
    from launcher.commands.doctor.finding import Finding
    from launcher.settings import Settings

EXIT_FAILED = 1
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def doctor(
    url: Annotated[
        str | None,
        typer.Option(
            help="A running router. [default: the one on the port of the settings, if any]",
            envvar=URL_VARIABLE,
            show_envvar=False,
        ),
    ] = None,
    key: KeyOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where models and logs are kept. [default: ~/.local/share/inflight]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file. [default: ./inflight.toml when it is there]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine, this installation and the running router, and suggest fixes.

    Nothing is started or changed, but each model that runs is asked for one token, or one embedding; with
    keys that needs one with the scope inference, and the router's metrics one with metrics:read.

    `inflight doctor`  before the first start, and before and after an upgrade

    `inflight doctor --url https://llm.example.org --key KEY --json`  of a router elsewhere, for programs

    Exit status: 1 when something fails, else 0, warnings or not.
    """
    sections = examine(url, key, data_dir, config)
    if as_json:
        plain = {name: [dataclasses.asdict(each) for each in found] for name, found in sections.items()}
        print(json.dumps(plain, indent=2))
    else:
        _print(sections)
    if any(each.verdict == "fail" for found in sections.values() for each in found):
        raise typer.Exit(EXIT_FAILED)


def examine(
    url: str | None, key: str | None, data_dir: Path | None, config: Path | None
) -> dict[str, list[Finding]]:
    """By section; a section that cannot be looked at says why."""
    # Imported here: the other commands need not wait for it.
    from launcher.commands.doctor.deployment import judge_deployment
    from launcher.commands.doctor.deployment_facts import ask_deployment
    from launcher.commands.doctor.finding import failure, skipped
    from launcher.commands.doctor.router_alone import is_router_alone, without_tritons
    from launcher.settings import Settings, SettingsError, load_settings

    broken: list[Finding] = []
    try:
        settings = load_settings(config, {"data_dir": data_dir})
    except SettingsError as error:
        broken = [
            failure("settings", str(error), "correct it in inflight.toml, or in the file that --config names")
        ]
        settings = Settings()
    deployment = ask_deployment(url or _own_url(settings), key)
    is_ours = deployment.is_live and url is None
    in_use = frozenset({settings.stack.port, settings.stack.grpc_port} if is_ours else ())
    sections = {
        "machine": _machine(settings),
        "installation": [*broken, *_installation(settings, in_use)],
        "deployment": judge_deployment(deployment, importlib.metadata.version("inflight")),
    }
    if is_router_alone(settings):
        sections |= {name: without_tritons(sections[name]) for name in ("machine", "installation")}
    if url is None and not deployment.is_live:
        sections["deployment"] = [skipped("live", f"nothing runs at {deployment.url}")]
    return sections


def _own_url(settings: Settings) -> str:
    scheme = "https" if settings.router.get("tls_cert") else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.stack.host, settings.stack.host)
    return f"{scheme}://{host}:{settings.stack.port}"


def _machine(settings: Settings) -> list[Finding]:
    from launcher.commands.doctor.machine import judge_gpu, judge_machine, judge_tensorrt_llm
    from launcher.commands.doctor.machine_facts import engine_looks, machine_facts, version_of

    seen = engine_looks()
    return [
        *judge_machine(machine_facts(settings.stack.data_dir)),
        judge_gpu(seen),
        judge_tensorrt_llm(version_of("tensorrt_llm"), bool(seen["gpus"])),
    ]


def _installation(settings: Settings, in_use: frozenset[int]) -> list[Finding]:
    from launcher.commands.doctor.finding import fine
    from launcher.commands.doctor.installation import (
        check_data_dir,
        check_model,
        check_ports,
        check_router_parts,
        check_triton,
    )
    from launcher.commands.doctor.machine_facts import live_runs, machine_facts, ports_of_runs

    stack = settings.stack
    runs = live_runs(stack.data_dir)
    return [
        *check_triton(),
        check_data_dir(stack.data_dir),
        check_model(stack.model, stack.data_dir, machine_facts(stack.data_dir).disk_free_bytes),
        *check_ports(stack, in_use | ports_of_runs(stack.data_dir, runs)),
        *check_router_parts(settings),
        fine("stacks", f"{', '.join(runs)} run with this data directory" if runs else "none runs here"),
    ]


def _print(sections: dict[str, list[Finding]]) -> None:
    from rich.text import Text

    from client.terminal import Console

    console = Console()
    counts = {"ok": 0, "warn": 0, "fail": 0, "skipped": 0}
    for name, found in sections.items():
        console.print(Text(name, style="bold"))
        for each in found:
            counts[each.verdict.value] += 1
            told = Text("  ")
            told.append(f"{each.verdict.value:<8}", style=_STYLES[each.verdict.value])
            told.append(visible(f"{each.check}: {each.what}"))
            console.print(told, soft_wrap=True)
            if each.advice:
                console.print(Text(f"          -> {each.advice}", style="cyan"), soft_wrap=True)
    console.print(Text(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), style="bold"))
