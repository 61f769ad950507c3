"""Canaries that are broken, wrong or slow are taken back in time, and the stable release never notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traffic import Traffic, completion, traffic
from launcher.settings import StackSettings
from router.releases.canary import Plan
from router.releases.life import State
from router.releases.manifest import Manifest
from router.rollouts.records import Rollout, RolloutState
from tests.stack.breaking import BREAKAGES, fail_for_one_in_twenty
from tests.stack.conftest import TinyModels, Wrecks
from tests.stack.releasing import ReleaseStack, until, write_multiplier

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

EMBEDDINGS = StackSettings().embeddings
MOST_TO_FAIL_S = 5.0
REQUESTS_MEANWHILE = 1000
MOST_ROLLBACK_S = 60.0
MOST_ROLLBACK_REQUESTS = 200
# Latencies are compared from 20 s on.
COMPARED_AFTER_S = 22.0
WRONG = Plan((0.5, 1.0), min_requests=1000, min_duration_s=60.0)
IDENTICAL = Plan((0.5, 1.0), min_requests=50, min_duration_s=COMPARED_AFTER_S)


def test_a_stack_comes_up_over_broken_releases(release_stack: ReleaseStack, wrecks: Wrecks) -> None:
    """They were ready when it last ran, and one of them had a model's traffic."""
    for manifest in wrecks.manifests:
        release_stack.wait_for(manifest, State.FAILED)
    assert release_stack.ask("tiny@1")[0] == 1


def broken(stack: ReleaseStack, models: TinyModels, folder: Path) -> Iterator[tuple[Manifest, str]]:
    """Each way to break a release: behind the back of its description, and as it was described."""
    for breakage in BREAKAGES:
        checkpoint = breakage.checkpoint(models.usual, folder / f"tampered-{breakage.name}")
        tampered = stack.add("tiny", checkpoint)
        breakage.act(stack.repository, tampered)
        yield tampered, breakage.told_as_tampering
        checkpoint = breakage.checkpoint(models.usual, folder / f"from-the-start-{breakage.name}")
        yield stack.add("tiny", checkpoint, breakage.act), breakage.told_by_triton


def test_broken_canaries_fail_in_seconds_and_the_stable_release_never_does(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path: Path
) -> None:
    canaries = list(broken(release_stack, tiny_models, tmp_path))
    with traffic(release_stack.url, completion("tiny", 2), per_s=40) as running:
        for canary, reason in canaries:
            release_stack.desk.office.begin_rollout("tiny", canary.version, WRONG)
            rollout = release_stack.wait_for_end("tiny", 30)
            assert rollout.state is RolloutState.ROLLED_BACK
            assert reason in rollout.reason
            assert release_stack.state(canary) is State.FAILED
            began_s, failed_s = (release_stack.happened_s(canary, what) for what in ("loading", "failed"))
            assert failed_s - began_s <= MOST_TO_FAIL_S, canary.name
            assert release_stack.weights("tiny") == {1: 1.0}
        running.wait_for(max(0, REQUESTS_MEANWHILE - len(running.answered)))
    assert running.errors == []
    assert {each.release for each in running.answered} == {"1"}


def test_one_that_gives_numbers_that_are_none_is_not_let_in(
    release_stack: ReleaseStack, tiny_models: TinyModels
) -> None:
    """It is seen when it is warmed up."""
    canary = release_stack.add("tiny", tiny_models.gives_nan)
    release_stack.desk.office.begin_rollout("tiny", canary.version, WRONG)
    rollout = release_stack.wait_for_end("tiny")
    assert rollout.state is RolloutState.ROLLED_BACK
    assert "a canonical prompt failed" in rollout.reason
    assert release_stack.state(canary) is State.FAILED


@dataclass(frozen=True)
class Trial:
    """A rollout under traffic, and what its clients saw until it was decided."""

    canary: Manifest
    running: Traffic
    rollout: Rollout
    began_s: float

    @property
    def took_s(self) -> float:
        assert self.rollout.ended_s is not None
        return self.rollout.ended_s - self.began_s


def texts(model: str) -> tuple[str, Callable[[int], dict[str, Any]]]:
    return "/v1/completions", completion(model, 12)


def vectors(model: str) -> tuple[str, Callable[[int], dict[str, Any]]]:
    return "/v1/embeddings", lambda number: {"model": model, "input": f"number {number}"}


def numbers(model: str) -> tuple[str, Callable[[int], dict[str, Any]]]:
    def body(number: int) -> dict[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}

    return f"/v2/models/{model}/infer", body


@pytest.fixture(scope="module")
def identical(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[Manifest, Any]]]:
    """Second releases that differ from the first in nothing, of models of all kinds, with their requests."""
    office = release_stack.desk.office
    multiplier = write_multiplier(tmp_path_factory.mktemp("multiplier") / "multiplier", {1: 2})
    pairs = []
    for model, path in (("calm", tiny_models.usual), ("calmer", tiny_models.usual), ("twice", multiplier)):
        first = release_stack.add(model, path)
        office.promote(model, first.version)
        pairs.append((release_stack.add(model, path), numbers(model) if model == "twice" else texts(model)))
        release_stack.wait_for(first, State.READY)
    pairs.append((release_stack.add(EMBEDDINGS, EMBEDDINGS), vectors(EMBEDDINGS)))
    release_stack.load(*(canary for canary, _ in pairs))
    yield pairs
    for canary, _ in pairs:
        office.promote(canary.model, 1)
        office.unload(canary.model, canary.version)
        if canary.model != EMBEDDINGS:
            office.unload(canary.model, 1, withdraw=True)


@pytest.fixture(scope="module")
def trials(
    release_stack: ReleaseStack, tiny_models: TinyModels, identical: list[tuple[Manifest, Any]]
) -> dict[str, Trial]:
    """All at once, which takes less time: two that are wrong, and one of each identical pair."""
    office = release_stack.desk.office
    stable = release_stack.add("shaky", tiny_models.usual)
    office.promote("shaky", stable.version)
    shaky = release_stack.add("shaky", tiny_models.usual, fail_for_one_in_twenty)
    slow = release_stack.add("tiny", tiny_models.slow)
    release_stack.load(stable, shaky, slow)
    chosen = [(shaky, texts("shaky"), WRONG, 30.0), (slow, texts("tiny"), WRONG, 16.0)]
    chosen += [(canary, asked, IDENTICAL, 10.0) for canary, asked in identical]
    return under_traffic(release_stack, chosen)


def under_traffic(
    stack: ReleaseStack, chosen: list[tuple[Manifest, Any, Plan, float]], *, to_the_end: bool = False
) -> dict[str, Trial]:
    """Until each is rolled back or has nothing held against it; the good ones are promoted then."""
    office = stack.desk.office
    with ExitStack() as closing:
        running = {}
        for canary, (path, body), _, per_s in chosen:
            sending = traffic(stack.url, body, per_s, path=path)
            running[canary.model] = closing.enter_context(sending)
        began_s = time.time()
        for canary, _, plan, _ in chosen:
            office.begin_rollout(canary.model, canary.version, plan)
        for canary, _, _, _ in chosen:
            until(lambda: is_decided(stack, canary.model, to_the_end), f"{canary.name}: undecided", 180)  # noqa: B023
            if not stack.rollout(canary.model).state.is_over:
                office.promote(canary.model, canary.version, "nothing speaks against it")
    return {
        canary.model: Trial(canary, running[canary.model], stack.rollout(canary.model), began_s)
        for canary, *_ in chosen
    }


def is_decided(stack: ReleaseStack, model: str, to_the_end: bool) -> bool:
    """The second step has all of the traffic, and nothing to compare the times with."""
    rollout = stack.rollout(model)
    return rollout.state.is_over or (not to_the_end and rollout.progress.step >= 1)


def figures(trial: Trial) -> str:
    counted = trial.rollout.figures["canary"]["errors"]["total"]
    return f"{trial.rollout.reason} (after {trial.took_s:.1f} s, {counted} requests)"


def assert_rolled_back_in_time(stack: ReleaseStack, trial: Trial) -> None:
    print(figures(trial))
    assert trial.rollout.state is RolloutState.ROLLED_BACK
    requests = trial.rollout.figures["canary"]["errors"]["total"]
    assert trial.took_s <= MOST_ROLLBACK_S or requests <= MOST_ROLLBACK_REQUESTS
    last = next(each for each in stack.history(trial.canary.model) if each.what == "rollback")
    assert last.reason == trial.rollout.reason


def test_one_that_fails_one_request_in_twenty_is_rolled_back(
    release_stack: ReleaseStack, trials: dict[str, Trial]
) -> None:
    trial = trials["shaky"]
    assert_rolled_back_in_time(release_stack, trial)
    assert trial.rollout.reason.startswith("errors: ")
    failed = {each.release for each in trial.running.answered if each.error is not None}
    assert failed == {str(trial.canary.version)}, "only the canary fails"
    assert release_stack.weights("shaky") == {1: 1.0}


def test_one_that_is_twice_as_slow_between_tokens_is_rolled_back(
    release_stack: ReleaseStack, trials: dict[str, Trial]
) -> None:
    trial = trials["tiny"]
    assert_rolled_back_in_time(release_stack, trial)
    assert trial.rollout.reason.startswith(("inter-token latency: ", "time to first token: "))
    assert trial.running.errors == []
    assert release_stack.weights("tiny") == {1: 1.0}


def test_identical_ones_are_not_rolled_back(
    release_stack: ReleaseStack, trials: dict[str, Trial], identical: list[tuple[Manifest, Any]], full: bool
) -> None:
    """Four of them; at full length twenty, each to its end."""
    pairs = [trials[canary.model] for canary, _ in identical]
    for trial in pairs:
        assert trial.rollout.state is RolloutState.PROMOTED, figures(trial)
        assert trial.running.errors == []
    for turn in range(4 if full else 0):
        # The former canary is stable now, and the other one its canary.
        chosen = [
            (
                release_stack.find_version(canary.model, 1 if turn % 2 == 0 else canary.version),
                asked,
                IDENTICAL,
                15.0,
            )
            for canary, asked in identical
        ]
        for trial in under_traffic(release_stack, chosen, to_the_end=True).values():
            assert trial.rollout.state is RolloutState.PROMOTED, figures(trial)
            assert trial.running.errors == []
