"""`inflight release load`, `unload`, `status` and `history`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from client.terminal import print
from launcher.commands.installation import Installation, open_installation
from launcher.commands.option_values import model_named, release_named
from launcher.commands.options import AnyModel, AsJson, Config, DataDir, ReleaseName
from launcher.commands.output import moment, output_console, show, show_json

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return immediately, without waiting until it is done.")
]


def load(
    release: ReleaseName, no_wait: NoWait = False, data_dir: DataDir = None, config: Config = None
) -> None:
    """Load a release into Triton and warm it up; only requests that name it are sent to it.

    Exit status: 0 it is ready, 1 it could not be loaded or no router runs, 130 after Ctrl-C, which stops the
    wait but not the load.
    """
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import find_release
        from router.control.releases.states import State

        model, version = release_named(release)
        with ours.releases.look() as connection:
            if find_release(connection, model, version).state is State.GONE:
                raise ValueError(
                    f"{release} no longer exists: the stack that had it built in now serves another"
                )
        change = ours.releases.load(model, version)
        follow(ours, model, version, change, no_wait)


def unload(
    release: ReleaseName,
    no_wait: NoWait = False,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Even the only release of a model, which is then no longer served."),
    ] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Unload a release from Triton, after its requests in flight have finished.

    Exit status: 0 it is unloaded, 1 no router runs, 130 after Ctrl-C, which stops only the wait.
    """
    with open_installation(data_dir, config) as ours:
        model, version = release_named(release)
        ours.releases.unload(model, version, withdraw=withdraw)
        follow(ours, model, version, None, no_wait)


def follow(ours: Installation, model: str, version: int, load_change: int | None, no_wait: bool) -> None:
    """Until it is loaded by the change of this number or, without one, unloaded."""
    from client.terminal import Console
    from launcher.commands.release.live_view import ReleaseWait, wait_until_read

    is_to_load = load_change is not None
    if no_wait:
        print(f"{model}@{version} is to be {'loaded' if is_to_load else 'unloaded'}.")
        ours.warn_without_router()
        return
    if exit_status := ReleaseWait(ours, (model, version), load_change, Console()).run():
        raise typer.Exit(exit_status)
    if is_to_load:
        wait_until_read(ours, (model, version))
    if sys.stdout.isatty():
        print(f"{model}@{version} is {'ready' if is_to_load else 'unloaded'}.")


def status(
    model: AnyModel = None,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--once", help="[default: --watch on a terminal, --once elsewhere]"),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show each release with its state, share of requests and role, and the progress of rollouts.

    On a terminal the table is kept up to date until Ctrl-C. Times are geometric means over the current step;
    requests, errors and refusals count over all steps of the rollout.
    """
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release.live_view import watch as keep_watching
        from launcher.commands.release.status import read_status
        from launcher.commands.release.tables import status_view

        chosen = None if model is None else model_named(model)
        with ours.releases.look() as connection:
            found = read_status(connection, chosen)
        if chosen is not None and not found.models:
            raise ValueError(f"{chosen} has no releases; `inflight release list` shows all of them")
        if as_json:
            show_json(found.as_json())
            return
        if sys.stdout.isatty() if watch is None else watch:
            keep_watching(ours, chosen, output_console())
        else:
            output_console().print(status_view(found, time.time()))


def history(
    model: AnyModel = None,
    most: Annotated[int, typer.Option(min=1, help="Number of events.")] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """What happened to releases and why, newest first."""
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import list_events

        with ours.releases.look() as connection:
            found = list_events(connection, None if model is None else model_named(model), most)
    if as_json:
        show_json([asdict(each) for each in found])
        return
    if not found:
        print(f"There are no events of releases{'' if model is None else f' of {model}'} yet.")
        return
    rows = (
        (moment(each.at_s), each.model if each.version is None else f"{each.model}@{each.version}", each.what,
         each.reason)
        for each in found
    )  # fmt: skip
    show("History", ("when (UTC)", "release", "what", "why"), rows)
