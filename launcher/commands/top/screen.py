"""Draws what `inflight top` shows; a narrow terminal is shown fewer columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.console import Group
from rich.text import Text

from client.screen_parts import Table, line
from launcher.commands.top.view import TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from launcher.commands.top.view import Engine, Release, Stage, Tenant, Trouble, View

Row = TypeVar("Row")
_WIDE = 110
_BAR = 24
_MOST_TROUBLES = 6
_GOOD, _BAD, _DIM = "green", "bold red", "dim"
_FULL = 0.9
_KEPT = 0.95


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`rank`: the lower, the narrower the terminal that still has it."""

    title: str
    width: int
    rank: int
    cell: Callable[[Row], Text]
    is_left: bool = False


def drawn(view: View, url: str, width: int, problem: str = "") -> RenderableType:
    parts: list[RenderableType] = [_header(view, url), Text()]
    if problem:
        parts[1:1] = [line(problem, _BAD)]
    parts.append(_table(RELEASES, view.releases, width))
    if view.engines:
        parts += [Text(), _table(ENGINES, view.engines, width)]
    left = _table(TENANTS, view.tenants, width // 2 if width >= _WIDE else width)
    right = _where(view.stages)
    troubles = _troubles(view.troubles, view.seconds)
    if width >= _WIDE:
        beside = Table.grid(padding=(0, 4))
        beside.add_row(left, right)
        parts += [Text(), beside]
        parts += [Text(), troubles]
    else:
        # A narrow terminal is often a low one too: what went wrong must not be what is cut off.
        below: list[RenderableType] = [left, Text(), right]
        below = [troubles, Text(), *below] if view.troubles else [*below, Text(), troubles]
        parts += [Text(), *below]
    return Group(*parts)


def _header(view: View, url: str) -> Text:
    head = line(f"inflight {view.version}  {url}  ", "bold")
    states = {
        True: ("ready", _GOOD),
        False: ("not ready", _BAD),
        None: ("", ""),
    }
    head.append(*states[view.is_ready])
    facts = [
        f"up {_span(view.up_s)}" if view.up_s is not None else "",
        f"router: {view.cpu:.0%} of a core, {view.memory_bytes / 2**20:.0f} MiB",
        f"{view.other_routers} other routers" if view.other_routers is not None else "",
        f"rates over {view.seconds:.0f} s",
    ]
    head.append("  " + ", ".join(filter(None, facts)), style=_DIM)
    return head


def columns_for(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """As many as fit, in their own order; the first of all ranks always does."""
    left = width
    chosen: set[str] = set()
    for column in sorted(columns, key=lambda each: each.rank):
        if chosen and left < column.width + 2:
            break
        left -= column.width + 2
        chosen.add(column.title)
    return [column for column in columns if column.title in chosen]


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold cyan")
    chosen = columns_for(columns, width)
    for column in chosen:
        table.add_column(
            column.title,
            justify="left" if column.is_left else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(column.width, 6),
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in chosen))
    return table


def _where(stages: Sequence[Stage]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold cyan")
    table.add_column("where the time goes", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for stage in stages:
        bar = "█" * round(stage.part * _BAR)
        table.add_row(stage.stage, _seconds(stage.mean_s), Text(f"{bar} {stage.part:.0%}"))
    if not stages:
        table.add_row(Text("no request has ended", style=_DIM))
    return table


def _troubles(troubles: Sequence[Trouble], seconds: float) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold cyan")
    table.add_column(f"refused and failed in {seconds:.0f} s", no_wrap=True, overflow="ellipsis")
    table.add_column("", justify="right")
    for trouble in troubles[:_MOST_TROUBLES]:
        table.add_row(Text(trouble.what), Text(str(trouble.count), style=_BAD))
    if not troubles:
        table.add_row(Text("nothing", style=_DIM), "")
    return table


def _waiting(release: Release) -> Text:
    counts = [release.waiting.get(tier, 0) for tier in TIERS]
    return Text("/".join(map(str, counts)), style="yellow" if any(counts) else _DIM)


def _replicas(release: Release) -> Text:
    style = _GOOD if release.replicas_up == release.replicas else _BAD
    return Text(f"{release.replicas_up}/{release.replicas}", style=style if release.replicas else _DIM)


def _seconds(seconds: float | None) -> Text:
    if seconds is None:
        return Text("-", style=_DIM)
    if seconds >= 10:
        return Text(f"{seconds:.0f} s")
    return Text(
        f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
    )


def _part(part: float | None, bad: Callable[[float], bool] = lambda part: False) -> Text:
    if part is None:
        return Text("-", style=_DIM)
    return Text(f"{part:.0%}", style=_BAD if bad(part) else "")


def _rate(rate: float) -> Text:
    return Text(f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}", style="" if rate else _DIM)


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


RELEASES: list[Column[Release]] = [
    Column("model", 22, 0, lambda row: Text(f"{row.model}@{row.release}", style="bold"), is_left=True),
    Column("share", 5, 7, lambda row: _part(row.share)),
    Column("running", 7, 1, lambda row: Text(str(row.in_flight))),
    Column("waiting i/s/b", 13, 3, _waiting),
    Column("req/s", 6, 2, lambda row: _rate(row.requests_per_s)),
    Column("tok/s", 6, 1, lambda row: _rate(row.tokens_per_s)),
    Column("TTFT p50", 8, 5, lambda row: _seconds(row.first_token_p50_s)),
    Column("TTFT p95", 8, 2, lambda row: _seconds(row.first_token_p95_s)),
    Column("token p95", 9, 4, lambda row: _seconds(row.inter_token_p95_s)),
    Column("SLO", 5, 5, lambda row: _part(row.attained, lambda part: part < _KEPT)),
    Column("batch", 5, 6, lambda row: _part(row.occupancy)),
    Column("busy", 5, 6, lambda row: _part(row.busy)),
    Column("KV", 5, 6, lambda row: _part(row.kv, lambda part: part > _FULL)),
    Column("drain", 6, 7, lambda row: _seconds(row.drain_s)),
    Column("up", 4, 3, _replicas),
]
TENANTS: list[Column[Tenant]] = [
    Column("tenant", 26, 0, lambda row: Text(row.tenant), is_left=True),
    Column("in+out tok/s", 12, 1, lambda row: _rate(row.tokens_per_s)),
    Column("req/s", 6, 3, lambda row: _rate(row.requests_per_s)),
    Column("running", 7, 2, lambda row: Text(str(row.in_flight))),
    Column(
        "noisy", 5, 2, lambda row: Text("" if row.noisy is None else f"{row.noisy:.1f}x", style="bold yellow")
    ),
]
ENGINES: list[Column[Engine]] = [
    Column("engine (Triton)", 22, 0, lambda row: Text(row.model), is_left=True),
    Column("active", 6, 1, lambda row: Text(f"{row.active}/{row.limit}")),
    Column("waiting", 7, 2, lambda row: Text(str(row.waiting))),
    Column("busy", 5, 1, lambda row: _part(row.busy)),
    Column("KV", 5, 2, lambda row: _part(row.kv, lambda part: part > _FULL)),
    Column("token p95", 9, 3, lambda row: _seconds(row.inter_token_p95_s)),
    Column("paused", 6, 3, lambda row: Text(str(row.paused))),
    Column("preempted", 9, 4, lambda row: Text(str(row.preemptions))),
]
