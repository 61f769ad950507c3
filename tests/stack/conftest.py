"""Stacks beside the usual one, for exact weights, tenants kept apart, and text that does not vary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stack import RunningStack, running_stack

EXACT = {"inflight_precision": "fp32"}


@pytest.fixture(scope="session")
def exact_stack(data_dir: Path, on_device: dict[str, str]) -> Iterator[RunningStack]:
    """In fp32, and nothing cached is shared between tenants."""
    engine = {**on_device, **EXACT, "inflight_tenant_cache_isolation": "true"}
    with running_stack(engine, data_dir=data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def steady_stack(request: pytest.FixtureRequest, device: str) -> RunningStack:
    """One that says the same in any company.

    On the CPU any does. On a GPU the order of sums depends on the batch, which in bf16 decides near ties.
    """
    running: RunningStack = request.getfixturevalue("stack" if device == "cpu" else "exact_stack")
    return running


@pytest.fixture(scope="session")
def in_transformers(default_checkpoint: Path) -> Any:
    """The default model as transformers has it."""
    pytest.importorskip("transformers", reason="transformers, to compare with, is not installed here")
    from benchmarks.transformers_model import load_in_transformers

    return load_in_transformers(default_checkpoint / "model.gguf")


@pytest.fixture(scope="session")
def long_answer_tokens(device: str) -> int:
    """So many that an answer takes seconds."""
    return {"cpu": 400, "cuda": 7000}[device]
