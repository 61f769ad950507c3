"""`inflight chaos`: breaks a stack of its own on purpose, and counts."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.options import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.commands.chaos.arena import Order
    from launcher.commands.chaos.campaign import Load
    from loadtest.chaos.episode import EpisodeResult
    from loadtest.chaos.plan import Fault

EXIT_VIOLATED, EXIT_USAGE = 1, 2
# The engine with steps of 20 ms that compute nothing: the faults are the same, several answers are under way
# when they strike, and the processors are left to what they break.
# So few fit into a step that a flood has to wait its turn, instead of taking the processors from all.
SYNTHETIC = {
    "inflight_runtime": "paced",
    "inflight_paced_cost": "20,0,0,0",
    "inflight_max_batch_size": "16",
}


def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long new faults are started.")] = 5.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same faults in the same order.")] = 1,
    faults: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Only these faults. [default: all; `--list` shows them]"),
    ] = None,
    pairs: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the faults that overlap another one.")
    ] = 0.25,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Use an engine without a model, which makes up its tokens: "
            "for machines with few processors.",
        ),
    ] = False,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second for each router.")] = 3.0,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Length of the answers.")] = 60,
    recovery_limit_s: Annotated[
        float,
        typer.Option(
            min=1, help="How long the stack may take to come to rest, not counting the start of a process."
        ),
    ] = 20.0,
    report: Annotated[
        Path,
        typer.Option(
            help="Where the report goes; its figures are written beside it, as .json for the console."
        ),
    ] = Path("chaos.html"),
    model: Annotated[
        str | None, typer.Option(help=f"As for `inflight up`. [default: {DEFAULTS.model}]")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where models are kept. [default: ~/.local/share/inflight]")
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list", help="List the faults and exit.")] = False,
) -> None:
    """Break a stack on purpose, and check after every fault that nothing was lost.

    Starts a private stack of two Triton servers and two routers, sends it load whose answers are known from
    a run without faults, and injects one fault after another: processes killed and frozen, connections
    broken and slowed down, PostgreSQL and Redis unavailable, a full disk, a broken release, a flood. It
    checks after each one that every accepted request ended once, with the text that it has without faults,
    and was billed for what it received; that no budget was exceeded; that no block, region, file, socket or
    process leaked; and that all is at rest again within the limit. Faults that this machine cannot produce
    are skipped and named.

    Exit status: 0 no violation, 1 violations, 2 a setting cannot be used.
    """
    from loadtest.chaos.plan import CATALOGUE, chosen

    if list_faults:
        for each in CATALOGUE.values():
            print(f"{each.name:<16} {each.what}")
        return
    try:
        wanted = chosen([name.strip() for name in faults.split(",")] if faults else [])
    except ValueError as error:
        print(f"inflight: --faults: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
    from launcher.commands.chaos.arena import Order
    from launcher.commands.chaos.campaign import Load

    order = Order(
        model, data_dir, SYNTHETIC if synthetic else {}, frozenset(each.of for each in wanted if each.of)
    )
    load = Load(rate, answer_tokens, 5.0, recovery_limit_s)
    so_far: list[EpisodeResult] = []

    def tell(result: EpisodeResult) -> None:
        """A run that is ended early leaves what it has seen."""
        _tell(result)
        so_far.append(result)
        _write(report, so_far, {})

    results, skipped = run_chaos(wanted, seed, minutes * 60, order, load, pairs=pairs, told=tell)
    _write(report, results, skipped)
    raise typer.Exit(_summary(results, skipped, report))


def run_chaos(
    wanted: Sequence[Fault],
    seed: int,
    duration_s: float,
    order: Order,
    load: Load,
    most: int | None = None,
    pairs: float = 0.0,
    told: Callable[[EpisodeResult], None] | None = None,
) -> tuple[list[EpisodeResult], dict[str, str]]:
    """What came of the faults, `most` of them at most, and which were left out, with the reason."""
    from launcher.commands.chaos.arena import arena
    from launcher.commands.chaos.campaign import Campaign
    from loadtest.chaos.plan import episodes

    skipped: dict[str, str] = {}

    async def run(folder: Path) -> list[EpisodeResult]:
        task = asyncio.current_task()
        assert task is not None
        # Whoever is told to end takes all that it has started along.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with arena(folder, order) as running:
            possible = [each for each in wanted if each.of not in running.missing]
            skipped.update({each.name: running.missing[each.of] for each in wanted if each not in possible})
            campaign = Campaign(running, load, seed, told or _tell)
            plan = itertools.islice(episodes(seed, possible, load.seconds, pairs), most)
            return await campaign.run(plan, time.monotonic() + duration_s)

    with tempfile.TemporaryDirectory(prefix="inflight-chaos-") as folder:
        try:
            return asyncio.run(run(Path(folder))), skipped
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None


def _tell(result: EpisodeResult) -> None:
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(result.outcomes.items()))
    verdict = f"{len(result.violations)} VIOLATIONS" if result.violations else "ok"
    print(
        f"{result.episode.number:>4} {result.episode.name:<30} {result.victim:<34} {outcomes:<30} "
        f"at rest after {result.rest_s:5.1f} s of {result.limit_s:3.0f} s, "
        f"longest silence {result.longest_silence_s:4.1f} s  {verdict}",
        flush=True,
    )
    for each in result.violations[:10]:
        print(f"       {each}", flush=True)


def _write(report: Path, results: Sequence[EpisodeResult], skipped: Mapping[str, str]) -> None:
    from loadtest.chaos.figures import figures
    from loadtest.chaos.page import chaos_page
    from loadtest.chaos.storage import to_json

    when, command = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), " ".join(["inflight", *sys.argv[1:]])
    machine = f"{os.cpu_count()} processors, {when}"
    report.write_text(chaos_page(command, results, skipped, machine))
    run = {**to_json(command, results, skipped, machine), **figures(command, when, results, skipped)}
    report.with_suffix(".json").write_text(json.dumps(run, indent=1))


def _summary(results: Sequence[EpisodeResult], skipped: Mapping[str, str], report: Path) -> int:
    violations = sum(len(each.violations) for each in results)
    requests = sum(len(each.requests) for each in results)
    whole = sum(each.outcomes["whole"] for each in results)
    print(f"{len(results)} faults, {requests} requests, {whole} whole: {violations} violations; {report}")
    for name, why in skipped.items():
        print(f"left out: {name}: {why}")
    return EXIT_VIOLATED if violations else 0
