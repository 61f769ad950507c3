"""Fixtures for the tests that need the real thing: one stack for all of them that can share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.stack import RunningStack, running_stack
from launcher.models.checkpoint import resolve_checkpoint
from launcher.settings import StackSettings, default_data_dir


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where engines of tests compute; with cpu the GPU's kernels run too, interpreted",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Read when a kernel is defined, so before anything imports one.
    if config.getoption("--device") == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Where engines of this run compute: cpu or cuda."""
    chosen: str = request.config.getoption("--device")
    if chosen == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.skip("--device cuda: this machine has no NVIDIA GPU that torch can use")
    return chosen


@pytest.fixture(scope="session", autouse=True)
def packed_weights_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests pack is gone with them; kernels stay in the user's cache, or each run would compile."""
    from python_backend.engine import build

    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "cache_dir", lambda: directory)
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the default model is kept between runs."""
    chosen = os.environ.get("INFLIGHT_TEST_DATA_DIR")
    return Path(chosen) if chosen else default_data_dir()


class Unwatched:
    """Long work that nobody watches: a test run is not a terminal."""

    def advance_to(self, done: int) -> None:
        pass

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[Unwatched]:
        yield self


@pytest.fixture(scope="session")
def default_checkpoint(data_dir: Path) -> Path:
    """The default model's checkpoint, fetched if it is not there."""
    return resolve_checkpoint(StackSettings().model, data_dir, Unwatched()).directory


@pytest.fixture(scope="session")
def stack(data_dir: Path) -> Iterator[RunningStack]:
    """Triton, engine and router with the default model and default settings."""
    with running_stack(data_dir=data_dir) as running:
        yield running
