"""What `benchmarks.gpu.steady` saw, as a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plots import Plots
from loadtest.percentiles import percentile

if TYPE_CHECKING:
    from benchmarks.gpu.steady import Seen

_SHARES = (0.5, 0.95, 0.99)
_COLUMNS = (
    "part, kind",
    "server",
    "TTFT p50 / p95 / p99 ms",
    "TPOT p50 / p95 / p99 ms",
    "end to end p50 / p95 / p99 s",
    "tok/s",
    "longest silence ms",
)


def show(seen: Sequence[Seen]) -> None:
    print(f"| {' | '.join(_COLUMNS)} |")
    print(f"|{'---|' * len(_COLUMNS)}")
    for each in sorted(seen, key=lambda one: one.part):
        for kind in sorted({str(row["kind"]) for row in each.results}):
            print(_line(each, kind))
    for each in seen:
        if each.stages_ms:
            stages = ", ".join(f"{name} {ms:.1f}" for name, ms in each.stages_ms.items() if ms >= 0.05)
            print(f"{each.part}: mean ms of a request: {stages}")
        cores = {name: used / each.seconds for name, used in each.processor_s.items()}
        shown = ", ".join(f"{name} {share:.2f}" for name, share in cores.items() if share >= 0.01)
        print(f"{each.server}, {each.part}: cores: {shown}", flush=True)


def _line(seen: Seen, kind: str) -> str:
    rows = [row for row in seen.results if row["kind"] == kind]
    quietest = max(rows, key=lambda row: float(row["longest_gap_s"]))
    silence, since_s = 1000 * float(quietest["longest_gap_s"]), quietest.get("silent_from_s")
    tokens = sum(int(row["completion_tokens"]) for row in rows) / seen.seconds
    columns = [
        f"{seen.part}, {kind}",
        seen.server,
        _percentiles(rows, "first_token_s", 1000, 1),
        _percentiles(rows, "token_s", 1000, 2),
        _percentiles(rows, "ended_s", 1, 2),
        f"{tokens:,.0f}",
        f"{silence:.0f}" if since_s is None else f"{silence:.0f} at {since_s:.1f} s",
    ]
    return f"| {' | '.join(columns)} |"


def _percentiles(rows: Sequence[dict[str, Any]], name: str, scale: float, digits: int) -> str:
    values = sorted(row[name] for row in rows if row[name] is not None)
    return " / ".join(f"{scale * percentile(values, share):.{digits}f}" for share in _SHARES)


def draw(seen: Sequence[Seen], directory: Path) -> None:
    rates = [
        part for part in dict.fromkeys(each.part for each in seen) if "a second" in part and "," not in part
    ]
    for name, title, field in (
        ("steady-first-token", "Time to first token, p50 and p95", "first_token_s"),
        ("steady-between-tokens", "Between tokens, p50 and p95", "token_s"),
    ):
        series = {
            f"{server} p{share * 100:.0f}": [_value(seen, server, part, field, share) for part in rates]
            for server in dict.fromkeys(each.server for each in seen)
            for share in (0.5, 0.95)
        }
        Plots(directory).bars(name, title, "ms", rates, series)


def _value(seen: Sequence[Seen], server: str, part: str, field: str, share: float) -> float:
    rows = [row for each in seen if (each.server, each.part) == (server, part) for row in each.results]
    values = sorted(float(str(row[field])) for row in rows if row[field] is not None)
    return 1000 * percentile(values, share)
