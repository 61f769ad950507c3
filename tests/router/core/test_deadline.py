from __future__ import annotations

from math import inf

import pytest

from python_backend.wire.errors import InflightError
from router.core.stages import read_deadline


def test_the_sooner_of_header_and_call_counts() -> None:
    assert read_deadline(None, None, 10.0) == inf
    assert read_deadline("500", None, 10.0) == 10.5
    assert read_deadline("500", 0.2, 10.0) == 10.2
    assert read_deadline("500", 3.0, 10.0) == 10.5
    assert read_deadline(None, 3.0, 10.0) == 13.0


@pytest.mark.parametrize("given", ["", "0", "-1", "1.5", "soon", "3600001", "9" * 30, "١٢", "a\nb"])
def test_an_invalid_deadline_is_refused_with_the_allowed_range(given: str) -> None:
    with pytest.raises(InflightError, match="x-inflight-deadline-ms: expected 1 to 3600000 milliseconds"):
        read_deadline(given, None, 0.0)
