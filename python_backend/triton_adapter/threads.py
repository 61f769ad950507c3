"""How many threads a model computes on, as its config says."""

from __future__ import annotations

from collections.abc import Mapping

from python_backend.host.cores import available_cores
from python_backend.wire.encoder_parameters import parse_threads


def threads_of(parameters: Mapping[str, str]) -> int:
    """Half of the cores where nothing is said, for the engine needs the others."""
    return parse_threads(parameters) or max(1, available_cores() // 2)
