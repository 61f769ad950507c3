"""Percentiles by nearest rank: a value that was seen, never one between two."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of values in ascending order; nan when there are none."""
    if not ordered:
        return float("nan")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
