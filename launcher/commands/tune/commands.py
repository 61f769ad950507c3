"""`inflight tune explain`, `history`, `pause` and `resume`, on the store itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands.administration.open_store import AsJson, Config, DataDir, show_json
from launcher.commands.open_store import opened_store
from launcher.commands.release.open_releases import ModelName, model_named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.control.tuning.commands import TuningCommands
    from router.store.database import Store

OneOrAll = Annotated[str | None, typer.Argument(metavar="MODEL", help="[default: all]", show_default=False)]


@contextmanager
def _commands(data_dir: Path | None, config: Path | None) -> Iterator[tuple[Store, TuningCommands]]:
    with opened_store(data_dir, config) as store:
        from router.control.tuning.commands import TuningCommands
        from router.tenants.rbac import SYSTEM

        yield store, TuningCommands(store, SYSTEM)


def explain(
    model: OneOrAll = None, as_json: AsJson = False, data_dir: DataDir = None, config: Config = None
) -> None:
    """What is in force, what was measured, and what was decided and why.

    Of each Triton model that gathers batches, its queue delay by the last window; of each engine, the limits
    of its steps, which it sets itself before each step, and what it has learned that a step takes.
    """
    with _commands(data_dir, config) as (store, commands):
        from launcher.commands.release.control import NOBODY_ACTS, somebody_is_in_control
        from launcher.commands.tune.explanation import print_explanation

        found = commands.explain(None if model is None else model_named(model))
        if as_json:
            show_json([asdict(each) for each in found])
            return
        if not found:
            print("There are no models yet: `inflight up` first.")
        for each in found:
            print_explanation(each)
        with store.read() as connection:
            if not somebody_is_in_control(connection):
                print(NOBODY_ACTS)


def history(
    model: OneOrAll = None,
    most: Annotated[int, typer.Option(min=1, metavar="N", help="How many changes.")] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """What was changed and why, newest first."""
    with _commands(data_dir, config) as (_, commands):
        found = commands.history(None if model is None else model_named(model), most)
    if as_json:
        show_json([asdict(each) for each in found])
        return
    if not found:
        print(f"No queue delay{'' if model is None else f' of {model}'} was changed yet.")
        return
    from launcher.commands.tune.explanation import change

    for each in found:
        print(change(each))


def pause(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Leave the queue delays of a model as they are; what is in force stays."""
    _pause(model, True, data_dir, config)


def resume(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Let the queue delays of a model follow its objectives again."""
    _pause(model, False, data_dir, config)


def _pause(model: str, is_paused: bool, data_dir: Path | None, config: Path | None) -> None:
    with _commands(data_dir, config) as (_, commands):
        is_news = commands.pause(model_named(model), is_paused)
    already = "" if is_news else " already"
    print(f"{model} is{already} {'left alone' if is_paused else 'tuned'}.")
