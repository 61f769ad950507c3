"""`inflight loadtest run`: users of all kinds, by Locust, against a stack of its own or one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from launcher.commands.loadtest.load_run import Plan

OUT = Path("loadtest-report")


def run(
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOCUST", help="After --: passed on to Locust as it is.", show_default=False),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A router that runs. [default: a stack is started, and stopped afterwards]"
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="How users come and go: steady, ramp, spike, diurnal, trace.")
    ] = "steady",
    users: Annotated[int, typer.Option(min=1, help="The most that are there at a time.")] = 8,
    duration: Annotated[str, typer.Option(metavar="TIME", help="Such as 30s, 5m, 1h.")] = "30s",
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=N,...",
            help="Users of each kind by weight: chat, completions, embeddings, triton, conversation. "
            "[default: chat=6, completions=2, embeddings=2, triton=1, conversation=1, of what it can answer]",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --url the model that is asked; without, as for `inflight up`."),
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A JSON list of tenants: name, key, weight, tier; on a stack of its own they are made. "
            "[default: three there, with --url one with the key in INFLIGHT_API_KEY]",
        ),
    ] = None,
    fresh_tenants: Annotated[
        int, typer.Option(min=0, max=3, help="How many tenants on a stack of its own; 0: no keys.")
    ] = 3,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lengths are drawn from it, and --shape trace follows it."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of a prompt: the median, without a trace.")] = 64,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Of an answer: the median, likewise.")] = 48,
    longest_tokens: Annotated[int, typer.Option(min=1, help="The most of a prompt, and of an answer.")] = 256,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="How many all prompts of a tenant begin with.")
    ] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Questions of a conversation, on average.")] = 4,
    think: Annotated[
        str, typer.Option(metavar="TIME", help="Between an answer and the next question, on average.")
    ] = "1s",
    low: Annotated[
        float, typer.Option(min=0, max=1, help="The part of the users between spikes, at night, at first.")
    ] = 0.2,
    spikes: Annotated[int, typer.Option(min=1, help="How many, with --shape spike.")] = 1,
    days: Annotated[int, typer.Option(min=1, help="How many, with --shape diurnal.")] = 1,
    ignore_retry_after: Annotated[
        bool, typer.Option("--ignore-retry-after", help="Users who are refused do not wait as they are told.")
    ] = False,
    by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Locust's statistics of each tenant on their own.")
    ] = False,
    grpc_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --url. [default: port 8081 of the same host]")
    ] = "",
    triton_metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="With --url: Triton's metrics, for the report; may be repeated."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]TIMES",
            help="What 95 of 100 are to keep, such as ttft:1s,itl:60ms,e2e:20s (first token, token to token, "
            "end to end) for all, or interactive=ttft:1s for one tier; may be repeated.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when the --slo is missed.")] = False,
    fail_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 1 when more than this part of the requests fail.")
    ] = 0.01,
    web: Annotated[
        bool, typer.Option("--web", help="With Locust's page; users start when you say so.")
    ] = False,
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="Its port, on this machine.")] = 8089,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report goes.")] = OUT,
    name: Annotated[str, typer.Option(help="What the report calls the run. [default: shape and users]")] = "",
    seed: Annotated[int, typer.Option(help="The same one asks the same, and pauses alike.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where models are kept. [default: ~/.local/share/inflight]")
    ] = None,
) -> None:
    """Send load as users do, and write a report.

    Users wait for their answers, think, and ask again; `inflight loadtest replay` asks whether or not there
    are answers. docs/loadtest.md tells what is measured and how. Ctrl-C ends a run; the report, and the exit
    status, are about what there was.

    `inflight loadtest run --users 16 --duration 2m`  on a stack of its own

    `inflight loadtest run --url http://127.0.0.1:8080 --slo ttft:1s,itl:60ms --check`  on one that runs

    `inflight loadtest run --url http://127.0.0.1:8080 --users 200 -- --processes 4`  with more of Locust

    Exit status: 0 done, 1 too much failed or (with --check) the objective was missed, 2 something that was
    given cannot be used, 130 Ctrl-C before the first request.
    """
    from rich.console import Console

    from launcher.commands.loadtest import options
    from launcher.commands.loadtest.load_run import Plan
    from launcher.commands.loadtest.locust_process import Web
    from launcher.commands.option_values import Mistake, duration_s
    from loadtest.users.options import read_kinds

    errors = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    try:
        plan = Plan(
            url=url,
            shape=_shape(shape, trace),
            users=users,
            duration_s=duration_s("--duration", duration),
            out=out,
            kinds=None if kinds is None else read_kinds(kinds),
            tenants=str(tenants or ""),
            fresh_tenants=fresh_tenants,
            model=model,
            data_dir=data_dir,
            grpc_address=grpc_address,
            triton_metrics=tuple(triton_metrics or ()),
            slo=options.objectives(slo or []),
            options={
                "low": str(low),
                "spikes": str(spikes),
                "days": str(days),
                "prompt-tokens": str(prompt_tokens),
                "answer-tokens": str(answer_tokens),
                "longest-tokens": str(longest_tokens),
                "shared-prefix-tokens": str(shared_prefix_tokens),
                "turns": str(turns),
                "think-s": str(duration_s("--think", think)),
                "seed": str(seed),
                **({"trace": str(trace)} if trace else {}),
            },
            flags=tuple(
                flag
                for flag, is_set in (("ignore-retry-after", ignore_retry_after), ("by-tenant", by_tenant))
                if is_set
            ),
            web=Web(port=web_port) if web else None,
            extra=tuple(extra or ()),
        )
        options.usable_folder(out)
        if check and not slo:
            raise Mistake("--check needs an --slo to check")
    except ValueError as error:
        errors.print(f"inflight: {error}", markup=False)
        raise typer.Exit(2) from None
    raise typer.Exit(_perform(plan, name, check, fail_ratio, errors))


def _shape(name: str, trace: Path | None) -> str:
    from loadtest.shapes.curves import NAMES, TRACE

    if name not in NAMES:
        raise ValueError(f"--shape is {name!r}; allowed: {', '.join(NAMES)}")
    if name == TRACE and trace is None:
        raise ValueError("--shape trace needs a --trace")
    if trace is not None and not trace.is_file():
        raise ValueError(f"--trace: there is no file {trace}")
    if trace is not None:
        from loadtest.traces import read_trace

        read_trace(trace)  # Locust would say what is wrong with it into its log
    return name


def _perform(plan: Plan, name: str, check: bool, fail_ratio: float, errors: Console) -> int:
    from rich.console import Console

    from launcher.commands.loadtest.fresh_stack import StackFailed
    from launcher.commands.loadtest.load_run import NothingRun, RunFailed, renamed, run_load
    from launcher.commands.loadtest.locust_process import LocustMissing, check_installed
    from loadtest.tenants import TenantsError
    from loadtest.users.models import TargetError

    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width to keep to
        console = Console(highlight=False, width=160)
    try:
        check_installed()
        run = renamed(run_load(plan, console), name)
    except (LocustMissing, TenantsError, TargetError) as error:
        errors.print(f"inflight: {error}", markup=False)
        return 2
    except (RunFailed, StackFailed) as error:
        errors.print(f"inflight: {error}", markup=False)
        return 1
    except NothingRun as nothing:
        console.print(str(nothing))
        return 0
    except KeyboardInterrupt:  # before there was anything to report on
        return 130
    from launcher.commands.loadtest.summary import complaints, show
    from loadtest.report import write_report

    show(run, write_report(run, plan.out), console)
    found = complaints(run, fail_ratio, check)
    for each in found:
        errors.print(each, style="bold red", markup=False)
    return 1 if found else 0
