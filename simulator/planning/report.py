"""How a plan looks: tables on a terminal, JSON for programs, and one page of HTML with plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group

from client.screen_parts import Table
from loadtest.report.page import cards, page, table
from python_backend.wire.tiers import Tier
from simulator.svg import Panel, draw

if TYPE_CHECKING:
    from typing import TypeAlias

    from rich.console import RenderableType

    from simulator.planning.proof import Proof
    from simulator.planning.search import Choice, Plan
    from simulator.planning.whatifs import Row

    Planned: TypeAlias = tuple[Plan, Proof | None, Sequence[Row]]

_CHOICE = ("replica", "requests/s", "binds", "replicas", "GPUs", "$/h", "$/M tokens", "$/M out", "figures")
_TOGETHER = ("model", "replica", "replicas", "GPUs", "$/h")
_ROW = ("what if", "answer", "replicas", "$/h", "of the plan")


def to_json(planned: Sequence[Planned]) -> dict[str, Any]:
    """Of one model its plan; of several all of them, and what they come to."""
    plans = [_plan_json(*each) for each in planned]
    if len(plans) == 1:
        return plans[0]
    return {"models": plans, "gpus": dict(gpus_of(planned)), "dollars_per_h": dollars_of(planned)}


def gpus_of(planned: Sequence[Planned]) -> Counter[str]:
    """By kind."""
    found: Counter[str] = Counter()
    for plan, _, _ in planned:
        found[plan.best.profile.gpu] += plan.best.gpus
    return found


def dollars_of(planned: Sequence[Planned]) -> float:
    return sum(plan.best.dollars_per_h for plan, _, _ in planned)


def together(planned: Sequence[Planned]) -> RenderableType:
    """A line for each model, and their sum."""
    rows = [
        [
            plan.wish.model,
            plan.best.profile.name,
            str(plan.best.replicas),
            str(plan.best.gpus),
            f"{plan.best.dollars_per_h:,.2f}",
        ]
        for plan, _, _ in planned
    ]
    gpus = ", ".join(f"{count} {gpu}" for gpu, count in sorted(gpus_of(planned).items()))
    rows.append(["all of them", gpus, "", str(gpus_of(planned).total()), f"{dollars_of(planned):,.2f}"])
    return _table(_TOGETHER, rows)


def _plan_json(plan: Plan, proof: Proof | None, rows: Sequence[Row]) -> dict[str, Any]:
    best, traffic = plan.best, plan.wish.traffic
    return {
        "model": plan.wish.model,
        "peak_per_s": traffic.peak_per_s,
        "prompt_tokens": traffic.prompt_tokens,
        "output_tokens": traffic.output_tokens,
        "plan": _json(best, traffic.peak_per_s),
        "choices": [_json(each, traffic.peak_per_s) for each in plan.choices],
        "too_expensive": [each.name for each in plan.hopeless],
        "played": None if proof is None else _played(proof),
        "what_if": [
            {name: getattr(each, name) for name in ("asked", "answer", "replicas", "dollars_per_h", "times")}
            for each in rows
        ],
    }


def _json(choice: Choice, peak_per_s: float) -> dict[str, Any]:
    profile = choice.profile
    return {
        "replica": profile.name,
        "gpu": profile.gpu,
        "precision": profile.precision,
        "tensor_parallel": profile.tensor_parallel,
        "requests_per_s": choice.capacity.per_s,
        "binds": choice.capacity.binds,
        "needed": choice.needed,
        "replicas": choice.replicas,
        "gpus": choice.gpus,
        "margin": choice.margin(peak_per_s),
        "dollars_per_h": choice.dollars_per_h,
        "dollars_per_million_tokens": choice.dollars_per_million,
        "dollars_per_million_output_tokens": choice.dollars_per_million_out,
        "origin": profile.origin,
        "fit_error": profile.fit_error,
        "is_measured": profile.is_measured,
        "is_extrapolated": profile.is_extrapolated,
    }


def _played(proof: Proof) -> dict[str, Any]:
    return {
        "lost": proof.lost,
        "kept_before": proof.kept,
        "kept_after": proof.kept_after,
        "recovered_s": proof.recovered_s,
        "first_token_p95_s": {tier.label: proof.played.percentile(0, tier, 0.95) for tier in Tier},
        "inter_token_p95_s": {tier.label: proof.played.percentile(1, tier, 0.95) for tier in Tier},
    }


def summary(plan: Plan) -> str:
    best, traffic = plan.best, plan.wish.traffic
    return (
        f"{plan.wish.model}: {best.replicas} replicas of {best.profile.name} ({best.needed} carry the load), "
        f"${best.dollars_per_h:,.2f} an hour, ${best.dollars_per_million:.3f} a million tokens; "
        f"{100 * best.margin(traffic.peak_per_s):.0f} % more than {traffic.peak_per_s:g} requests/s while "
        f"nothing is lost; {best.capacity.binds} binds"
    )


def proof_line(proof: Proof) -> str:
    if proof.lost == "nothing":
        return f"played: {100 * proof.kept:.1f} % of the worst tier keep their objectives at the peak"
    recovered = proof.recovered_s
    after = "not within the time played" if recovered is None else f"after {recovered:.0f} s"
    return (
        f"played: {100 * proof.kept:.1f} % of the worst tier keep their objectives at the peak, "
        f"{100 * proof.kept_after:.1f} % from the loss of {proof.lost} on; all of them again {after}"
    )


def _flag(choice: Choice) -> str:
    profile = choice.profile
    said = "measured" if profile.is_measured else "derived"
    return f"{said} ±{100 * profile.fit_error:.0f} %" + (", extrapolated" if profile.is_extrapolated else "")


def _cells(choice: Choice) -> list[str]:
    return [
        choice.profile.name,
        f"{choice.capacity.per_s:.1f}",
        choice.capacity.binds,
        str(choice.replicas),
        str(choice.gpus),
        f"{choice.dollars_per_h:,.2f}",
        f"{choice.dollars_per_million:.3f}",
        f"{choice.dollars_per_million_out:.3f}",
        _flag(choice),
    ]


def _row(row: Row) -> list[str]:
    cost = f"{row.dollars_per_h:,.2f}" if row.replicas else "-"
    return [row.asked, row.answer, str(row.replicas), cost, f"{row.times:.2f}"]


def origins(plan: Plan) -> list[str]:
    found: Mapping[str, None] = dict.fromkeys(
        f"{plan.wish.model}, {each.profile.gpu} {each.profile.precision}: {each.profile.origin}"
        for each in plan.choices
    )
    return list(found)


def tables(plan: Plan, rows: Sequence[Row]) -> RenderableType:
    parts: list[RenderableType] = [_table(_CHOICE, [_cells(each) for each in plan.choices[:8]])]
    if rows:
        parts.append(_table(_ROW, [_row(each) for each in rows]))
    return Group(*parts)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        is_text = heading in ("model", "replica", "binds", "figures", "what if", "answer")
        made.add_column(heading, justify="left" if is_text else "right")
    for row in rows:
        made.add_row(*row)
    return made


def html(planned: Sequence[Planned]) -> str:
    body = ["<h1>The fleet</h1>"]
    gpus, total = gpus_of(planned).total(), dollars_of(planned)
    body.append(cards([(f"{gpus}", "GPUs"), (f"${total:,.2f}", "an hour"), (f"{len(planned)}", "models")]))
    for plan, proof, rows in planned:
        body += _section(plan, proof, rows)
    return page("The fleet", body)


def _section(plan: Plan, proof: Proof | None, rows: Sequence[Row]) -> list[str]:
    parts = [f"<h2>{escape(plan.wish.model)}</h2>", f"<p>{escape(summary(plan))}</p>"]
    if proof is not None:
        parts.append(f"<p>{escape(proof_line(proof))}</p>")
    parts.append(table(_CHOICE, [_cells(each) for each in plan.choices]))
    if rows:
        parts += ["<h2>What if</h2>", table(_ROW, [_row(each) for each in rows], texts=2)]
    parts.append(draw(_panels(plan, proof)))
    parts += ["<h2>Where the figures come from</h2>", "<ul>"]
    parts += [f"<li>{escape(each)}</li>" for each in origins(plan)]
    return [*parts, "</ul>"]


def _panels(plan: Plan, proof: Proof | None) -> list[Panel]:
    traffic, best = plan.wish.traffic, plan.best
    hours = list(enumerate(part * traffic.peak_per_s for part in traffic.hours))
    all_day = [(float(hour), best.replicas * best.capacity.per_s) for hour, _ in hours]
    asked = [(float(hour), rate) for hour, rate in hours]
    panels = []
    if len(hours) > 1:
        lines = {"asked for": asked, "what the fleet can do": all_day}
        panels.append(Panel("A day", "requests/s", lines, "hour"))
    if proof is not None:
        periods = proof.played.periods
        course = {
            "offered": [(5.0 * at, float(row["offered"].sum()) / 5) for at, row in enumerate(periods)],
            "good": [(5.0 * at, float(row["good"].sum()) / 5) for at, row in enumerate(periods)],
            "refused": [(5.0 * at, float(row["refused"].sum()) / 5) for at, row in enumerate(periods)],
        }
        panels.append(Panel(f"The peak; {proof.lost} is lost", "requests/s", course, "seconds"))
    return panels
