"""How the tuning of a model looks on a terminal: sentences, and a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.administration.office import moment, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.tuning.office import Explanation

_COLUMNS = ("Triton model", "delay", "requests/s", "rows/batch", "p95", "objective", "a batch of n rows")


def print_explanation(found: Explanation) -> None:
    for line in _standing(found):
        print(line)
    if found.standing and (found.has_objective or found.paused_s is not None):
        show("", _COLUMNS, (_row(each.release, each.triton_model, each.detail) for each in found.standing))
        for each in found.standing:
            print(f"{each.triton_model}, {moment(each.at_s)} UTC: {each.sentence}.")
    if found.changes:
        print("Last changes:")
        for each in found.changes:
            print(f"  {moment(each.at_s)} UTC, {each.triton_model}, {each.action}: {each.sentence}.")
    print()


def _standing(found: Explanation) -> Iterator[str]:
    yield f"{found.model}:"
    if found.paused_s is not None:
        yield (
            f"Tuning is paused since {moment(found.paused_s)} UTC: what is in force stays "
            f"(`inflight tune resume {found.model}`)."
        )
    if not found.has_objective:
        yield (
            "There is no objective for the first token or from end to end, so no queue delay is tuned "
            f"(`inflight slo set {found.model} --help`)."
        )
    elif not found.standing:
        yield (
            "Nothing was decided yet: none of its models gathers batches, or the first window is not over."
        )


def _row(release: str, triton_model: str, detail: dict[str, Any]) -> Iterator[str]:
    yield f"{triton_model} ({release})"
    servers = set(detail.get("servers", {}).values())
    delays = servers if len(servers) > 1 else {detail.get("delay_ms", 0.0)}
    yield " / ".join(f"{each:g} ms" for each in sorted(delays))
    yield _number(detail.get("requests_per_s"))
    yield _number(detail.get("mean_batch"))
    yield _number(detail.get("p95_ms"), " ms")
    yield _number(detail.get("objective_ms"), " ms")
    cost = detail.get("cost")
    yield "" if cost is None else f"{cost['base_ms']:.3g} + {cost['row_ms']:.3g} n ms"


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.4g}{unit}"
