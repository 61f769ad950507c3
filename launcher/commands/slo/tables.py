"""How objectives look on a terminal: what is asked beside what is measured, and what to do next."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.text import Text

from client.screen_parts import Table
from launcher.commands.option_values import duration_text
from launcher.commands.output import time_text
from python_backend.wire.tiers import Tier
from router.control.objectives.standing import Verdict
from router.core.manifest import Kind
from router.core.objective import Metric, metrics_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from router.control.objectives.commands import ModelStandings
    from router.control.objectives.standing import Standing

_STYLES = {
    Verdict.KEPT: "green",
    Verdict.MISSED: "bold red",
    Verdict.TOO_FEW: "yellow",
    Verdict.NOT_MEASURED: "yellow",
    Verdict.NO_OBJECTIVE: "dim",
}
_COLUMNS = ("tier", "", "objective", "p95", "attained", "samples", "verdict")
_NUMBERS = range(2, 6)
_EXACT = 6
# Where nothing was measured that could tell better.
_USUAL_S = {Metric.FIRST_TOKEN: 0.5, Metric.INTER_TOKEN: 0.05, Metric.END_TO_END: 0.1}
_ROOM = 1.25


def view(models: Sequence[ModelStandings], is_served: bool) -> RenderableType:
    """`is_served`: a router runs that could measure something."""
    parts: list[RenderableType] = []
    if not models:
        parts.append(Text("There are no models yet: `inflight up` brings the first."))
    for model in models:
        parts += [Text(_title(model), style="bold"), *_body(model), Text("")]
    if models and not is_served:
        parts.append(
            Text("No router is running (`inflight up`), so nothing new is measured.", style="bold yellow")
        )
    return Group(*parts)


def _title(model: ModelStandings) -> str:
    kind = "no longer served" if model.kind is None else model.kind.value
    return f"{model.model} ({kind}): objectives for 95 of 100, and what was measured in 5 minutes"


def _body(model: ModelStandings) -> Iterator[RenderableType]:
    shown = [each for each in model.standings if each.objective_s is not None or each.samples or each.refused]
    if shown:
        yield _table(shown)
    for line in (*model.binds, *_next_steps(model)):
        yield Text(line)


def _table(standings: Sequence[Standing]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(_COLUMNS):
        justify: Literal["left", "right"] = "right" if number in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=column != "verdict")
    former: Tier | None = None
    for each in standings:
        table.add_row(
            "" if each.tier is former else each.tier.label,
            each.metric.words,
            time_text(each.objective_s, _EXACT) or "none",
            time_text(each.p95_s),
            "" if each.attained is None else _percent(each.attained),
            f"{each.samples:,}" if each.samples else "",
            Text(each.sentence, style=_STYLES[each.verdict]),
        )
        former = each.tier
    return table


def _percent(share: float) -> str:
    """Never 100 % of what was not always kept."""
    return f"{floor(share * 1000) / 10:.1f}%"


def _next_steps(model: ModelStandings) -> Iterator[str]:
    found = model.standings
    if model.kind is not None and all(each.objective_s is None for each in found):
        yield f"No objective yet. For instance:\n  {_example(model.model, model.kind, found)}"
    silent = {each.tier.label for each in found if each.verdict is Verdict.NOT_MEASURED}
    if silent:
        tiers = " and ".join(tier.label for tier in Tier if tier.label in silent)
        how = f"; for instance\n  inflight ask --model {model.model} 'Name the capital of France.'"
        can_ask = model.kind is Kind.TEXT and Tier.STANDARD.label in silent
        yield f"Nothing was measured for {tiers}: send some requests{how if can_ask else '.'}"
    if any(each.verdict is Verdict.MISSED for each in found):
        yield f"How it is tuned, and why:\n  inflight tune explain {model.model}"
    if model.kind is None:
        yield f"To remove its objectives:\n  inflight slo clear {model.model}"


def _example(model: str, kind: Kind, found: Sequence[Standing]) -> str:
    """What is measured with some room, where anything is: an objective that can be kept."""
    measured = {each.metric: each.p95_s for each in found if each.tier is Tier.STANDARD}
    limits = [
        f"{metric.option} {duration_text(_rounded_up(measured.get(metric), _USUAL_S[metric]))}"
        for metric in metrics_of(kind)
    ]
    return f"inflight slo set {model} {' '.join(limits)}"


def _rounded_up(measured_s: float | None, usual_s: float) -> float:
    """To two digits, and to no less than a millisecond."""
    if measured_s is None:
        return usual_s
    wanted_s = max(measured_s * _ROOM, 0.001)
    step_s = 10.0 ** (floor(log10(wanted_s)) - 1)
    return max(ceil(wanted_s / step_s) * step_s, 0.001)
