"""What a calm tenant and one that floods saw of a stack, and the goals for it."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

from rich.console import Console
from rich.table import Table

from loadtest.percentiles import percentile

FIRST_TOKEN, INTER_TOKEN_S = "2s", 0.15
WINDOW_S, SETTLE_S = 5.0, 3.0
# What is to be shown: of the calm tenant, of all tenants, and of the flood.
MOST_FIRST_TOKEN_S, MOST_TIMES_ALONE, LEAST_FLOOD_SHARE = 0.5, 3.0, 0.9
MOST_OFF = 2.0  # times, of Retry-After


@dataclass
class Answer:
    """Times since the phase began; `heard_s` has one for each piece of the stream."""

    tenant: str
    at_s: float
    status: int = 0
    heard_s: list[float] = field(default_factory=list)
    tokens: int = 0
    retry_after_s: float | None = None

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.tokens > 0

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When, and how long; tokens that came together share the time equally."""
        each = (len(self.heard_s) - 1) / max(self.tokens - 1, 1) if self.tokens else 1.0
        return [(now, (now - before) * each) for before, now in itertools.pairwise(self.heard_s)]


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float
    answers: list[Answer]

    def of(self, prefix: str) -> list[Answer]:
        return [each for each in self.answers if each.tenant.startswith(prefix)]

    def tokens_per_s(self, prefix: str) -> float:
        """Once it has settled. Of streams that were cut when the phase ended, pieces stand for tokens."""
        tokens = 0.0
        for each in self.of(prefix):
            of_piece = each.tokens / len(each.heard_s) if each.tokens and each.heard_s else 1.0
            tokens += of_piece * sum(SETTLE_S <= at_s <= self.seconds for at_s in each.heard_s)
        return tokens / (self.seconds - SETTLE_S)

    def retry_after_times(self, prefix: str) -> float:
        """Retry-After, in times of what it took until one of the tenant's was let in; the median, or nan."""
        answers = sorted(self.of(prefix), key=lambda each: each.at_s)
        let_in_s = [each.at_s for each in answers if each.heard_s]
        times = []
        for each in answers:
            later = bisect_right(let_in_s, each.at_s)
            if each.retry_after_s is not None and each.at_s > SETTLE_S and later < len(let_in_s):
                times.append(max(each.retry_after_s, 1.0) / max(let_in_s[later] - each.at_s, 1.0))
        return percentile(sorted(times), 0.5) if times else float("nan")

    def worst_window_p95_s(self, prefix: str) -> float:
        windows: dict[int, list[float]] = {}
        for answer in self.of(prefix):
            for at_s, gap_s in answer.gaps:
                if SETTLE_S <= at_s <= self.seconds:
                    windows.setdefault(int((at_s - SETTLE_S) / WINDOW_S), []).append(gap_s)
        return max((percentile(sorted(gaps), 0.95) for gaps in windows.values()), default=float("nan"))


@dataclass(frozen=True)
class Goal:
    variant: str
    what: str
    wanted: str
    seen: str
    is_met: bool


def show(console: Console, variant: str, phases: Sequence[Phase]) -> None:
    table = Table(
        title=f"flood, {variant}: first token {FIRST_TOKEN}, inter-token {1000 * INTER_TOKEN_S:g} ms"
    )
    columns = ("phase", "tenant", "asked", "whole", "refused", "first token p95", "answer p50", "p95")
    for column in (*columns, "tokens/s", "worst 5 s window, gap p95"):
        table.add_column(column)
    for phase in phases:
        for tenant in sorted({each.tenant for each in phase.answers}):
            table.add_row(phase.name, tenant, *_cells(phase, tenant))
    console.print(table)


def goals(variant: str, phases: Sequence[Phase]) -> Iterator[Goal]:
    both, flood_alone, calm_alone = phases
    calms = [each for each in both.of("calm") if each.at_s < both.seconds - 1.0]
    whole, first_s = sum(each.is_whole for each in calms), sorted(_first_s(each) for each in calms)
    yield Goal(variant, "calm: answered", "all", f"{whole} of {len(calms)}", whole == len(calms))
    p95_s = percentile(first_s, 0.95)
    wanted = f"under {MOST_FIRST_TOKEN_S:g} s"
    yield Goal(variant, "calm: first token p95", wanted, f"{p95_s:.2f} s", p95_s < MOST_FIRST_TOKEN_S)
    times = _whole_p50_s(calms) / max(_whole_p50_s(calm_alone.of("calm")), 1e-9)
    wanted = f"up to {MOST_TIMES_ALONE:g} times"
    is_met = times <= MOST_TIMES_ALONE
    yield Goal(variant, "calm: whole answer, to that alone", wanted, f"{times:.1f} times", is_met)
    for tenant in ("calm", "flood"):
        gap_s, wanted = both.worst_window_p95_s(tenant), f"up to {1000 * INTER_TOKEN_S:g} ms"
        what, seen = f"{tenant}: inter-token p95, worst 5 s", f"{1000 * gap_s:.0f} ms"
        yield Goal(variant, what, wanted, seen, gap_s <= INTER_TOKEN_S)
    share = both.tokens_per_s("flood") / max(flood_alone.tokens_per_s("flood"), 1e-9)
    wanted = f"{LEAST_FLOOD_SHARE:.0%} or more"
    yield Goal(variant, "flood: tokens/s, of those alone", wanted, f"{share:.0%}", share >= LEAST_FLOOD_SHARE)
    off = both.retry_after_times("flood")
    if not isnan(off):
        is_met = 1 / MOST_OFF <= off <= MOST_OFF
        yield Goal(
            variant, "flood: Retry-After, to what it took", "0.5 to 2 times", f"{off:.1f} times", is_met
        )


def goal_table(found: Sequence[Goal]) -> Table:
    table = Table("variant", "what", "goal", "seen", "", title="flood: all goals")
    for each in found:
        verdict = "met" if each.is_met else "MISSED"
        table.add_row(each.variant, each.what, each.wanted, each.seen, verdict)
    return table


def _cells(phase: Phase, tenant: str) -> list[str]:
    answers = [each for each in phase.answers if each.tenant == tenant]
    alone = Phase(phase.name, phase.seconds, answers)
    whole = sorted(each.heard_s[-1] - each.at_s for each in answers if each.is_whole)
    first = sorted(_first_s(each) for each in answers if each.heard_s)
    refused = sum(each.status not in (0, 200) for each in answers)
    return [
        *(str(len(answers)), str(len(whole)), str(refused)),
        *(f"{percentile(first, 0.95):.2f} s", f"{percentile(whole, 0.5):.2f} s"),
        *(f"{percentile(whole, 0.95):.2f} s", f"{alone.tokens_per_s(tenant):.0f}"),
        f"{1000 * alone.worst_window_p95_s(tenant):.0f} ms",
    ]


def _first_s(answer: Answer) -> float:
    return answer.heard_s[0] - answer.at_s if answer.heard_s else float("inf")


def _whole_p50_s(answers: Sequence[Answer]) -> float:
    return percentile(sorted(each.heard_s[-1] - each.at_s for each in answers if each.is_whole), 0.5)
