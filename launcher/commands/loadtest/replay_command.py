"""`inflight loadtest replay`: a trace sent on its own schedule, whatever becomes of earlier requests."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.options import SloOption

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from client.terminal import Console
    from loadtest.replay.run import Replay
    from loadtest.replay.sender import Told
    from loadtest.report.figures import Figures
    from loadtest.results import RequestResult
    from loadtest.tenants import Tenant
    from loadtest.traces import Trace

OUT = Path("loadtest-report")
_INTERRUPTED = 130


def replay(
    trace: Annotated[Path, typer.Option(metavar="FILE", help="Requests as CSV or JSON lines.")],
    url: Annotated[str, typer.Option(metavar="URL", help="The router's address.")] = "http://127.0.0.1:8080",
    rate: Annotated[
        float, typer.Option(metavar="N", help="Speed of arrivals as a multiple of the trace's.")
    ] = 1.0,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Repeat or cut the trace to this length: 60s, 10m.")
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N requests of the trace.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model to ask. [default: the first text model]")
    ] = None,
    slo: SloOption = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            metavar="TIER:N,...",
            help="Shares of tiers for requests without one, such as interactive:60,standard:30,batch:10.",
        ),
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A JSON list of tenants: name, key, weight, tier. Tenants of the trace that are not in it "
            "are distributed over them. [default: the key in INFLIGHT_API_KEY, for all]",
        ),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Number of sending processes.")
    ] = 1,
    retries: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="How often a refused request is retried, after Retry-After."),
    ] = 0,
    patience: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long to wait for answers after the last request."),
    ] = "2m",
    context_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Longer requests are shortened to this. [default: the model's context]"
        ),
    ] = None,
    triton_metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Triton's metrics, for the report; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report goes.")] = OUT,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when the --slo is missed.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of tiers and prompts. [default: new prompts in every run]"),
    ] = None,
) -> None:
    """Send the requests of a trace on schedule (open loop), and write a report.

    Requests do not wait for earlier answers, and latency counts from the scheduled time, so a server that
    cannot keep up looks as slow as it is. Prompts are token ids, as long as in the trace; those that shared
    blocks in the trace share them here. Goodput counts answers that met their objectives. Ctrl-C ends a run;
    the report covers what was sent until then. See docs/loadtest.md.

    `inflight loadtest replay --trace requests.csv --duration 5m --slo ttft:1s,itl:60ms`

    `inflight loadtest replay --trace requests.jsonl --rate 2 --tiers interactive:60,batch:40 --check`

    Exit status: 0 done, 1 nothing was answered or the objectives were missed, 2 something that was given
    cannot be used, 130 after Ctrl-C.
    """
    from client.terminal import Console
    from launcher.commands.loadtest import options
    from launcher.commands.loadtest.report_commands import check_drawing
    from launcher.commands.option_values import Mistake, duration_s
    from loadtest.replay.run import Replay
    from loadtest.replay.sender import Target
    from loadtest.replay.served_models import ServerError, ask_models, choose
    from loadtest.tenants import TenantsError, tenants_of
    from loadtest.traces import TraceError

    try:
        check_drawing()
        shaped = _shaped(trace, rate, duration, first)
        objectives = options.objectives(slo or [])
        patience_s = duration_s("--patience", patience)
        people = tenants_of(str(tenants or ""))
        requests = _assigned(shaped, tiers, people if tenants else [], seed or 0)
        asked, context = choose(ask_models(url, people[0].key), model, context_tokens)
        options.usable_folder(out)
    except (Mistake, ServerError, TenantsError, TraceError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    wish = Replay(
        requests.clamp(context),
        Target(
            url,
            asked,
            _keys(people, is_one_for_all=tenants is None),
            retries=retries,
            honours_retry_after=True,
            gives_up_s=requests.duration_s + patience_s,
        ),
        objectives,
        clients,
        seed,
        tuple(triton_metrics or ()),
        people[0].key,
    )
    raise typer.Exit(_run(wish, out, check, Console()))


def _shaped(path: Path, rate: float, duration: str | None, first: int | None) -> Trace:
    from launcher.commands.option_values import Mistake, duration_s
    from loadtest.traces import read_trace

    trace = read_trace(path)
    if first is not None:
        trace = trace.up_to(first)
    try:
        trace = trace.faster(rate)
    except ValueError as error:
        raise Mistake(f"--rate: {error}") from None
    return trace if duration is None else trace.lasting(duration_s("--duration", duration))


def _assigned(trace: Trace, shares: str | None, tenants: Sequence[Tenant], seed: int) -> Trace:
    """Tiers and tenants for requests that have none."""
    from launcher.commands.option_values import Mistake, tier_shares
    from loadtest.replay.assignment import with_tenants
    from loadtest.traces import tiers_by_chance
    from python_backend.wire.tiers import tier_named

    if shares is not None:
        trace = trace.with_tiers(tiers_by_chance(tier_shares(shares), seed))
    if tenants:
        trace = with_tenants(trace, tenants)
    try:
        for name in {each.tier for each in trace.requests}:
            tier_named(name)
    except ValueError as error:
        raise Mistake(f"--trace: {error}") from None
    return trace


def _keys(tenants: Sequence[Tenant], is_one_for_all: bool) -> dict[str, str]:
    from loadtest.replay.sender import EVERYBODY

    return {EVERYBODY if is_one_for_all else each.name: each.key for each in tenants if each.key}


def _run(wish: Replay, out: Path, check: bool, console: Console) -> int:
    from loadtest.machine import about_machine, about_server
    from loadtest.replay.run import play_trace
    from loadtest.report import write_report
    from loadtest.report.figures import figures_of, verdict_of, warnings_of

    count, span_s = len(wish.trace.requests), wish.trace.duration_s
    console.print(f"{wish.trace.name}: {count:,} requests in {span_s:.0f} s to {wish.target.model}")
    with _progress(console, count) as told:
        run, is_interrupted = play_trace(wish, told)
    run.about = {
        **about_machine(),
        **about_server(wish.target.url, wish.key),
        "load": f"{wish.trace.name}, open loop, {count:,} requests in {span_s:.0f} s",
        "model": wish.target.model,
        "client processes": str(wish.clients),
        "command": shlex.join(["inflight", *sys.argv[1:]]),
    }
    report = write_report(run, out)
    for warning in warnings_of(run):
        console.print(warning, style="yellow", soft_wrap=True)
    whole = figures_of(run.results, run.slo, run.duration_s)
    is_kept, verdict = verdict_of(run, whole)
    for line in (*_in_words(whole), verdict, f"Report: {report}"):
        console.print(line, soft_wrap=True)
    if is_interrupted:
        return _INTERRUPTED
    return 1 if not whole.answered or (check and is_kept is False) else 0


def _in_words(whole: Figures) -> Iterator[str]:
    from loadtest.report.page import rate, time

    yield (
        f"{whole.good:,} good, {whole.late:,} late, {whole.failed:,} failed, {whole.left:,} gave up, "
        f"{whole.refusals:,} refusals"
    )
    yield (
        f"goodput         {rate(whole.goodput_per_s)} requests/s, {rate(whole.good_tokens_per_s)} tokens/s; "
        f"answered {rate(whole.answered_per_s)} requests/s, {rate(whole.tokens_per_s)} tokens/s"
    )
    spreads = {
        "first token": whole.first_token_s,
        "between tokens": whole.between_tokens_s,
        "end to end": whole.ended_s,
    }
    for name, spread in spreads.items():
        yield f"{name:<15} p50 {time(spread.p50)}, p95 {time(spread.p95)}, p99 {time(spread.p99)}"


def _outcome(result: RequestResult) -> str:
    if result.is_answered:
        return "answered"
    if result.is_refused:
        return "refused"
    return "gave up" if result.has_left else "failed"


@contextmanager
def _progress(console: Console, planned: int) -> Iterator[Told | None]:
    """A bar of what has ended, with what became of it; elsewhere than on a terminal nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from client.screen_parts import Description

    if not console.is_terminal:
        yield None
        return
    counts = dict.fromkeys(("answered", "refused", "failed", "gave up"), 0)
    columns = (BarColumn(), MofNCompleteColumn(), Description(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=planned)

        def told(result: RequestResult) -> None:
            counts[_outcome(result)] += 1
            text = ", ".join(f"{value} {name}" for name, value in counts.items() if value)
            bar.update(task, advance=1 if result.attempt == 0 else 0, description=text)

        yield told
