"""How many threads a model computes on, as its config says."""

from __future__ import annotations

from collections.abc import Mapping

from python_backend.host.cores import available_cores
from python_backend.wire.parameters import refusal


def threads_of(parameters: Mapping[str, str]) -> int:
    """Half of the cores where nothing is said, for the engine needs the others."""
    value = parameters.get("threads", "")
    if not value:
        return max(1, available_cores() // 2)
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 256):
        raise refusal("threads", value, "1 to 256, or nothing for half of the cores")
    return int(value)
