"""`inflight adapter add`, `list` and `remove`: what they do is done with releases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.installation import Installation, open_installation
from launcher.commands.option_values import model_named
from launcher.commands.options import AsJson, Config, DataDir
from launcher.commands.output import output_console, show_json
from launcher.commands.release.life_commands import NoWait, follow
from launcher.commands.release.registry_commands import release_json

if TYPE_CHECKING:
    from router.control.releases.records import Release

AdapterName = Annotated[
    str,
    typer.Argument(
        metavar="BASE:NAME", show_default=False, help="The base model's name and the adapter's own."
    ),
]


def add(
    name: AdapterName,
    path: Annotated[
        Path,
        typer.Argument(
            show_default=False,
            help="A directory in PEFT's format: adapter_config.json, adapter_model.safetensors.",
        ),
    ],
    notes: Annotated[str, typer.Option(help="Free text, shown by `inflight release show`.")] = "",
    no_wait: NoWait = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Add an adapter to a model that is served, load it, and serve it as BASE:NAME.

    Its files are copied. It is a release like any other, version 1; if there is one of this name, the new
    version takes its place when it is ready. To try a new version on a part of the requests, use `inflight
    release add` and `inflight release canary` instead.
    """
    from launcher.commands.release.addition import add_release
    from launcher.console import StackConsole
    from launcher.packaging.releases.builder import ReleaseRequest
    from launcher.stack.stop_signals import StopSignals
    from router.control.releases.records import find_split

    with open_installation(data_dir, config) as ours:
        order = ReleaseRequest(_adapter_named(name), str(path), notes=notes)
        made = add_release(order, ours, StackConsole(), StopSignals()).manifest
        with ours.releases.look() as connection:
            is_first = find_split(connection, made.model) is None
        if is_first:
            ours.releases.promote(made.model, made.version, "added")
        change = ours.releases.load(made.model, made.version)
        follow(ours, made.model, made.version, change, no_wait)
        if not is_first and not no_wait:
            ours.releases.promote(made.model, made.version, "a new version was added")
        print(
            f"{made.name} is {'to be ' if no_wait else ''}served as {made.model}, an adapter of {made.base}."
        )
        if no_wait and not is_first:
            print(f"Once it is ready:\n  inflight release promote {made.name}")


def list_all(as_json: AsJson = False, data_dir: DataDir = None, config: Config = None) -> None:
    """List adapters, with their releases."""
    with open_installation(data_dir, config) as ours:
        found = _releases(ours)
    if as_json:
        show_json([release_json(each) for each in found])
        return
    if not found:
        print("There are no adapters yet (`inflight adapter add`).")
        return
    from launcher.commands.release.tables import release_list

    output_console().print(release_list(found, time.time()))


def remove(name: AdapterName, data_dir: DataDir = None, config: Config = None) -> None:
    """Unload an adapter after its requests in flight have finished, and remove it with all its releases."""
    from launcher.console import StackConsole
    from launcher.packaging.models.checkpoint import exclusive
    from launcher.packaging.releases.files import take_out
    from router.control.releases.records import find_split

    with open_installation(data_dir, config) as ours:
        model = _adapter_named(name)
        found = [each for each in _releases(ours) if each.manifest.model == model]
        if not found:
            raise ValueError(f"there is no adapter {model}; `inflight adapter list` shows all of them")
        with ours.releases.look() as connection:
            split = find_split(connection, model)
        # What gets requests goes last.
        for each in sorted(found, key=lambda each: split is not None and split.weight_of(each.version) > 0):
            ours.releases.unload(model, each.version, withdraw=True)
            follow(ours, model, each.version, None, no_wait=False)
        directories = ours.release_directories
        directories.make()
        with exclusive(directories.lock, StackConsole()):
            for each in found:
                take_out(directories, ours.releases.forget(model, each.version).manifest)
        print(f"{model} is removed.")


def _releases(ours: Installation) -> list[Release]:
    from router.control.releases.records import list_releases

    with ours.releases.look() as connection:
        return [each for each in list_releases(connection) if each.manifest.base]


def _adapter_named(name: str) -> str:
    from router.core.manifest import parent_of

    if parent_of(model_named(name)) is None:
        raise ValueError(
            f"{name!r} does not name an adapter; write BASE:NAME, such as smollm2-135m-instruct:sql"
        )
    return name
