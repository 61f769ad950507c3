"""How releases look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from client.screen_parts import Table, line
from launcher.commands.output import moment
from launcher.commands.release.control import NO_ROUTER
from router.control.releases.gates import Shown
from router.control.releases.states import State
from router.core.lasting import lasting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from launcher.commands.release.status import ArmStatus, ModelStatus, RolloutStatus, Status
    from router.control.releases.records import Release
    from router.control.releases.shadow_figures import ShadowFigures

_STYLES = {
    State.READY: "green",
    State.FAILED: "bold red",
    State.LOADING: "yellow",
    State.WARMING: "yellow",
    State.DRAINING: "yellow",
}
_SHOWN_STYLES = {Shown.WITHIN.value: "green", Shown.OUTSIDE.value: "bold red", Shown.UNKNOWN.value: "yellow"}
_NOTHING = Shown.NOTHING.value
_MB = 1e6
_OURS = "inflight_"


def status_view(status: Status, now_s: float) -> RenderableType:
    parts: list[RenderableType] = []
    if not status.models:
        parts.append(Text("There are no releases yet: `inflight up`, then `inflight release add --help`."))
    for model in status.models:
        sticky = f", sticky by {model.split.sticky.value}" if model.split else ", not served"
        parts += [_title(model.model + sticky), _releases(model, now_s), *_news(model, now_s), Text("")]
    if not status.has_router_in_control:
        parts.append(Text(NO_ROUTER, style="bold yellow"))
    return Group(*parts)


def _releases(model: ModelStatus, now_s: float) -> Table:
    table = _table("release", "state", "traffic", "role", "for")
    for each in model.releases:
        release = each.release
        share = f"{each.share:.1%}" if each.share else ""
        if model.split and model.split.shadow and release.version == model.split.shadow.version:
            share = f"{share} +{model.split.shadow.share:.1%} shadow".strip()
        table.add_row(
            release.manifest.name,
            Text(release.condition, style=_STYLES.get(release.state, "")),
            share,
            each.role,
            lasting(now_s - release.since_s),
        )
    return table


def release_list(releases: Sequence[Release], now_s: float) -> Table:
    """What tells releases apart; `show` has the rest."""
    table = _table("release", "kind", "state", "age", "parameters", "notes")
    table.columns[0].no_wrap = True
    for each in releases:
        manifest = each.manifest
        chosen = (f"{key.removeprefix(_OURS)}={value}" for key, value in sorted(manifest.parameters.items()))
        table.add_row(
            manifest.name,
            manifest.kind.value,
            Text(each.condition, style=_STYLES.get(each.state, "")),
            lasting(now_s - each.added_s),
            Text(", ".join(chosen)),
            Text(each.notes),
        )
    return table


def _news(model: ModelStatus, now_s: float) -> list[RenderableType]:
    found = [each.release for each in model.releases]
    parts: list[RenderableType] = [
        line(f"{each.manifest.name} {each.state.value}: {each.reason}") for each in found if each.reason
    ]
    if model.rollout is not None:
        parts += [Text(""), *_rollout(model.rollout, now_s)]
    parts += [Text(_compared(model.model, each)) for each in model.shadows]
    if (turn := model.last_turn) is not None:
        parts.append(line(f"last change: {turn.what}, {moment(turn.at_s)} UTC: {turn.reason}"))
    return parts


def _compared(model: str, found: ShadowFigures) -> str:
    """Whole answers are compared, each of which takes both releases some time."""
    sums, count = found.sums, found.sums.compared
    parts = [f"{count:,} answers compared"]
    if count:
        parts += [
            f"{sums.equal / count:.1%} equal",
            f"{sums.likeness / count:.1%} alike",
            f"{milliseconds(sums.shadow_took_s / count)} against {milliseconds(sums.took_s / count)}",
        ]
    parts += [f"{sums.failed:,} failed"] if sums.failed else []
    return f"shadow {model}@{found.shadow} against @{found.version}: {', '.join(parts)}"


def _rollout(status: RolloutStatus, now_s: float) -> list[RenderableType]:
    rollout = status.rollout
    step, weights = rollout.progress.step, rollout.plan.weights
    where = "not begun"
    if step >= 0:
        for_s = lasting(now_s - rollout.progress.step_began_s)
        where = f"step {step + 1} of {len(weights)}, {weights[step]:.1%} of the traffic, for {for_s}"
    title = f"rollout of {rollout.model}@{rollout.canary} ({rollout.state.value}): {where}"
    columns = ("requests", "in this step", "errors", "first token", "between tokens", "tokens", "refusals")
    table = _table("arm", *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for arm in status.arms:
        table.add_row(*_arm_cells(arm))
    parts: list[RenderableType] = [_title(title), table]
    if rollout.golden and rollout.progress.golden_step >= -1:
        failed, note = rollout.progress.golden_failed, rollout.progress.golden_note
        parts.append(line(f"golden prompts: {failed} of {len(rollout.golden)} failed{note and f': {note}'}"))
    if told := rollout.figures.get("before_traffic", {}).get("line"):
        parts.append(line(told))
    if deaths := rollout.figures.get("deaths"):
        counts = f"{deaths['canary']} of the canary, {deaths['stable']} of the stable release"
        parts.append(Text(f"processes that died: {counts}"))
    gates = [each for each in rollout.figures.get("gates", ()) if each.get("shown") not in (None, _NOTHING)]
    if gates:
        parts += [Text(""), _gates(gates)]
    parts += map(Text, _copies(status))
    if status.expectation is not None:
        parts.append(Text(status.expectation.sentence))
    return [*parts, line(f"now: {rollout.reason}")]


def _copies(status: RolloutStatus) -> list[str]:
    copies, replays = (sum(arm.copies - arm.replays for arm in status.arms), status.arms[-1].replays)
    found = [f"{copies:,} copies of requests to the stable release"] if copies else []
    if status.rollout.plan.replay_per_s:
        found.append(f"{replays:,} recorded prompts replayed on both releases while they were idle")
    return [f"and {', '.join(found)}, which count in the checks"] if found else []


def _gates(gates: Sequence[Mapping[str, Any]]) -> Table:
    """What each has shown so far: for the canary, or against it."""
    table = _table("gate", "shown", "for it", "against it", "figures", "allowed")
    for each in gates:
        within = "" if each["within"] is None else f"{min(each['within'], 1.0):.0%}"
        against = f"{min(each['against'], 1.0):.0%}" if each["against"] else ""
        style = _SHOWN_STYLES.get(each["shown"], "")
        table.add_row(
            each["gate"], Text(each["shown"], style=style), within, against, each["figures"], each["allowed"]
        )
    return table


def _arm_cells(arm: ArmStatus) -> tuple[str, ...]:
    return (
        f"{arm.version} {arm.role}",
        f"{arm.requests:,}",
        f"{arm.step_requests:,}",
        f"{arm.error_rate:.2%}" if arm.requests else "",
        milliseconds(arm.first_token_s),
        milliseconds(arm.between_tokens_s),
        "" if arm.tokens is None else f"{arm.tokens:,.0f}",
        f"{arm.refusal_rate:.2%}" if arm.requests else "",
    )


def _title(text: str) -> Text:
    """Not the table's own, which would be as narrow as the table."""
    return Text(text, style="bold")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def milliseconds(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s * 1000:,.1f} ms"


def size(count_bytes: int) -> str:
    return f"{count_bytes / _MB:,.1f} MB" if count_bytes >= _MB / 10 else f"{count_bytes:,} bytes"
