"""A second stack, for the tests that need exact weights or tenants kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.stack import RunningStack, running_stack

EXACT = {"inflight_precision": "fp32"}


@pytest.fixture(scope="session")
def exact_stack(data_dir: Path) -> Iterator[RunningStack]:
    """In fp32, and nothing cached is shared between tenants."""
    engine = {**EXACT, "inflight_tenant_cache_isolation": "true"}
    with running_stack(engine, data_dir=data_dir) as running:
        yield running
