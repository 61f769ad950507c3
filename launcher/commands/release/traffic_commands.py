"""`inflight release split`, `canary`, `promote`, `rollback`, `pause` and `resume`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from client.terminal import print
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
            help="What stays on one release: a tenant, user, conversation, or request (nothing does). "
            "[default: unchanged]"
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION=SHARE",
            help="Copy a share of the requests to this release; its answers are compared, never returned.",
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Split the requests to a model over its releases, from the next request on; all must be ready.

    The shares add up to 1. A release that is left out gets only requests that name it; without --shadow
    nothing is shadowed.
    """
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release import options
        from router.routing.split import Sticky

        chosen = None if sticky is None else one_of(Sticky, sticky)
        weights = [options.arm(each) for each in arms]
        made = ours.releases.set_split(model_named(model), weights, chosen, options.shadow(shadow))
        parts = ", ".join(f"{_percent(weight)} to {made.model}@{version}" for version, weight in made.arms)
        print(f"Requests to {made.model}: {parts}; sticky by {made.sticky.value}.")
        if made.shadow is not None:
            print(f"{made.model}@{made.shadow.version} shadows {_percent(made.shadow.share)} of them.")
        ours.warn_without_router()


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def canary(
    release: ReleaseName,
    steps: Annotated[
        str | None, typer.Option(help="Shares of the traffic, up to 100%. [default: 1%,5%,25%,100%]")
    ] = None,
    min_requests: Annotated[
        int | None, typer.Option(min=1, help="Answers that the canary needs in each step. [default: 20]")
    ] = None,
    min_duration: Annotated[
        str | None, typer.Option(help="Shortest time of a step: 30s, 5m, 1h. [default: 60s]")
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            help="Prompts with known answers, one JSON object a line, sent to the canary before it gets "
            'traffic and in each step: {"prompt": "...", "contains": "..."}.'
        ),
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GATE=AMOUNT",
            help="How much worse than the stable release it may be: error_rate=0.2%, latency_ratio=1.25, "
            "length_ratio=1.5, refusal_rate=5%, golden_failures=0; its errors must be shown to be below "
            "error_margin=2%. May be repeated.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(help="How long a step may take to show that the canary is good enough. [default: 24h]"),
    ] = None,
    on_timeout: Annotated[
        str | None,
        typer.Option(
            help="What then: hold (rolled back after as long again, unless promoted), rollback or promote. "
            "[default: hold]"
        ),
    ] = None,
    accept_slower: Annotated[
        str | None,
        typer.Option(
            metavar="TIMES",
            help="For a canary that is slower on purpose: how many times as slow as the stable release it "
            "may be, such as 2x.",
        ),
    ] = None,
    min_likeness: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="How similar its shadow answers must be to those of the stable release before it gets "
            "traffic, such as 90%.",
        ),
    ] = None,
    min_shadow_answers: Annotated[
        int | None, typer.Option(min=1, help="Shadow answers that --min-likeness needs. [default: 50]")
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Copy at most this many of the stable release's requests to it, such as 1/s. Clients "
            "neither see nor pay for the copies; their times and failures count.",
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="While the model is idle, replay at most this many prompts of the prompt log on both "
            "releases, such as 1/s. The answers are discarded; their times and failures count.",
        ),
    ] = None,
    no_rehearsal: Annotated[
        bool,
        typer.Option(
            "--no-rehearsal", help="Do not measure both releases on the same prompts before it gets traffic."
        ),
    ] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Roll a release out step by step: it is loaded, compared, and then takes over or is rolled back.

    It is compared with the stable release: errors, time to first token, inter-token latency, length of the
    answers, refusals, golden prompts. `inflight release status` shows the progress; `promote`, `rollback` and
    `pause` intervene.
    """
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release import options
        from launcher.commands.release.expectation import expectation
        from router.control.releases.plan import NO_PROMPT_LOG

        model, version = release_named(release)
        plan = options.plan(
            options.PlanOptions(
                steps,
                min_requests,
                min_duration,
                time_limit,
                on_timeout,
                tolerance or [],
                accept_slower,
                min_likeness,
                min_shadow_answers,
                not no_rehearsal,
                mirror,
                replay,
            ),
            ours.releases.tolerance_of(model),
        )
        if plan.replay_per_s and not ours.settings.router.get("prompt_log_dir"):
            raise ValueError(f"--replay: {NO_PROMPT_LOG}")
        begun = ours.releases.begin_rollout(model, version, plan, options.golden_prompts(golden))
        shares = ", ".join(map(_percent, begun.plan.weights))
        print(f"{release} is rolled out against {model}@{begun.stable}, in steps of {shares}.")
        with ours.releases.look() as connection:
            print(expectation(connection, model, begun.plan, time.time()).sentence)
        print(f"Watch it:\n  inflight release status {model}")
        ours.warn_without_router()


def tolerance(
    model: ModelName,
    amounts: Annotated[
        list[str] | None,
        typer.Argument(metavar="GATE=AMOUNT...", show_default=False, help="Such as error_rate=0.5%."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Reset the tolerance to the defaults.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show or set how much worse than the stable release canaries of a model may be.

    It applies to rollouts that begin later; `--tolerance` of `inflight release canary` overrides it.
    """
    with open_installation(data_dir, config) as ours:
        from dataclasses import asdict

        from launcher.commands.release import options
        from router.control.releases.plan import Tolerance

        name = model_named(model)
        chosen = Tolerance() if reset else ours.releases.tolerance_of(name)
        if amounts or reset:
            chosen = ours.releases.set_tolerance(name, options.tolerance(amounts or [], chosen))
        for gate, value in asdict(chosen).items():
            print(f"{gate:<16} {_percent(value) if gate.endswith(('_rate', '_margin')) else f'{value:g}'}")


def promote(
    release: Annotated[str, typer.Argument(metavar="MODEL[@VERSION]", show_default=False)],
    reason: Annotated[str, typer.Option(help="Written into the history.")] = "by hand",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Send all requests to one release: the canary of the open rollout, or the one named.

    The former stable release stays loaded, for `inflight release rollback`. The first release of a model is
    loaded, and serves as soon as it is ready.
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
    """Go back to the stable release of an open rollout; without one, to the previous stable release."""
    with open_installation(data_dir, config) as ours:
        target = ours.releases.roll_back(model_named(model), reason)
        print(f"All requests to {model} go to {model}@{target}.")
        ours.warn_without_router()


def pause(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Keep a rollout at its current step; a failing canary is still rolled back."""
    with open_installation(data_dir, config) as ours:
        ours.releases.pause(model_named(model))
        print(f"The rollout of {model} stays where it is until `inflight release resume {model}`.")


def resume(model: ModelName, data_dir: DataDir = None, config: Config = None) -> None:
    """Continue a paused rollout."""
    with open_installation(data_dir, config) as ours:
        ours.releases.pause(model_named(model), False)
        print(f"The rollout of {model} continues.")
        ours.warn_without_router()
