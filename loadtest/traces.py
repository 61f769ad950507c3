"""Requests as they once arrived: when, from whom, how long the prompt and how long the answer.

A trace holds no text. Formats are told apart by their columns; what each may have is in docs/simulator.md.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path

# What a trace may call each thing; the first is how we write it.
_COLUMNS = {
    "at": ("arrival_s", "timestamp", "at_s"),
    "prompt": ("prompt_tokens", "contexttokens", "input_length", "input_tokens"),
    "output": ("output_tokens", "generatedtokens", "output_length", "completion_tokens"),
    "tenant": ("tenant", "client", "organisation"),
    "tier": ("tier", "service_tier"),
    "max_tokens": ("max_tokens",),
    "blocks": ("hash_ids",),
}
BLOCK_TOKENS = 512  # of those who publish hashes of their prompts
_NEEDED = ("at", "prompt", "output")
_MS_COLUMNS = frozenset({"input_length", "output_length"})  # beside these a `timestamp` is in milliseconds


class TraceError(ValueError):
    """A file is no trace that can be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """`max_tokens` is what the client allowed, None where the trace does not tell.

    Prompts whose first `blocks` are the same begin with the same tokens, BLOCK_TOKENS for each block.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    tier: str | None = None
    max_tokens: int | None = None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """In order of arrival, the first at 0. `clamped` counts those that were shortened to fit."""

    name: str
    requests: tuple[TracedRequest, ...]
    clamped: int = 0

    @property
    def duration_s(self) -> float:
        return self.requests[-1].at_s if self.requests else 0.0

    @property
    def tenants(self) -> list[str]:
        return sorted({request.tenant for request in self.requests})

    def faster(self, factor: float) -> Trace:
        """The same requests, `factor` times as many in a second. Lengths stay as they are."""
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"a rate factor must be above 0, got {factor:g}")
        return self._with(replace(each, at_s=each.at_s / factor) for each in self.requests)

    def clamp(self, context_tokens: int) -> Trace:
        """What is longer than a model's context is shortened: first the answer, down to one token."""
        clamped = 0
        kept = []
        for each in self.requests:
            prompt_tokens = min(each.prompt_tokens, context_tokens - 1)
            output_tokens = min(each.output_tokens, context_tokens - prompt_tokens)
            if (prompt_tokens, output_tokens) != (each.prompt_tokens, each.output_tokens):
                clamped += 1
                each = replace(each, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
            if each.max_tokens is not None and each.max_tokens > context_tokens - prompt_tokens:
                each = replace(each, max_tokens=context_tokens - prompt_tokens)
            kept.append(each)
        return Trace(self.name, tuple(kept), self.clamped + clamped)

    def first(self, duration_s: float) -> Trace:
        return self._with(each for each in self.requests if each.at_s <= duration_s)

    def up_to(self, requests: int) -> Trace:
        return self._with(self.requests[:requests])

    def lasting(self, duration_s: float) -> Trace:
        """Over and over again until `duration_s`, so that different rates are seen for the same time."""
        if not self.requests or self.duration_s <= 0:
            return self
        period_s = self.duration_s * (1 + 1 / max(1, len(self.requests) - 1))
        rounds = math.floor(duration_s / period_s) + 1
        return self._with(
            replace(each, at_s=number * period_s + each.at_s)
            for number in range(rounds)
            for each in self.requests
            if number * period_s + each.at_s <= duration_s
        )

    def with_tiers(self, tier_of: Callable[[TracedRequest], str]) -> Trace:
        """Tiers for those requests that have none."""
        return self._with(
            each if each.tier is not None else replace(each, tier=tier_of(each)) for each in self.requests
        )

    def asking_for(self, max_tokens: int) -> Trace:
        """Clients that allow so many tokens, or what their answers need where that is more."""
        return self._with(
            replace(each, max_tokens=max(max_tokens, each.output_tokens)) for each in self.requests
        )

    def and_also(self, others: Iterable[TracedRequest]) -> Trace:
        return self._with(sorted((*self.requests, *others), key=lambda each: each.at_s))

    def _with(self, requests: Iterable[TracedRequest]) -> Trace:
        return Trace(self.name, tuple(requests), self.clamped)


def read_trace(path: Path) -> Trace:
    """A CSV file with a header, or one JSON object a line. Raises TraceError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return parse_trace(file, path.stem, str(path), is_json=path.suffix in (".jsonl", ".ndjson"))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from None


def parse_trace(lines: Iterable[str], name: str, source: str, *, is_json: bool) -> Trace:
    """`source` is what a TraceError calls it."""
    try:
        rows = _json_rows(lines, source) if is_json else csv.DictReader(lines)
        requests = sorted(_requests(rows, source), key=lambda each: each.at_s)
    except csv.Error as error:
        raise TraceError(f"{source} cannot be read: {error}") from None
    if not requests:
        raise TraceError(f"{source} holds no requests")
    begin_s = requests[0].at_s
    return Trace(name, tuple(replace(each, at_s=each.at_s - begin_s) for each in requests))


def _json_rows(lines: Iterable[str], source: str) -> Iterator[Mapping[str, object]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{source}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise TraceError(f"{source}, line {number}: expected an object")
        yield row


def _requests(rows: Iterable[Mapping[str, object]], source: str) -> Iterator[TracedRequest]:
    columns: dict[tuple[str, ...], dict[str, str]] = {}  # lines of JSON need not be alike
    for number, row in enumerate(rows, 1):
        names = tuple(row)
        if names not in columns:
            columns[names] = _columns_of(row, source)
        try:
            yield _request(row, columns[names])
        except (TypeError, ValueError, KeyError) as error:
            raise TraceError(f"{source}, request {number}: {error}") from None


def _columns_of(row: Mapping[str, object], source: str) -> dict[str, str]:
    """What we call it -> what the file does."""
    found = {}
    for ours, names in _COLUMNS.items():
        for theirs in row:
            if theirs is not None and theirs.strip().lower() in names:
                found[ours] = theirs
    for ours in _NEEDED:
        if ours not in found:
            allowed = ", ".join(_COLUMNS[ours])
            raise TraceError(
                f"{source}: no column for {ours!r} (one of {allowed}); it has {', '.join(map(str, row))}"
            )
    return found


def _request(row: Mapping[str, object], columns: Mapping[str, str]) -> TracedRequest:
    def count(name: str, least: int) -> int:
        value = int(float(str(row[columns[name]])))
        if value < 0:
            raise ValueError(f"{columns[name]} is {value}")
        return max(value, least)

    def text(name: str) -> str | None:
        value = row.get(columns[name]) if name in columns else None
        return None if value is None or value == "" else str(value)

    in_ms = any(theirs.strip().lower() in _MS_COLUMNS for theirs in row if theirs)
    return TracedRequest(
        at_s=_moment_s(str(row[columns["at"]]), in_ms),
        prompt_tokens=count("prompt", 1),
        output_tokens=count("output", 1),
        tenant=text("tenant") or "",
        tier=text("tier"),
        max_tokens=count("max_tokens", 1) if text("max_tokens") else None,
        blocks=_blocks(row.get(columns["blocks"])) if "blocks" in columns else (),
    )


def _blocks(value: object) -> tuple[int, ...]:
    if value is None or value == "":
        return ()
    if not (isinstance(value, list) and all(isinstance(each, int) for each in value)):
        raise ValueError(f"hash_ids is {value!r}; expected a list of whole numbers")
    return tuple(value)


def _moment_s(value: str, in_ms: bool) -> float:
    try:
        number = float(value)
    except ValueError:
        text, _, fraction = value.partition(".")  # Azure writes more digits than Python 3.10 takes
        return datetime.fromisoformat(text).timestamp() + float(f"0.{fraction or 0}")
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a time")
    return number / 1000 if in_ms else number


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a generated trace. Lengths are lognormal; a burst multiplies the rate for `burst_s`."""

    requests_per_s: float = 2.5
    tenants: int = 27
    prompt_median_tokens: float = 40.0
    prompt_spread: float = 1.5
    output_median_tokens: float = 200.0
    output_spread: float = 0.7
    longest_tokens: int = 1024
    burst_every_s: float = 0.0
    burst_s: float = 1.0
    burst_factor: float = 20.0


ARENA = Shape()
CODE = Shape(
    requests_per_s=2.0,
    tenants=1,
    prompt_median_tokens=1500.0,
    prompt_spread=0.8,
    output_median_tokens=13.0,
    output_spread=1.0,
    longest_tokens=7000,
    burst_every_s=100.0,
    burst_factor=33.0,
)


def synthetic_trace(seed: int, duration_s: float, shape: Shape = ARENA) -> Trace:
    """Poisson arrivals of tenants whose sizes fall as those of real ones do: three make half of it."""
    chance = random.Random(seed)
    ranks = list(accumulate(1 / (number + 1) for number in range(shape.tenants)))
    requests = []
    at_s = 0.0
    while at_s <= duration_s:
        tenant = chance.choices(range(shape.tenants), cum_weights=ranks)[0]
        requests.append(
            TracedRequest(
                at_s,
                _length(chance, shape.prompt_median_tokens, shape.prompt_spread, shape.longest_tokens),
                _length(chance, shape.output_median_tokens, shape.output_spread, shape.longest_tokens),
                f"t{tenant}",
            )
        )
        at_s += chance.expovariate(_rate(shape, at_s))
    return Trace(f"synthetic-{seed}", tuple(requests))


def _rate(shape: Shape, at_s: float) -> float:
    is_burst = shape.burst_every_s > 0 and at_s % shape.burst_every_s >= shape.burst_every_s - shape.burst_s
    return shape.requests_per_s * (shape.burst_factor if is_burst else 1.0)


def _length(chance: random.Random, median: float, spread: float, longest: int) -> int:
    return min(longest, max(1, round(median * math.exp(spread * chance.gauss(0.0, 1.0)))))


def tiers_by_chance(shares: Mapping[str, float], seed: int = 0) -> Callable[[TracedRequest], str]:
    """Each request's tier by chance, the same for the same seed and order."""
    chance = random.Random(seed)
    names, weights = list(shares), list(shares.values())
    return lambda _: chance.choices(names, weights)[0]


def tiers_by_tenant(order: Sequence[str]) -> Callable[[TracedRequest], str]:
    """Each tenant keeps to one tier: the first that is seen to the first of `order`, and so on in turn."""
    seen: dict[str, str] = {}
    return lambda each: seen.setdefault(each.tenant, order[len(seen) % len(order)])
