from __future__ import annotations

import math

from loadtest.percentiles import percentile


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([3.0], 0.01) == 3.0
    assert math.isnan(percentile([], 0.5))
