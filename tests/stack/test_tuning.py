"""A queue delay follows its objective on a real Triton: up under load, back when it brings nothing, down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.traffic import Body, Traffic, traffic
from launcher.commands.main import app
from router.control.tuning.commands import TuningCommands
from router.tenants.rbac import SYSTEM
from router.triton.control import TritonControl
from tests.stack.releasing import IN_FLIGHT, ReleaseStack
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

# A batch of n rows takes 4 + n / 2 ms; rows of different lengths cannot share one.
MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.004 + 0.0005 * len(requests))
        y = pb_utils.Tensor("y", np.zeros((1, 1), np.float32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
CONFIG = """
name: "{0}"
backend: "python"
max_batch_size: 8
dynamic_batching {{ }}
instance_group [ {{ count: 1, kind: KIND_CPU }} ]
input [ {{ name: "x", data_type: TYPE_FP32, dims: [ -1 ] }} ]
output [ {{ name: "y", data_type: TYPE_FP32, dims: [ 1 ] }} ]
"""
ALIKE, UNLIKE = "alike", "unlike"
CHANGED_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def models(release_stack: ReleaseStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    made = [
        release_stack.add(name, write_model(tmp_path_factory.mktemp("users") / name, name))
        for name in (ALIKE, UNLIKE)
    ]
    for each in made:
        release_stack.command("promote", each.name)
    release_stack.load(*made)
    yield
    for name in (ALIKE, UNLIKE):
        inflight(release_stack, "slo", "clear", name)
        release_stack.command("unload", f"{name}@1", "--withdraw", "--no-wait")


def write_model(directory: Path, name: str) -> Path:
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(MODEL)
    (directory / "config.pbtxt").write_text(CONFIG.format(name))
    return directory


def inflight(stack: ReleaseStack, *words: str) -> str:
    options = ["--config", str(stack.config), "--data-dir", str(stack.data_dir)]
    result = CliRunner().invoke(app, [*words, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def row(length: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, length], "data": [1.0] * length}]}


async def delay_ms(control: TritonControl, name: str) -> float:
    config = await control.config(f"{name}.1")
    return float(config.dynamic_batching.max_queue_delay_microseconds) / 1000


async def test_a_delay_follows_the_load_is_undone_where_it_brings_nothing_and_no_request_fails(
    release_stack: ReleaseStack, models: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (ALIKE, UNLIKE):
        inflight(release_stack, "slo", "set", name, "--end-to-end", "2s")

    office = TuningCommands(release_stack.store, SYSTEM)

    def load(name: str, body: Body, per_s: float) -> AbstractContextManager[Traffic]:
        path = f"/v2/models/{name}/infer"
        # On a machine that is busy with other things the rate is what it can do: none is refused as too late.
        return traffic(release_stack.url, body, per_s, path=path, most_in_flight=IN_FLIGHT)

    def came_to(name: str, what: str, is_right: Callable[[float], bool]) -> bool:
        """On a busy machine what was done may be undone and done again: the newest says what is now."""
        done = office.history(name)
        return what in [each.action for each in done] and is_right(done[0].detail["delay_ms"])

    def is_tuned() -> bool:
        return came_to(ALIKE, "raise", lambda ms: ms > 0) and came_to(UNLIKE, "undo", lambda ms: ms == 0)

    def is_back() -> bool:
        return came_to(ALIKE, "lower", lambda ms: ms == 0)

    with (
        load(ALIKE, lambda number: row(4), 80) as alike,
        load(UNLIKE, lambda number: row(1 + number % 7), 50) as unlike,
    ):
        await asyncio.to_thread(
            wait_until, is_tuned, "a raise that stays, another undone", 2 * CHANGED_WITHIN_S
        )
        async with release_stack.control() as control:
            assert await delay_ms(control, ALIKE) > 0
            assert await delay_ms(control, UNLIKE) == 0
    assert alike.errors == unlike.errors == []
    explained = inflight(release_stack, "tune", "explain", ALIKE)
    await asyncio.to_thread(wait_until, is_back, "no delay without requests", CHANGED_WITHIN_S)
    async with release_stack.control() as control:
        assert await delay_ms(control, ALIKE) == 0
    with capsys.disabled():
        print(f"\n{explained}\n{inflight(release_stack, 'tune', 'history')}")
    assert "requests/s: about" in explained
    assert "hardly any request joins" in inflight(release_stack, "tune", "history", UNLIKE)
