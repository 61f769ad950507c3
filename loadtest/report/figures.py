"""A run in numbers: what was asked and what came of it, as a whole, for each tier and for each tenant."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.results import LoadRun, RequestResult, Slo

GOOD_SHARE = 0.95  # of 100 requests 95 are to keep their objectives
LATE_CLIENT_S = 0.05
TIERS = ("interactive", "standard", "batch")
_NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some values, percentiles by nearest rank; None without any."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        return cls.of_array(np.array([each for each in values if each is not None], dtype=float))

    @classmethod
    def of_array(cls, values: npt.NDArray[np.float64]) -> Spread:
        known = np.sort(values)
        if not known.size:
            return cls()
        places = [max(0, int(np.ceil(share * known.size)) - 1) for share in (0.5, 0.95, 0.99)]
        p50, p95, p99 = (float(known[place]) for place in places)
        return cls(int(known.size), float(known.mean()), p50, p95, p99, float(known[-1]))


@dataclass(frozen=True, slots=True)
class Figures:
    """Every request that was offered is good, late, failed, left or, in the end, refused.

    Late were answered, and not as soon as their objectives say; who left gave up. `refusals` are attempts:
    who comes back may be refused several times. Between tokens is a distribution of tokens, the others are of
    requests.
    """

    duration_s: float
    offered: int
    good: int
    late: int
    failed: int
    left: int
    refusals: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    good_tokens: int
    first_token_s: Spread
    between_tokens_s: Spread
    ended_s: Spread

    @property
    def answered(self) -> int:
        return self.good + self.late

    @property
    def good_share(self) -> float | None:
        return self.good / self.offered if self.offered else None

    @property
    def goodput_per_s(self) -> float:
        return self._per_s(self.good)

    @property
    def good_tokens_per_s(self) -> float:
        return self._per_s(self.good_tokens)

    @property
    def answered_per_s(self) -> float:
        return self._per_s(self.answered)

    @property
    def tokens_per_s(self) -> float:
        return self._per_s(self.completion_tokens)

    def _per_s(self, count: int) -> float:
        return count / self.duration_s if self.duration_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        rates = ("good_share", "goodput_per_s", "good_tokens_per_s", "answered_per_s", "tokens_per_s")
        return {**asdict(self), "answered": self.answered, **{name: getattr(self, name) for name in rates}}


def is_good(result: RequestResult, slo: Mapping[str, Slo]) -> bool:
    """Where its tier has no objectives, every answer is."""
    return slo.get(result.tier, _NO_SLO).is_kept_by(result)


def figures_of(results: Sequence[RequestResult], slo: Mapping[str, Slo], duration_s: float) -> Figures:
    answered = [each for each in results if each.is_answered]
    good = [each for each in answered if is_good(each, slo)]
    return Figures(
        duration_s=duration_s,
        offered=sum(each.attempt == 0 for each in results),
        good=len(good),
        late=len(answered) - len(good),
        failed=sum(each.has_failed for each in results),
        left=sum(each.has_left for each in results),
        refusals=sum(each.is_refused for each in results),
        prompt_tokens=sum(each.prompt_tokens for each in answered),
        cached_tokens=sum(each.cached_tokens for each in answered),
        completion_tokens=sum(each.completion_tokens for each in results),
        good_tokens=sum(each.completion_tokens for each in good),
        first_token_s=Spread.of(each.first_token_s for each in results),
        between_tokens_s=Spread.of_array(np.concatenate([np.zeros(0), *(each.gaps_s for each in results)])),
        ended_s=Spread.of(each.ended_s for each in answered),
    )


def grouped(
    run: LoadRun, name_of: Callable[[RequestResult], str], order: Sequence[str] = ()
) -> dict[str, Figures]:
    """Those in `order` first, then whoever had most tokens."""
    groups: dict[str, list[RequestResult]] = defaultdict(list)
    for each in run.results:
        groups[name_of(each)].append(each)
    found = {name: figures_of(mine, run.slo, run.duration_s) for name, mine in groups.items()}
    rank = {name: place for place, name in enumerate(order)}
    names = sorted(found, key=lambda name: (rank.get(name, len(rank)), -found[name].completion_tokens, name))
    return {name: found[name] for name in names}


@dataclass(frozen=True, slots=True)
class Standing:
    """One objective beside what was measured: `kept_share` is of those of whom there is a measure."""

    tier: str
    metric: str
    objective_s: float
    p95_s: float | None
    kept_share: float | None


def standings(run: LoadRun) -> list[Standing]:
    measures: dict[str, tuple[str, Callable[[RequestResult], float | None]]] = {
        "first_token_s": ("first token", lambda each: each.first_token_s),
        "between_tokens_s": ("between tokens", lambda each: each.between_tokens_s),
        "ended_s": ("end to end", lambda each: each.ended_s if each.is_answered else None),
    }
    found = []
    for tier in sorted(run.slo, key=lambda name: (*TIERS, name).index(name)):
        mine = [each for each in run.results if each.tier == tier]
        for field, (metric, measure) in measures.items():
            objective_s = getattr(run.slo[tier], field)
            if objective_s is None:
                continue
            seen = [value for each in mine if (value := measure(each)) is not None]
            kept = sum(value <= objective_s for value in seen) / len(seen) if seen else None
            found.append(Standing(tier, metric, objective_s, Spread.of(seen).p95, kept))
    return found


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    status: int
    message: str
    count: int
    request_id: str


def error_groups(results: Sequence[RequestResult]) -> list[ErrorGroup]:
    """Failures and refusals that differ in numbers alone are the same."""
    counts: Counter[tuple[int, str]] = Counter()
    example: dict[tuple[int, str], str] = {}
    for each in results:
        if each.has_failed or each.is_refused:
            kind = each.status, _message(each)
            counts[kind] += 1
            example.setdefault(kind, each.request_id)
    return [ErrorGroup(*kind, count, example[kind]) for kind, count in counts.most_common()]


def _message(result: RequestResult) -> str:
    if not result.error:
        return f"the answer does not have the {result.asked_tokens} tokens that were asked for"
    text = result.error
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if isinstance(told, dict):
        inner = told.get("error", told)
        text = str(inner.get("message", text)) if isinstance(inner, dict) else text
    return re.sub(r"\b[0-9a-f-]{12,}\b|\d+(\.\d+)?", "…", text)


def slowest(results: Sequence[RequestResult], count: int = 10) -> list[RequestResult]:
    answered = [each for each in results if each.is_answered]
    return sorted(answered, key=lambda each: -(each.ended_s or 0.0))[:count]


def warnings_of(run: LoadRun) -> list[str]:
    """What a reader has to know before the numbers."""
    found = []
    offered = sum(each.attempt == 0 for each in run.results)
    if run.planned is not None and offered < run.planned:
        found.append(f"The run was interrupted: {offered:,} of {run.planned:,} requests were sent.")
    sent_s = Spread.of(each.sent_s for each in run.results)
    if sent_s.p99 is not None and sent_s.p99 > LATE_CLIENT_S:
        found.append(
            f"The client itself was late: 1 of 100 requests was sent {1000 * sent_s.p99:.0f} ms or more "
            "after its scheduled time. Latencies still count from the scheduled time, so they are not the "
            "server's alone: use more processes, or another machine."
        )
    if run.clamped:
        found.append(f"{run.clamped:,} requests were shortened to fit the model.")
    if not run.results:
        found.append("There were no requests.")
    elif not any(each.is_answered for each in run.results):
        found.append("No request was answered.")
    return found


def verdict_of(run: LoadRun, whole: Figures) -> tuple[bool | None, str]:
    """None where there is nothing to judge by."""
    if not run.results:
        return None, "No requests were sent."
    if not run.slo:
        share = whole.answered / max(1, whole.offered)
        return None, f"No objectives were given; {share:.1%} of the requests were answered."
    tiers = grouped(run, lambda each: each.tier, TIERS)
    missed = [
        f"{figures.good_share or 0:.1%} of {tier}"
        for tier, figures in tiers.items()
        if tier in run.slo and (figures.good_share or 0) < GOOD_SHARE
    ]
    if missed:
        found = f"{' and '.join(missed)} requests were good"
        return False, f"Objectives missed: {found}; {GOOD_SHARE:.0%} are required."
    return True, f"Objectives met: {whole.good_share or 0:.1%} of the requests were good."


def summary_of(run: LoadRun) -> dict[str, Any]:
    """The same numbers as on the page, for programs."""
    whole = figures_of(run.results, run.slo, run.duration_s)
    is_kept, text = verdict_of(run, whole)
    return {
        "verdict": {"is_kept": is_kept, "text": text},
        "warnings": warnings_of(run),
        "figures": whole.to_json(),
        "client_late_s": asdict(Spread.of(each.sent_s for each in run.results)),
        "objectives": [asdict(each) for each in standings(run)],
        "kinds": {name: each.to_json() for name, each in grouped(run, lambda one: one.kind).items()},
        "tiers": {name: each.to_json() for name, each in grouped(run, lambda one: one.tier, TIERS).items()},
        "tenants": {name: each.to_json() for name, each in grouped(run, lambda one: one.tenant).items()},
        "errors": [asdict(each) for each in error_groups(run.results)],
    }
