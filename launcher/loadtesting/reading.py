"""What is typed after `inflight loadtest`, read into values; a mistake names what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loadtest.results import Slo
from loadtest.tenants import TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MEASURES = {
    **dict.fromkeys(("ttft", "first-token"), "first_token_s"),
    **dict.fromkeys(("itl", "inter-token", "between-tokens"), "between_tokens_s"),
    **dict.fromkeys(("e2e", "end-to-end", "ended"), "ended_s"),
}
LONGEST_S = 7 * 86_400.0


class Mistake(ValueError):
    """What was typed cannot be used."""


def duration_s(option: str, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)", text.strip())
    if found is None:
        raise Mistake(f"{option}: {text!r} is no duration; allowed: a number with ms, s, m or h, such as 30s")
    value_s = float(found[1]) * _UNITS_S[found[2]]
    if not 0 < value_s <= LONGEST_S:
        raise Mistake(f"{option}: {text!r}; allowed: more than nothing, up to seven days")
    return value_s


def objectives(texts: Sequence[str]) -> dict[str, Slo]:
    """By tier: `interactive=ttft:1s,itl:60ms,e2e:20s`, any of them; without a tier for all of them."""
    found: dict[str, Slo] = {}
    for text in texts:
        tier, has_tier, terms = text.partition("=")
        is_for_all = not has_tier or tier in _MEASURES or ":" in tier
        if not is_for_all and tier not in TIERS:
            raise Mistake(f"--slo {text}: there is no tier {tier!r}; allowed: {', '.join(TIERS)}, or none")
        slo = _slo(text, text if is_for_all else terms)
        found |= dict.fromkeys(TIERS if is_for_all else (tier,), slo)
    return found


def _slo(text: str, terms: str) -> Slo:
    given: dict[str, float] = {}
    for term in filter(None, (term.strip() for term in terms.split(","))):
        name, _, value = term.replace("=", ":").partition(":")
        if name not in _MEASURES:
            allowed = "ttft (first token), itl (token to token), e2e (end to end)"
            raise Mistake(f"--slo {text}: there is no {name!r}; allowed: {allowed}")
        given[_MEASURES[name]] = duration_s(f"--slo {text}", value)
    if not given:
        raise Mistake(f"--slo {text!r}: expected ttft:1s,itl:60ms,e2e:20s, or some of them")
    return Slo(**given)
