"""`inflight slo set`, `show` and `clear`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.terminal import print
from launcher.commands.installation import open_installation
from launcher.commands.option_values import duration_s, model_named, tier_choice
from launcher.commands.options import AnyModel, AsJson, Config, DataDir, ModelName
from launcher.commands.output import keep_showing, output_console, show_json, time_text
from router.core.objective import LEAST_S, MOST_S, Metric

if TYPE_CHECKING:
    from router.control.objectives.commands import ModelStandings
    from router.core.objective import Objective

NONE = "none"


def set_objective(
    model: ModelName,
    tier: Annotated[
        str,
        typer.Option(help="interactive, standard, batch or all; requests without a tier are standard."),
    ] = "standard",
    first_token: Annotated[
        str | None, typer.Option(help="From a request's arrival to its first token: 500ms, 1.5s, 2m.")
    ] = None,
    inter_token: Annotated[str | None, typer.Option(help="From token to token: 50ms.")] = None,
    end_to_end: Annotated[
        str | None,
        typer.Option(help="The whole answer of a model without tokens, such as embeddings: 100ms."),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Set latency targets for 95 % of a model's requests. What is left out stays; `none` removes one.

    They decide how long requests wait to be batched, how much of a prompt is computed in one step, and which
    requests are refused because their answer would come too late.

    `inflight slo set smollm2-135m-instruct --first-token 2s --inter-token 100ms`

    `inflight slo set all-minilm-l6-v2 --end-to-end 200ms --tier all`

    Exit status: 0 set, 2 something that was given cannot be used.
    """
    with open_installation(data_dir, config) as installation:
        given = {
            Metric.FIRST_TOKEN: first_token,
            Metric.INTER_TOKEN: inter_token,
            Metric.END_TO_END: end_to_end,
        }
        wanted = {
            metric: objective_s(metric.option, text) for metric, text in given.items() if text is not None
        }
        if not wanted:
            options = ", ".join(metric.option for metric in Metric)
            raise ValueError(f"nothing to set: give one or more of {options}")
        changed = installation.objectives.set(
            model_named(model), tier_choice(tier), wanted, keeps_others=True
        )
        for each in changed:
            print(_sentence(each))
        print(f"Routers apply it within a second. To see whether it is met:\n  inflight slo show {model}")


def objective_s(option: str, text: str) -> float | None:
    """None for `none`, which takes an objective back."""
    if text == NONE:
        return None
    return duration_s(option, text, "ms, s or m", "500ms, 1.5s or 2m; or none", LEAST_S, MOST_S)


def show_objectives(
    model: AnyModel = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep it up to date until Ctrl-C.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show each objective, what all routers measured in the last 5 minutes, and whether it was met.

    Only answered requests are measured, not those that were refused, failed or cancelled.
    """
    with open_installation(data_dir, config) as installation:
        from launcher.commands.slo.tables import view

        chosen = None if model is None else model_named(model)
        found = installation.objectives.show(chosen)
        if as_json:
            show_json([_plain(each) for each in found])
        elif watch:
            keep_showing(
                output_console(),
                lambda: view(installation.objectives.show(chosen), installation.has_router_in_control()),
            )
        else:
            output_console().print(view(found, installation.has_router_in_control()))


def clear_objective(
    model: ModelName,
    tier: Annotated[str, typer.Option(help="interactive, standard, batch or all.")] = "all",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Remove a model's objectives: it is no longer tuned, and requests wait up to a minute."""
    with open_installation(data_dir, config) as installation:
        gone = installation.objectives.clear(model_named(model), tier_choice(tier))
        print(f"{model} no longer has an objective for {', '.join(each.tier.label for each in gone)}.")


def _sentence(objective: Objective) -> str:
    parts = [
        f"{words} within {time_text(limit_s, 6)}"
        for words, limit_s in (
            ("the first token", objective.first_token_s),
            ("each further token", objective.inter_token_s),
            ("the answer", objective.end_to_end_s),
        )
        if limit_s is not None
    ]
    who = f"{objective.model}, {objective.tier.label}"
    return f"{who}: 95 of 100 get {' and '.join(parts)}." if parts else f"{who}: no objective any more."


def _plain(found: ModelStandings) -> dict[str, Any]:
    standings = [
        {
            "tier": each.tier.label,
            "metric": each.metric.value,
            "objective_s": each.objective_s,
            "p50_s": each.p50_s,
            "p95_s": each.p95_s,
            "samples": each.samples,
            "attained": each.attained,
            "refused": each.refused,
            "verdict": each.verdict.value,
        }
        for each in found.standings
    ]
    kind = None if found.kind is None else found.kind.value
    return {"model": found.model, "kind": kind, "standings": standings, "binds": list(found.binds)}
