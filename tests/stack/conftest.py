"""Stacks beside the usual one, for exact weights, and text that does not vary."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stack import RunningStack, running_stack
from launcher.console import StackConsole
from launcher.failure import ProcessFailed, Unusable
from launcher.packaging.runtimes.builds import choose_build
from launcher.packaging.runtimes.environment import install
from router.core.manifest import Manifest
from tests.fakes.collector import Collector, collecting
from tests.lasting import lasting
from tests.stack.breaking import BREAKAGES
from tests.stack.releasing import ReleaseStack, quick_engine, releases_at, write_config
from tests.stack.tiny_models import write_tiny_model

EXACT = {"inflight_precision": "fp32"}
STEP_TOKENS = 32
SMALL_STEPS = {
    "inflight_max_step_tokens": str(STEP_TOKENS),
    "inflight_max_batch_size": "8",
    "max_tokens_in_paged_kv_cache": "8192",
}
LINES_OF_A_FAILURE = 25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its stack wrote last: its client only knows that something is wrong."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            running = getattr(value, "stack", value)
            if isinstance(running, RunningStack) and running.output_file.exists():  # not where it has ended
                said, warned = running.output().splitlines(), router_warnings(running)
                report.sections.append((f"last lines of {name}", last(said)))
                report.sections.append((f"last warnings of the router of {name}", last(warned)))
    return report


def router_warnings(running: RunningStack) -> list[str]:
    with suppress(ValueError):  # one that did not come up has named no folder
        logs = (path.read_text(errors="replace") for path in sorted(running.logs.glob("router*.log")))
        return [line for log in logs for line in log.splitlines() if " INFO " not in line]
    return []


def last(lines: Sequence[str]) -> str:
    return "\n".join(line[:300] for line in lines[-LINES_OF_A_FAILURE:])


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="session")
def exact_stack(
    collector: Collector, tiny_models: TinyModels, data_dir: Path, on_device: dict[str, str]
) -> Iterator[RunningStack]:
    """A tiny model in fp32, and in small steps; requests are traced that ask for it."""
    engine = {**on_device, **EXACT, **SMALL_STEPS}
    settings = {"otlp_endpoint": collector.url, "trace_percent": 0}
    model = str(tiny_models.usual)
    with lasting(running_stack(engine, model, data_dir, settings, embeddings=False)) as running:
        yield running


@pytest.fixture(scope="session")
def steady_stack(
    request: pytest.FixtureRequest, device: str, data_dir: Path, on_device: dict[str, str]
) -> Iterator[RunningStack]:
    """One that says the same in any company.

    On the CPU any does. On a GPU the order of sums depends on the batch, which in bf16 decides near ties.
    """
    if device == "cpu":
        yield request.getfixturevalue("stack")
        return
    with lasting(running_stack({**on_device, **EXACT}, data_dir=data_dir, embeddings=False)) as running:
        yield running


@pytest.fixture(scope="session")
def runtimes(data_dir: Path, device: str) -> Path:
    """Where vLLM is kept between runs; skipped only where it cannot be had."""
    if device != "cpu":
        pytest.skip("the build for CPUs is what is tested here")
    place = data_dir / "runtimes"
    try:
        install(choose_build("vllm", "cpu", None), place, None, StackConsole())
    except (ProcessFailed, Unusable) as error:
        pytest.skip(f"vLLM cannot be installed here: {error}")
    return place


def synthetic(tokens_per_s: int) -> dict[str, str]:
    """An engine whose tokens are made up, at a pace; nothing is loaded but the tokenizer."""
    return {"inflight_runtime": "synthetic", "inflight_synthetic_tokens_per_s": str(tokens_per_s)}


@pytest.fixture(scope="session")
def rapid_stack(data_dir: Path) -> Iterator[RunningStack]:
    """Faster than anybody reads, and callers are watched closely; its last test stops it."""
    engine = {**synthetic(20_000), "cancellation_check_period_ms": "1"}
    with lasting(running_stack(engine, data_dir=data_dir, embeddings=False)) as running:
        yield running


@pytest.fixture(scope="session")
def in_transformers(default_checkpoint: Path) -> Any:
    """The default model as transformers has it."""
    return _loaded_in_transformers(default_checkpoint / "model.gguf")


@pytest.fixture(scope="session")
def tiny_in_transformers(tiny_models: TinyModels) -> Any:
    return _loaded_in_transformers(tiny_models.usual)


def _loaded_in_transformers(path: Path) -> Any:
    pytest.importorskip("transformers", reason="transformers, to compare with, is not installed here")
    from benchmarks.transformers_model import load_in_transformers

    return load_in_transformers(path)


@pytest.fixture(scope="session")
def long_answer_tokens(device: str) -> int:
    """So many that an answer takes seconds."""
    return {"cpu": 400, "cuda": 7000}[device]


@dataclass(frozen=True)
class TinyModels:
    """Checkpoints that differ in one thing each; of the last, no release is made but in the console."""

    usual: Path
    other_words: Path
    unused: Path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory, default_checkpoint: Path) -> TinyModels:
    folder = tmp_path_factory.mktemp("tiny-models")
    return TinyModels(
        write_tiny_model(folder / "tiny", default_checkpoint),
        write_tiny_model(folder / "other", default_checkpoint, seed=2),
        write_tiny_model(folder / "unused", default_checkpoint, seed=3),
    )


@dataclass(frozen=True)
class Wrecks:
    """The folder with inflight.toml and state, and a release for each way to break one."""

    folder: Path
    manifests: tuple[Manifest, ...]


@pytest.fixture(scope="session")
def wrecks(tmp_path_factory: pytest.TempPathFactory, tiny_models: TinyModels, data_dir: Path) -> Wrecks:
    """A state directory, as of a stack that was stopped, whose releases have been broken since."""
    folder = tmp_path_factory.mktemp("releases")
    write_config(folder)
    made = []
    with releases_at(folder / "inflight.toml", data_dir) as releases:
        for breakage in BREAKAGES:
            checkpoint = breakage.checkpoint(tiny_models.usual, folder / f"of-{breakage.name}")
            made.append(releases.add("wreck", checkpoint))
            breakage.act(releases.repository, made[-1])
            releases.was_ready(made[-1])
        releases.installation.releases.promote("wreck", 1)
    return Wrecks(folder, tuple(made))


@pytest.fixture(scope="session")
def release_stack(wrecks: Wrecks, tiny_models: TinyModels, data_dir: Path) -> Iterator[ReleaseStack]:
    """One of a tiny model, `tiny`, whose releases tests add to; it comes up over broken ones."""
    settings = {
        "state_dir": str(wrecks.folder / "state"),
        "tuning_window_s": 2,
        "prompt_log_dir": str(wrecks.folder / "prompts"),
        "release_sources": [str(tiny_models.usual.parent)],
    }
    config = wrecks.folder / "inflight.toml"
    with (
        lasting(running_stack(quick_engine(), str(tiny_models.usual), data_dir, settings)) as running,
        releases_at(config, data_dir) as releases,
    ):
        yield ReleaseStack(releases.installation, releases.store, config, data_dir, running)
