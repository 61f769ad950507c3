"""How commands show what they found: tables, JSON, amounts and moments."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from client.terminal import print

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console, RenderableType

DOLLAR = 1_000_000
_REDRAW_S = 1.0


def output_console() -> Console:
    """A file or a pipe has no width to keep to."""
    from client.terminal import Console as Plain

    return Plain(width=None if sys.stdout.isatty() else 240)


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    from client.screen_parts import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    output_console().print(table)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=lambda other: sorted(other)))


def keep_showing(
    console: Console, draw: Callable[[], RenderableType], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Draws again every second until Ctrl-C."""
    from rich.live import Live

    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(draw(), refresh=True)
                sleep(_REDRAW_S)
    except KeyboardInterrupt:
        return


def dollars(microdollars: int | None) -> str:
    return "" if microdollars is None else f"${microdollars / DOLLAR:,.6f}".rstrip("0").rstrip(".")


def moment(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


def time_text(time_s: float | None, digits: int = 3) -> str:
    """So many digits of it, in the unit that suits it."""
    if time_s is None:
        return ""
    if time_s < 0.9995:
        return f"{time_s * 1000:.{digits}g} ms"
    return f"{time_s:.{digits}g} s" if time_s < 600 else f"{time_s / 60:.{digits}g} min"
