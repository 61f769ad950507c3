"""The command line of `inflight top`, and its loop."""

from __future__ import annotations

import dataclasses
import json
import select
import sys
import time
from collections import deque
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli import KeyOption, UrlOption
from client.http import DEFAULT_URL
from client.terminal import print

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from launcher.commands.top.metrics_pages import RouterPage
    from launcher.commands.top.scrape import Labels, Scrape
    from launcher.commands.top.view import View

PERIOD_S = 1.0
# Rates are over so many looks: over one they would jump.
_LOOKS = 10
_WIDTH_OF_FILES = 160


def top(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    triton_metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="A Triton's metrics page, to show its engine; may be repeated. "
            "[default: those on this machine, if the router is]"
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read the metrics twice, a second apart, print one view and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one view as JSON and exit.")] = False,
) -> None:
    """Live view of a router: load, latency, tenants, time per stage, errors.

    It reads /metrics once a second; rates and percentiles are over the last ten seconds. q or Ctrl-C leaves.
    A router with keys shows its metrics only to those with the scope metrics:read.

    `inflight top`  on this machine, on port 8080

    `inflight top --url https://llm.example.org --key KEY --once`  elsewhere, for a file or a mail

    Columns: waiting i/s/b is interactive/standard/batch; tok/s of a model counts generated tokens, of a
    tenant prompt tokens too; TTFT is the time to the first token, token p95 the time from token to token;
    SLO is the attainment of the objective that is met worst; batch, busy and KV show how full the engine
    is, as the router counts; drain is how long the current work will take; up counts the replicas.

    Exit status: 0 shown, 1 the router does not answer.
    """
    from launcher.commands.top.metrics_pages import PageUnreadable, RouterPage, is_local, local_tritons

    try:
        with closing(RouterPage(url, key)) as router:
            tritons = triton_metrics or (local_tritons() if is_local(url) else [])
            watch = Watch(router, tritons, bool(triton_metrics))
            watch.look()
            if once or as_json or not sys.stdout.isatty():
                time.sleep(PERIOD_S)
                watch.look()
                _print(watch.view, url, as_json)
            else:
                _keep_showing(watch, url)
    except PageUnreadable as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


class Watch:
    """The last looks at one router and its Tritons."""

    def __init__(self, router: RouterPage, tritons: list[str], are_tritons_named: bool) -> None:
        self._router = router
        self._tritons = tritons
        self._are_tritons_named = are_tritons_named
        self._looks: deque[tuple[Scrape, Scrape | None]] = deque(maxlen=_LOOKS + 1)
        self._is_ready: bool | None = None

    def look(self) -> None:
        """Raises PageUnreadable where the router does not answer.

        A Triton that does not is left out; one that was named must have answered once.
        """
        from launcher.commands.top.metrics_pages import PageUnreadable, triton_metrics
        from launcher.commands.top.scrape import Scrape

        router = self._router.metrics()
        self._is_ready = self._router.is_ready()
        samples: dict[str, list[tuple[Labels, float]]] = {}
        for url in self._tritons:
            try:
                page = triton_metrics(url)
            except PageUnreadable:
                if self._are_tritons_named and not self._looks:
                    raise
                continue
            for name, found in page.samples.items():
                told_by = [({**labels, "triton": url}, value) for labels, value in found]
                samples.setdefault(name, []).extend(told_by)
        self._looks.append((router, Scrape(router.at_s, samples) if samples else None))

    @property
    def view(self) -> View:
        from launcher.commands.top.scrape import ScrapeDelta
        from launcher.commands.top.view import view_of

        (old, old_triton), (new, new_triton) = self._looks[0], self._looks[-1]
        triton = ScrapeDelta(old_triton, new_triton) if old_triton and new_triton else None
        return view_of(ScrapeDelta(old, new), triton, self._is_ready)


def _print(view: View, url: str, as_json: bool) -> None:
    from client.terminal import Console
    from launcher.commands.top.screen import drawn

    if as_json:
        print(json.dumps(dataclasses.asdict(view), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    console.print(drawn(view, url, console.width))


def _keep_showing(watch: Watch, url: str) -> None:
    from rich.live import Live

    from client.terminal import Console
    from launcher.commands.top.metrics_pages import PageUnreadable
    from launcher.commands.top.screen import drawn

    console = Console()
    with single_keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        problem = ""
        try:
            while True:
                live.update(drawn(watch.view, url, console.width, problem), refresh=True)
                if pressed(PERIOD_S) in ("q", "Q"):
                    return
                try:
                    watch.look()
                    problem = ""
                except PageUnreadable as error:
                    problem = str(error)
        except KeyboardInterrupt:
            return


@contextmanager
def single_keys() -> Iterator[Callable[[float], str]]:
    """Within it, a key need not be followed by Enter; nothing is read where there is no terminal."""
    import termios
    import tty

    def pressed(timeout_s: float) -> str:
        if not sys.stdin.isatty():
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        return sys.stdin.read(1) if ready else ""

    if not sys.stdin.isatty():
        yield pressed
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
