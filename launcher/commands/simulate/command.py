"""`inflight simulate`: tries an admission policy on a trace before it serves."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print

if TYPE_CHECKING:
    from loadtest.traces import Trace
    from simulator.report import Figures
    from simulator.scenario import Scenario
    from simulator.simulation import Moment

SYNTHETIC = "synthetic"
_SYNTHETIC_S = 600.0
# Of the order of a model of some billion weights on one GPU.
INVENTED_COST = "12,0.12,0.25"


def simulate(
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help=f"Requests as CSV or JSON lines, or '{SYNTHETIC}' for generated ones.",
        ),
    ],
    cost: Annotated[
        str | None,
        typer.Option(
            help="Milliseconds of an engine's step as BASE,PREFILL,DECODE[,KV]: fixed, per prompt token, per "
            "sequence and per 1,000 cached tokens; or a JSON file with them; or the URL of Triton's metrics, "
            f"for what the engine there has learned. [default: {INVENTED_COST}, an example]",
            metavar="COST",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With a URL as cost: the Triton model of the engine there."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIER=TIMES",
            help="Latency objective for 95 % of a tier's requests, such as interactive=ttft:1s,itl:50ms ("
            "first token, token to token); once for each tier.",
        ),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            metavar="N,...", help="Speed of arrivals as a multiple of the trace's; several with commas."
        ),
    ] = "1",
    policy: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="objectives, first-come or cap; several with commas."),
    ] = "objectives",
    cap: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="For the policy cap: requests at a time; 0: as many as the batches have slots.",
        ),
    ] = 0,
    tiers: Annotated[
        str | None,
        typer.Option(
            metavar="TIER:N,...",
            help="Shares of tiers for requests without one, such as interactive:60,standard:30,batch:10. "
            "[default: standard]",
        ),
    ] = None,
    without_tiers: Annotated[
        bool,
        typer.Option("--no-engine-tiers", help="Engines do not know tiers, and serve in order of arrival."),
    ] = False,
    tenant_tier: Annotated[
        list[str] | None, typer.Option(metavar="TENANT=TIER", help="Tier of all requests of a tenant.")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT=N", help="A tenant's weight in fair sharing. [default: 1]"),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, metavar="N", help="How many engines.")] = 1,
    places: Annotated[
        int, typer.Option(min=1, metavar="N", help="Slots in an engine's batch: its inflight_max_batch_size.")
    ] = 64,
    step_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="An engine's inflight_max_step_tokens.")
    ] = 512,
    kv_tokens: Annotated[
        int, typer.Option(min=16, metavar="N", help="An engine's max_tokens_in_paged_kv_cache.")
    ] = 40_960,
    block_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="An engine's inflight_tokens_per_block.")
    ] = 16,
    whole_answers: Annotated[
        bool,
        typer.Option("--whole-answers", help="An engine's batch_scheduler_policy is guaranteed_no_evict."),
    ] = False,
    depth: Annotated[
        int,
        typer.Option(min=1, max=2, metavar="N", help="Steps that may be in flight: 1 on a CPU, 2 on a GPU."),
    ] = 2,
    even_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Context length at which a prompt token takes twice as long: 13312 for an 8B model on a "
            "GPU. [default: all tokens take the same]",
        ),
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Longer requests are shortened to it. [default: 90 % of the cache]"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="max_tokens of all requests. [default: as in the trace]"),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Repeat or cut the trace to this length, such as 10m. [default: its own]"
        ),
    ] = None,
    overhead: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time a request spends between the router's queue and the engine, both ways."
        ),
    ] = "15ms",
    retries: Annotated[int, typer.Option(min=0, metavar="N", help="How often a refused client retries.")] = 0,
    retry_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long it waits before a retry. [default: as Retry-After says]"),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plots (SVG) to this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random choices.")] = 0,
) -> None:
    """Replay a trace through the router's admission and predict latency, refusals and goodput.

    The decisions are the router's own code; engines are modelled by what their steps cost. Nothing needs to
    be running. Every combination of --rate and --policy is simulated. docs/simulator.md explains the figures
    and the format of traces.

    Exit status: 0 done, 2 something that was given cannot be used.
    """
    from launcher.commands.option_values import Mistake, duration_s
    from launcher.commands.simulate import options
    from loadtest.traces import TraceError
    from simulator.engine import EngineShape
    from simulator.scenario import Retries, Scenario

    try:
        scenario = Scenario(
            shape=EngineShape(
                options.cost(cost or INVENTED_COST, model),
                places,
                options.at_least("--step-tokens", step_tokens, "--places", places),
                kv_tokens,
                block_tokens,
                whole_answers,
                depth,
                even_context=even_context,
            ),
            replicas=replicas,
            objectives=options.objectives(slo or []),
            overhead_s=duration_s("--overhead", overhead, least_s=0),
            cap=cap,
            tells_tiers=not without_tiers,
            retries=Retries(
                retries,
                None if retry_after is None else duration_s("--retry-after", retry_after, least_s=0),
            ),
            weights={
                name: options.numbers("--weight", value)[0]
                for name, value in options.by_name("--weight", weight or []).items()
            },
        )
        requests = _trace(trace, seed, context_tokens or kv_tokens * 9 // 10, max_tokens)
        of_tenants = options.by_name("--tenant-tier", tenant_tier or [])
        for option, named in (("--tenant-tier", of_tenants), ("--weight", scenario.weights)):
            options.check_tenants(option, named, {each.tenant for each in requests.requests})
        requests = _with_tiers(requests, tiers, of_tenants, seed)
        lasting_s = None if duration is None else duration_s("--duration", duration)
        rates, admissions = options.numbers("--rate", rate), options.admissions(policy)
    except (Mistake, TraceError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    played = [
        _play(requests, each, lasting_s, replace(scenario, admission=admission))
        for each in rates
        for admission in admissions
    ]
    if cost is None:
        print(
            f"inflight: the step cost is an example ({INVENTED_COST} ms); give your engine's with --cost",
            file=sys.stderr,
        )
    _show(requests, scenario, played, plots, as_json)


def _trace(source: str, seed: int, context_tokens: int, max_tokens: int | None) -> Trace:
    from loadtest.traces import read_trace, synthetic_trace

    trace = synthetic_trace(seed, _SYNTHETIC_S) if source == SYNTHETIC else read_trace(Path(source))
    if max_tokens is not None:
        trace = trace.asking_for(max_tokens)
    return trace.clamp(context_tokens)


def _with_tiers(trace: Trace, shares: str | None, of_tenants: dict[str, str], seed: int) -> Trace:
    from launcher.commands.option_values import Mistake, tier_shares
    from loadtest.traces import tiers_by_chance
    from python_backend.wire.tiers import Tier, tier_named

    by_chance = tiers_by_chance({Tier.STANDARD.label: 1.0} if shares is None else tier_shares(shares), seed)
    trace = trace.with_tiers(lambda each: of_tenants.get(each.tenant) or by_chance(each))
    try:
        for name in {each.tier for each in trace.requests}:
            tier_named(name)
    except ValueError as error:
        raise Mistake(str(error)) from None
    return trace


def _play(
    trace: Trace, rate: float, lasting_s: float | None, scenario: Scenario
) -> tuple[Figures, list[Moment]]:
    from simulator.report import figures_of
    from simulator.simulation import simulate as play

    faster = trace.faster(rate)
    simulated = play(faster if lasting_s is None else faster.lasting(lasting_s), scenario)
    return figures_of(simulated, scenario, rate), simulated.moments


def _show(
    trace: Trace,
    scenario: Scenario,
    played: list[tuple[Figures, list[Moment]]],
    directory: Path | None,
    as_json: bool,
) -> None:
    from client.terminal import Console
    from simulator import tables

    all_figures = [figures for figures, _ in played]
    if as_json:
        print(json.dumps([figures.to_json() for figures in all_figures], indent=2))
    else:
        clamped = f", {trace.clamped} of them shortened" if trace.clamped else ""
        console = Console()
        console.width = max(console.width, tables.LEAST_WIDTH)  # lines may break, but not be cut short
        console.print(f"{trace.name}: {len(trace.requests)} requests{clamped}", markup=False)
        console.print(tables.tables(all_figures))
    if directory is not None:
        for path in tables.plots(directory, all_figures, [moments for _, moments in played], scenario):
            print(f"written: {path}", file=sys.stderr)
