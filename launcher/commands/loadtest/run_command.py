"""`inflight loadtest run`: users of all kinds, by Locust, against a stack of its own or one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands.options import SloOption

if TYPE_CHECKING:
    from client.terminal import Console
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
            metavar="URL", help="A running router. [default: a stack is started, and stopped afterwards]"
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="How users come and go: steady, ramp, spike, diurnal, trace.")
    ] = "steady",
    users: Annotated[int, typer.Option(min=1, help="Maximum number of users at a time.")] = 8,
    duration: Annotated[str, typer.Option(metavar="TIME", help="Such as 30s, 5m, 1h.")] = "30s",
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=N,...",
            help="Users of each kind by weight: chat, completions, embeddings, triton, conversation. "
            "[default: chat=6, completions=2, embeddings=2, triton=1, conversation=1, without those "
            "that the stack cannot answer]",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --url the model to ask; without, as for `inflight up`."),
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A JSON list of tenants: name, key, weight, tier; on a private stack they are created. "
            "[default: three there, with --url one with the key in INFLIGHT_API_KEY]",
        ),
    ] = None,
    fresh_tenants: Annotated[
        int, typer.Option(min=0, max=3, help="Number of tenants on a private stack; 0: no keys.")
    ] = 3,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lengths are sampled from it, and --shape trace follows its rate."),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Median length of prompts, without a trace.")
    ] = 64,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Median length of answers, without a trace.")
    ] = 48,
    longest_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of a prompt, and of an answer.")
    ] = 256,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Length of the prefix that a tenant's prompts share.")
    ] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Average number of questions in a conversation.")] = 4,
    think: Annotated[
        str, typer.Option(metavar="TIME", help="Average pause between an answer and the next question.")
    ] = "1s",
    low: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of the users between spikes, at night, at the start of a ramp."
        ),
    ] = 0.2,
    spikes: Annotated[int, typer.Option(min=1, help="Number of spikes, with --shape spike.")] = 1,
    days: Annotated[int, typer.Option(min=1, help="Number of days, with --shape diurnal.")] = 1,
    ignore_retry_after: Annotated[
        bool,
        typer.Option("--ignore-retry-after", help="Refused users retry without waiting for Retry-After."),
    ] = False,
    by_tenant: Annotated[bool, typer.Option("--by-tenant", help="Locust's statistics per tenant.")] = False,
    grpc_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --url. [default: port 8081 of the same host]")
    ] = "",
    triton_metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="With --url: Triton's metrics, for the report; may be repeated."),
    ] = None,
    slo: SloOption = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when the --slo is missed.")] = False,
    fail_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 1 when more than this share of the requests fail.")
    ] = 0.01,
    web: Annotated[
        bool, typer.Option("--web", help="Show Locust's web page; users start when you start them there.")
    ] = False,
    web_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of that page, on this machine.")
    ] = 8089,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report goes.")] = OUT,
    name: Annotated[str, typer.Option(help="Name of the run in the report. [default: shape and users]")] = "",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal prompts and pauses.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where models are kept. [default: ~/.local/share/inflight]")
    ] = None,
) -> None:
    """Send load as simulated users do, and write a report.

    Users wait for an answer, pause, and ask again (closed loop); `inflight loadtest replay` sends requests on
    schedule (open loop). docs/loadtest.md explains what is measured. Ctrl-C ends a run; report and exit
    status cover what was sent until then.

    `inflight loadtest run --users 16 --duration 2m`  on a private stack

    `inflight loadtest run --url http://127.0.0.1:8080 --slo ttft:1s,itl:60ms --check`  on a running one

    `inflight loadtest run --url http://127.0.0.1:8080 --users 200 -- --processes 4`  with options for Locust

    Exit status: 0 done, 1 too much failed or (with --check) the objective was missed, 2 something that was
    given cannot be used, 130 Ctrl-C before the first request.
    """
    from client.terminal import Console
    from launcher.commands.loadtest import options
    from launcher.commands.loadtest.load_run import Plan
    from launcher.commands.loadtest.locust_process import Web
    from launcher.commands.option_values import Mistake, duration_s
    from loadtest.users.options import read_kinds

    errors = Console(stderr=True, soft_wrap=True)
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
    from client.terminal import Console
    from launcher.commands.loadtest.fresh_stack import StackFailed
    from launcher.commands.loadtest.load_run import NothingRun, RunFailed, renamed, run_load
    from launcher.commands.loadtest.locust_process import LocustMissing, check_installed
    from loadtest.tenants import TenantsError
    from loadtest.users.models import TargetError

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to keep to
        console = Console(width=160)
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
