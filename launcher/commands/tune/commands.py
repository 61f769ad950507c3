"""`inflight tune explain`, `history`, `pause` and `resume`, on the store itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.installation import open_installation
from launcher.commands.option_values import model_named
from launcher.commands.options import AnyModel, AsJson, Config, DataDir, ModelName
from launcher.commands.output import show_json

if TYPE_CHECKING:
    from pathlib import Path


def explain(
    model: AnyModel = None, as_json: AsJson = False, data_dir: DataDir = None, config: Config = None
) -> None:
    """Show what is in force, what was measured, and what was decided and why.

    For each Triton model that batches: its queue delay, by the last window. For each engine: the limits that
    it sets before each step, and the step cost that it has learned.
    """
    with open_installation(data_dir, config) as installation:
        from launcher.commands.tune.explanation import print_explanation

        found = installation.tuning.explain(None if model is None else model_named(model))
        if as_json:
            show_json([asdict(each) for each in found])
            return
        if not found:
            print("There are no models yet: `inflight up` first.")
        for each in found:
            print_explanation(each)
        installation.warn_without_router()


def history(
    model: AnyModel = None,
    most: Annotated[int, typer.Option(min=1, metavar="N", help="Number of changes.")] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List changes and why they were made, newest first."""
    with open_installation(data_dir, config) as installation:
        found = installation.tuning.history(None if model is None else model_named(model), most)
    if as_json:
        show_json([asdict(each) for each in found])
        return
    if not found:
        print(f"No queue delay{'' if model is None else f' of {model}'} has been changed yet.")
        return
    from launcher.commands.tune.explanation import change

    for each in found:
        print(change(each))


def pause(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Stop tuning a model's queue delays; what is in force stays."""
    _pause(model, True, data_dir, config)


def resume(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Tune a model's queue delays by its objectives again."""
    _pause(model, False, data_dir, config)


def _pause(model: str, is_paused: bool, data_dir: Path | None, config: Path | None) -> None:
    with open_installation(data_dir, config) as installation:
        is_news = installation.tuning.pause(model_named(model), is_paused)
    already = "" if is_news else " already"
    print(f"{model} is{already} {'left alone' if is_paused else 'tuned'}.")
