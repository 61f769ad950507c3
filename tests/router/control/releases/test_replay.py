"""Recorded prompts, asked of both releases of a rollout, on a running router and a prompt log on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.arm_stats import ArmStats, stats_from_json, stats_to_json
from router.control.releases.arms import replay_samples
from router.control.releases.evidence import Proportion
from router.control.releases.own_prompt import Answer
from router.control.releases.replay import Replays
from router.telemetry.prompt_log import Entry, PromptLog
from router.telemetry.recorded_prompts import RecordedPrompts
from tests.fakes.pipeline import FakePipeline, words
from tests.router.control.releases.test_shadow import shadow
from tests.router.running import MODEL, RunningRouter


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[PromptLog]:
    kept = PromptLog(tmp_path, 0)
    kept.start()
    yield kept
    kept.stop()


def record(
    kept: PromptLog,
    number: int,
    prompt: str = "",
    model: str = MODEL,
    finish: str = "stop",
    tenant: str = "a",
) -> None:
    prompt = prompt or f"prompt {number}"
    kept.add(Entry(1_794_740_000.0 + number, f"req-{number}", tenant, model, (prompt,), ("yes",), finish))


def canary(router: RunningRouter, per_s: float = 10.0) -> FakePipeline:
    """One without traffic of its own, in the first step of its rollout."""
    pipeline = shadow(router)
    lineups = dict(router.parts.models.lineups)
    split = replace(lineups[MODEL].split, shadow=None).with_canary(2, 0.0, 7, 0, replay_per_s=per_s)
    lineups[MODEL] = replace(lineups[MODEL], split=split)
    router.parts.models.publish(lineups)
    return pipeline


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Asking:
    """`Replays` on a router, with the clock in hand; two seconds pass from turn to turn."""

    def __init__(self, router: RunningRouter, directory: Path) -> None:
        self.clock = Clock()
        self.is_idle = True
        self._router = router
        self._replays = Replays(
            router.parts.models,
            RecordedPrompts(directory),
            lambda model, *versions: self.is_idle,
            router.arms,
            router.metrics.shadows.replayed,
            self.clock,
        )

    async def turns(self, count: int = 1, pause_s: float = 2.0) -> None:
        for _ in range(count):
            await self._replays.tick()
            self.clock.now_s += pause_s

    def arm(self, version: int) -> ArmStats:
        arms = self._router.arms.arms.items()
        return next((arm.fold() for key, arm in arms if key.version == version), ArmStats())

    def counted(self, outcome: str) -> float:
        labels = {"outcome": outcome, "model": MODEL, "release": "2"}
        return self._router.metric("inflight_replayed_prompts_total", **labels)


@pytest.fixture
def asking(router: RunningRouter, tmp_path: Path) -> Asking:
    return Asking(router, tmp_path)


async def test_recorded_prompts_are_asked_of_both_releases_once_and_count_as_pairs(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    for number in range(3):
        record(kept, number)
    kept.stop()
    pipeline = canary(router)
    await asking.turns(5)
    newest_first = ["prompt 2", "prompt 1", "prompt 0"]
    for each in (pipeline, router.pipeline):
        assert [call.prompt for call in each.calls] == newest_first
        assert {call.tier for call in each.calls} == {"batch"}
    new, usual = asking.arm(2), asking.arm(1)
    assert (new.errors, new.copies, new.replays, new.met) == (Proportion(0, 3), 3, 3, 0)
    assert (usual.errors, usual.replays, usual.met) == (Proportion(0, 3), 3, 0)
    assert sum(spread.count for _, spread in new.mirrored.first_token.parts) == 3
    assert asking.counted("compared") == 3
    assert stats_from_json(stats_to_json(new)).replays == 3


async def test_nothing_is_replayed_while_somebody_asks_or_without_a_rollout_that_wants_it(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    record(kept, 1)
    kept.stop()
    await asking.turns()
    pipeline = canary(router, per_s=0.0)
    await asking.turns()
    pipeline = canary(router)
    asking.is_idle = False
    await asking.turns()
    assert pipeline.calls == router.pipeline.calls == []
    asking.is_idle = True
    await asking.turns()
    assert len(pipeline.calls) == 1


async def test_no_more_prompts_are_replayed_than_were_asked_for(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    for number in range(5):
        record(kept, number)
    kept.stop()
    pipeline = canary(router, per_s=0.5)
    await asking.turns(5, pause_s=1.0)
    assert len(pipeline.calls) == 3


async def test_only_answered_prompts_of_the_model_are_replayed(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    record(kept, 1, model="another")
    record(kept, 2, finish="error")
    record(kept, 3, prompt="x" * 40_000)
    record(kept, 4, prompt="mine", finish="length")
    kept.stop()
    pipeline = canary(router)
    await asking.turns(4)
    assert [call.prompt for call in pipeline.calls] == ["mine"]


async def test_a_deleted_tenants_prompts_are_not_replayed_a_minute_later(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    for number in range(5):
        record(kept, number, tenant="b")
    kept.stop()
    pipeline = canary(router)
    await asking.turns()
    kept.forget("b")
    asking.clock.now_s += 60
    await asking.turns(3)
    assert len(pipeline.calls) == 1


async def test_a_recorded_prompt_that_the_canary_fails_is_its_error(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    record(kept, 1)
    kept.stop()
    canary(router).script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "the step broke")]
    await asking.turns()
    assert (asking.arm(2).errors, asking.arm(1).errors) == (Proportion(1, 1), Proportion(0, 1))
    assert asking.counted("failed") == 1


async def test_a_recorded_prompt_that_a_release_cannot_take_counts_for_nobody(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    record(kept, 1)
    kept.stop()
    too_long = InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long")
    canary(router).script = lambda call: [too_long]
    await asking.turns()
    assert asking.arm(2) == asking.arm(1) == ArmStats()
    assert asking.counted("skipped") == 1


async def test_refusals_of_recorded_prompts_count(
    router: RunningRouter, kept: PromptLog, asking: Asking
) -> None:
    record(kept, 1)
    kept.stop()
    canary(router).script = lambda call: words("I'm sorry, but I can't help with that.")
    await asking.turns()
    assert (asking.arm(2).refusals, asking.arm(1).refusals) == (Proportion(1, 1), Proportion(0, 1))


def test_of_replays_only_what_is_comparable_counts() -> None:
    usual = Answer("yes", 10, 0.1, 0.3, 0.18)
    copy, original = replay_samples((usual, replace(usual, cached_tokens=16)), 5.0)
    assert (copy.first_token_s, original.first_token_s) == (None, None), "one had it in its cache"
    assert copy.between_tokens_s == pytest.approx(0.02)
    cut = replace(usual, is_cut=True)
    assert [each.tokens for each in replay_samples((cut, usual), 5.0)] == [10, 10]
    assert [each.tokens for each in replay_samples((cut, cut), 5.0)] == [None, None]
    failed, original = replay_samples((None, usual), 5.0)
    assert (failed.failed, failed.original, original.failed) == (True, original, False)
