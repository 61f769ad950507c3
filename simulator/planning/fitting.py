"""The four coefficients of a step's cost, from steps whose times are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backend.costs.step_cost import StepCost
from simulator.fleet.state import Array


def fitted_cost(features: Sequence[Sequence[float]], times_ms: Sequence[float]) -> tuple[StepCost, float]:
    """Rows are steps, prompt tokens, sequences and kilotokens read; also returns the worst relative error.

    Least squares of relative errors; where a coefficient would be negative, the others are solved without it.
    """
    rows, times = np.asarray(features, float), np.asarray(times_ms, float)
    scaled, goal = rows / times[:, None], np.ones(len(times))
    free = [True] * rows.shape[1]
    found: Array = np.zeros(rows.shape[1])
    while any(free):
        columns = [number for number, is_free in enumerate(free) if is_free]
        solved = np.linalg.lstsq(scaled[:, columns], goal, rcond=None)[0]
        found[:] = 0.0
        found[columns] = solved
        if solved.min() >= 0:
            break
        free[columns[int(solved.argmin())]] = False
    errors = np.abs(scaled @ found - 1)
    base, prefill, decode, kv = (float(f"{each:.4g}") for each in found)
    return StepCost(base, prefill, decode, kv), float(errors.max())
