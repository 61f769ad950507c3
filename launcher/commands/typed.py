"""Durations and objectives as people type them: `30s`, `interactive=ttft:1s,itl:60ms`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier, tier_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_S = 7 * 86_400.0
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


def duration_s(option: str, text: str, may_be_zero: bool = False) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)", text.strip())
    if found is None:
        allowed = "a number with us, ms, s, m or h, such as 1.5s"
        raise Mistake(f"{option}: {text!r} is no duration; allowed: {allowed}")
    value_s = float(found[1]) * _UNITS_S[found[2]]
    if not (0 if may_be_zero else 1e-9) <= value_s <= LONGEST_S:
        least = "" if may_be_zero else "more than nothing, "
        raise Mistake(f"{option}: {text!r}; allowed: {least}up to seven days")
    return value_s


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
        given[measure] = duration_s(f"--slo {text}", value)
    if not given:
        example = ",".join(f"{each}:{_EXAMPLES[each]}" for each in measures)
        raise Mistake(f"--slo {text}: expected TIER={example}, or some of them")
    return given
