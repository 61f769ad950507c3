"""Values of options as people type them: `30s`, `interactive=ttft:1s,itl:60ms`, `smollm2@2`."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from launcher.commands.output import DOLLAR
from python_backend.wire.tiers import Tier, tier_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Choice = TypeVar("Choice", bound=Enum)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WEEK_S = 7 * 86_400.0
ALL_TIERS = "all"
TTFT, ITL, E2E = "ttft", "itl", "e2e"
_EXAMPLES = {TTFT: "1s", ITL: "60ms", E2E: "20s"}
_TIERS = tuple(tier.label for tier in Tier)
# What each is for, and how else it may be called.
MEASURES = {TTFT: "first token", ITL: "token to token", E2E: "end to end"}
_LONG = {
    "first-token": TTFT,
    **dict.fromkeys(("inter-token", "between-tokens"), ITL),
    **dict.fromkeys(("end-to-end", "ended"), E2E),
}


class Mistake(ValueError):
    """What was typed cannot be used; the message names it and what is allowed."""


def duration_s(
    option: str,
    text: str,
    units: str = "us, ms, s, m or h",
    example: str = "1.5s",
    least_s: float = 1e-6,
    most_s: float = WEEK_S,
) -> float:
    names = "|".join(re.findall(r"\b(?:us|ms|s|m|h|d)\b", units))
    found = re.fullmatch(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,6}})?) ?({names})", text)
    if found is None:
        raise Mistake(
            f"{option}: {text[:40]!r} is not a duration; allowed: a number with {units}, such as {example}"
        )
    value_s = float(found[1]) * _UNITS_S[found[2]]
    if not least_s <= value_s <= most_s:
        allowed = f"{duration_text(least_s)} to {duration_text(most_s)}"
        raise Mistake(f"{option}: {text} is out of range; allowed: {allowed}")
    return value_s


def long_duration_s(option: str, text: str) -> float:
    """Of keys: minutes to years."""
    return duration_s(option, text, "m, h or d", "30m, 12h or 90d", least_s=0, most_s=math.inf)


def duration_text(time_s: float) -> str:
    """As it can be given to an option again."""
    unit = "ms" if 0 < time_s < 1 else "s"
    if time_s >= 600 and time_s % 60 == 0:
        unit = "m" if time_s < _UNITS_S["d"] else "h"
    return f"{time_s / _UNITS_S[unit]:.6g}{unit}"


def objectives_by_tier(
    texts: Sequence[str], measures: Sequence[str] = tuple(MEASURES)
) -> dict[Tier, Mapping[str, float]]:
    """Seconds by measure, of `interactive=ttft:1s,itl:60ms,e2e:20s`; without a tier it is for all of them."""
    found: dict[Tier, Mapping[str, float]] = {}
    for text in texts:
        name, has_tier, terms = text.partition("=")
        is_for_all = ":" in name or name in _LONG or name in MEASURES or (not has_tier and name not in _TIERS)
        try:
            tiers = tuple(Tier) if is_for_all else (tier_named(name),)
        except ValueError as error:
            raise Mistake(f"--slo {text}: {error}, or none for all of them") from None
        found |= dict.fromkeys(tiers, _terms(text, text if is_for_all else terms, measures))
    return found


def _terms(text: str, terms: str, measures: Sequence[str]) -> dict[str, float]:
    given: dict[str, float] = {}
    for term in filter(None, (term.strip() for term in terms.split(","))):
        name, _, value = term.replace("=", ":").partition(":")
        measure = _LONG.get(name, name)
        if measure not in measures:
            allowed = ", ".join(f"{each} ({MEASURES[each]})" for each in measures)
            raise Mistake(f"--slo {text}: there is no {name!r}; allowed: {allowed}")
        given[measure] = duration_s(f"--slo {text}", value.strip())
    if not given:
        example = ",".join(f"{each}:{_EXAMPLES[each]}" for each in measures)
        raise Mistake(f"--slo {text}: expected TIER={example}, or some of them")
    return given


def tier_choice(text: str) -> tuple[Tier, ...]:
    if text == ALL_TIERS:
        return tuple(Tier)
    try:
        return (tier_named(text),)
    except ValueError:
        allowed = ", ".join((*_TIERS, ALL_TIERS))
        raise Mistake(f"--tier: there is no tier {text[:40]!r}; allowed: {allowed}") from None


def tier_shares(text: str) -> dict[str, float]:
    """`interactive:60,standard:30,batch:10`, in whatever unit."""
    shares = {}
    for part in text.split(","):
        name, _, value = part.partition(":")
        try:
            shares[tier_named(name).label] = float(value or 1)
        except ValueError as error:
            raise Mistake(f"--tiers {text}: {error}") from None
    if min(shares.values()) < 0 or not sum(shares.values()) > 0:
        raise Mistake(f"--tiers {text}: shares must be 0 or more, and at least one above 0")
    return shares


def one_of(kind: type[Choice], text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(each.value for each in kind)
        raise Mistake(f"{kind.__name__.lower()} {text!r}: allowed are {allowed}") from None


def microdollars(amount: float) -> int:
    if not math.isfinite(amount):
        raise Mistake(f"{amount} is not a number of dollars")
    return round(amount * DOLLAR)


def model_named(text: str) -> str:
    from router.core.manifest import MODEL_NAME, NAMES_ALLOWED

    if not MODEL_NAME.fullmatch(text):
        raise Mistake(f"{text!r} cannot be the name of a model; allowed: {NAMES_ALLOWED}")
    return text


def release_named(text: str) -> tuple[str, int]:
    from router.core.manifest import split_name

    name, version = split_name(text)
    model = model_named(name)
    if version is None:
        raise Mistake(f"{text!r} does not name a version; write {text}@VERSION (`inflight release list`)")
    return model, version
