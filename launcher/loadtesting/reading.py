"""Objectives as they are typed after `inflight loadtest`, for each tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.typed import E2E, ITL, TTFT, objectives_by_tier
from loadtest.results import Slo

if TYPE_CHECKING:
    from collections.abc import Sequence


def objectives(texts: Sequence[str]) -> dict[str, Slo]:
    return {
        tier.label: Slo(terms.get(TTFT), terms.get(ITL), terms.get(E2E))
        for tier, terms in objectives_by_tier(texts).items()
    }
