"""How the tuning of a model looks on a terminal: sentences, and a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.terminal import print
from launcher.commands.output import moment, show
from python_backend.wire.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.control.tuning.commands import Explanation
    from router.control.tuning.decisions import TuningDecision

_COLUMNS = ("Triton model", "delay", "requests/s", "rows/batch", "p95", "objective")


def print_explanation(found: Explanation) -> None:
    for line in _standing(found):
        print(visible(line))
    if found.standing and (found.has_objective or found.paused_s is not None):
        show("", _COLUMNS, (_row(each) for each in found.standing))
        for each in found.standing:
            told = f"{each.sentence}.{_longer(each.detail)}{_cost(each.detail)}"
            print(visible(f"{_named(each)}, {moment(each.at_s)} UTC: {told}"))
    for each in found.engines:
        for server, engine in each.detail["engines"].items():
            where = f"Engine of {each.release} on {server}, {moment(each.at_s)} UTC"
            print(visible(f"{where}: {engine['sentence']}."))
            if "binds" in engine:
                print(visible(f"  {engine['binds']}"))
    if found.changes:
        print("Last changes:")
        for each in found.changes:
            print(f"  {change(each)}")
    print()


def change(decided: TuningDecision) -> str:
    """One line; long, for it says why."""
    return visible(f"{moment(decided.at_s)} UTC, {_named(decided)}, {decided.action}: {decided.sentence}.")


def _standing(found: Explanation) -> Iterator[str]:
    yield f"{found.model}:"
    if found.paused_s is not None:
        yield (
            f"Tuning is paused since {moment(found.paused_s)} UTC: the current values stay in force "
            f"(`inflight tune resume {found.model}`)."
        )
    if not found.has_objective:
        yield (
            "There is no objective for the first token or from end to end, so no queue delay is tuned "
            f"(`inflight slo set {found.model} --help`)."
        )
    elif not found.standing:
        yield (
            "No queue delay has been chosen yet: none of its Triton models batches requests, or the first "
            "window has not ended."
        )


def _named(decided: TuningDecision) -> str:
    return f"{decided.triton_model} of {decided.release}"


def _row(decided: TuningDecision) -> Iterator[str]:
    detail = decided.detail
    yield decided.triton_model
    servers = set(detail.get("servers", {}).values())
    delays = servers if len(servers) > 1 else {detail.get("delay_ms", 0.0)}
    yield " / ".join(f"{each:g} ms" for each in sorted(delays))
    yield _number(detail.get("requests_per_s"))
    yield _number(detail.get("mean_batch"))
    yield _number(detail.get("p95_ms"), " ms")
    yield _number(detail.get("objective_ms"), " ms")


def _longer(detail: dict[str, Any]) -> str:
    """What a longer delay would bring; of an engine's steps, or of an earlier version, nothing."""
    longer = detail.get("longer")
    if longer is None:
        return ""
    sentence: str = longer["sentence"]
    return f" {sentence[0].upper()}{sentence[1:]}."


def _cost(detail: dict[str, Any]) -> str:
    cost = detail.get("cost")
    if cost is None:
        return ""
    token_ms = cost.get("token_ms", 0.0)  # what was decided by a version before this has none
    of_tokens = f" + {token_ms:.3g} ms for each token" if token_ms else ""
    takes = f" A batch of n rows takes {cost['base_ms']:.3g} + {cost['row_ms']:.3g} n ms{of_tokens}"
    if cost["is_frozen"]:
        return f"{takes}: the last good cost, because predictions are off by {cost['error']:.0%} now."
    return f"{takes}: learned from {cost['batches']:,} batches, {cost['error']:.0%} off on average."


def _number(value: float | None, unit: str = "") -> str:
    """No more digits than anybody reads."""
    if value is None:
        return ""
    return f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}"
