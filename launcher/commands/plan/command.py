"""`inflight plan`: the cheapest fleet for a traffic and its objectives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.options import Config, DataDir

if TYPE_CHECKING:
    from simulator.planning.report import Planned

SYNTHETIC = "synthetic"


def plan(
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Requests as CSV or JSON lines; recorded:MODEL for the busiest hour of the last day here; "
            f"{SYNTHETIC}, or {SYNTHETIC}:900~0.9/200 for prompts and answers with these medians and "
            "spreads.",
        ),
    ] = SYNTHETIC,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="N", help="Requests a second at the peak. [default: the trace's]"),
    ] = None,
    night: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="N", help="The load at night, as a share of the peak."),
    ] = 1.0,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=RATE[:FILE]]",
            help="A model with profiles; several with their peaks and traces. [default: llama-8b]",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER=TIMES",
            help="Latency objective for 95 % of a tier's requests, such as interactive=ttft:1s,itl:50ms; "
            "once for each tier. [default: 1s and 50ms, 3s and 100ms, 30s]",
        ),
    ] = None,
    tiers: Annotated[
        str,
        typer.Option(metavar="TIER:N,...", help="Shares of tiers for requests without one."),
    ] = "interactive:60,standard:30,batch:10",
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU=DOLLARS",
            help="Price of one GPU for an hour; only GPUs that are named are considered.",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(metavar="NAME,...", help="bf16, fp8; all by default.")] = "",
    zones: Annotated[int, typer.Option(min=1, max=100, metavar="N")] = 3,
    survives: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="The loss that the fleet must survive: nothing, replica, host or zone."
        ),
    ] = "zone",
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also answer: rate, prompts, precision, size, split, affinity, tier, tenant10x, release; or "
            "all.",
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="More profiles, as JSON files.", exists=True, file_okay=False),
    ] = None,
    without_play: Annotated[
        bool, typer.Option("--no-play", help="Do not check the plan in the fleet simulator.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    processes: Annotated[int, typer.Option(min=1, max=64, metavar="N")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random choices.")] = 0,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Find the cheapest fleet that keeps the objectives: kind of GPU, precision, replicas, spare.

    Nothing needs to run. The simulator tries each kind of replica on the traffic, and the plan is then
    simulated with the loss it must survive. docs/planning.md explains the figures and where they come from.

    Exit status: 0 done, 1 no fleet keeps the objectives, 2 something that was given cannot be used.
    """
    from launcher.commands.option_values import Mistake
    from launcher.commands.plan import options
    from loadtest.traces import TraceError
    from simulator.planning.profiles import best_of, known_profiles
    from simulator.planning.proof import prove
    from simulator.planning.search import NoFleet, find
    from simulator.planning.whatifs import answers

    try:
        known = known_profiles() + ([] if profiles is None else known_profiles(profiles))
        wishes = options.wishes(
            options.Asked(
                trace,
                rate,
                night,
                model or [],
                slo or [],
                tiers,
                price or [],
                precision,
                zones,
                survives,
                seed,
                data_dir,
                config,
            ),
            known,
        )
        asked = options.what_ifs(what_if or [])
    except (Mistake, TraceError, OSError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    try:
        found = [find(wish, best_of(known), processes) for wish in wishes]
    except NoFleet as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if not without_play:
        print("inflight: simulating the plan; the first run compiles the simulator", file=sys.stderr)
    planned: list[Planned] = [
        (
            each,
            None if without_play else prove(each, processes),
            [row for name in asked for row in answers(each, name)],
        )
        for each in found
    ]
    _show(planned, html, as_json)


def _show(planned: list[Planned], html: Path | None, as_json: bool) -> None:
    from client.terminal import Console
    from simulator.planning import report

    if as_json:
        print(json.dumps(report.to_json(planned), indent=2))
    else:
        console = Console()
        console.width = max(console.width, 110)
        for plan, proof, rows in planned:
            console.print(report.summary(plan), markup=False)
            if proof is not None:
                console.print(report.proof_line(proof), markup=False)
            console.print(report.tables(plan, rows))
        if len(planned) > 1:
            console.print(report.together(planned))
        for each in [line for plan, _, _ in planned for line in report.origins(plan)]:
            console.print(each, markup=False, style="dim")
    if html is not None:
        html.write_text(report.html(planned))
        print(f"written: {html}", file=sys.stderr)
