"""`inflight release split`, `canary`, `promote`, `rollback`, `pause` and `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.installation import open_installation
from launcher.commands.option_values import model_named, one_of, release_named
from launcher.commands.options import Config, DataDir, ModelName, ReleaseName


def split(
    model: ModelName,
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION=SHARE...", show_default=False, help="Such as 1=0.9 2=0.1, or 1=90% 2=10%."
        ),
    ],
    sticky: Annotated[
        str | None,
        typer.Option(
            help="Whose requests stay with one release: tenant, user, conversation, or request (nobody's). "
            "[default: as before]"
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION=SHARE",
            help="This release gets a share of the requests too; its answers are compared and never sent.",
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Divide the requests to a model over its releases, from the next request on. All of them must be ready.

    The shares add up to 1. A release that is not named gets nothing but requests that name it, and without
    --shadow there is none.
    """
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release import options
        from router.routing.split import Sticky

        chosen = None if sticky is None else one_of(Sticky, sticky)
        weights = [options.arm(each) for each in arms]
        made = ours.releases.set_split(model_named(model), weights, chosen, options.shadow(shadow))
        parts = ", ".join(f"{_percent(weight)} to {made.model}@{version}" for version, weight in made.arms)
        print(f"Of the requests to {made.model} go {parts}; sticky by {made.sticky.value}.")
        if made.shadow is not None:
            print(f"{made.model}@{made.shadow.version} shadows {_percent(made.shadow.share)} of them.")
        ours.warn_without_router()


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def canary(
    release: ReleaseName,
    steps: Annotated[
        str | None, typer.Option(help="Shares of the traffic, growing to 100%. [default: 1%,5%,25%,100%]")
    ] = None,
    min_requests: Annotated[
        int | None, typer.Option(min=1, help="That the canary answers in each step. [default: 50]")
    ] = None,
    min_duration: Annotated[
        str | None, typer.Option(help="Of each step: 30s, 5m, 1h. [default: 60s]")
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            help="Prompts with known answers, one JSON object a line, that the canary is asked before it "
            'gets traffic and in each step: {"prompt": "...", "contains": "..."}.'
        ),
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE=AMOUNT",
            help="How much worse than the stable release it may be: error_rate=0.2%, latency_ratio=1.25, "
            "length_ratio=1.5, refusal_rate=5%, golden_failures=0. May be repeated.",
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Roll a release out step by step. It is loaded, takes over if nothing speaks against it, or goes back.

    It is held against the stable release: errors, time to first token, inter-token latency, length of the
    answers, refusals, golden prompts. `inflight release status` shows how it goes; `promote`, `rollback` and
    `pause` are there for the impatient and the careful.
    """
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release import options

        model, version = release_named(release)
        plan = options.plan(steps, min_requests, min_duration, tolerance or [])
        begun = ours.releases.begin_rollout(model, version, plan, options.golden_prompts(golden))
        shares = ", ".join(map(_percent, begun.plan.weights))
        print(f"{release} is rolled out against {model}@{begun.stable}, in steps of {shares}.")
        if (remark := options.remark_on(plan)) is not None:
            print(remark)
        print(f"Watch it:\n  inflight release status {model}")
        ours.warn_without_router()


def promote(
    release: Annotated[str, typer.Argument(metavar="MODEL[@VERSION]", show_default=False)],
    reason: Annotated[str, typer.Option(help="Written into the history.")] = "by hand",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """All requests to one release: the canary of the open rollout, or the one that is named.

    The release that was stable stays loaded, for `inflight release rollback`. The first release of a model is
    loaded by it, and serves as soon as it is ready.
    """
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import find_release
        from router.control.releases.states import State
        from router.core.manifest import split_name

        model, version = split_name(release)
        promoted = ours.releases.promote(model_named(model), version, reason)
        with ours.releases.look() as connection:
            is_ready = find_release(connection, model, promoted).state is State.READY
        print(f"All requests to {model} go to {model}@{promoted}{'' if is_ready else ', once it is ready'}.")
        ours.warn_without_router()


def rollback(
    model: ModelName,
    reason: Annotated[str, typer.Option(help="Written into the history.")] = "by hand",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Back to the stable release of an open rollout; without one, to the release that was stable before."""
    with open_installation(data_dir, config) as ours:
        target = ours.releases.roll_back(model_named(model), reason)
        print(f"All requests to {model} go to {model}@{target}.")
        ours.warn_without_router()


def pause(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Stay in the step that a rollout is in. A canary that fails is taken back all the same."""
    with open_installation(data_dir, config) as ours:
        ours.releases.pause(model_named(model))
        print(f"The rollout of {model} stays where it is: `inflight release resume {model}` lets it go on.")


def resume(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Let a paused rollout go on."""
    with open_installation(data_dir, config) as ours:
        ours.releases.pause(model_named(model), False)
        print(f"The rollout of {model} goes on.")
        ours.warn_without_router()
