"""Canaries that are broken, wrong or slow are taken back in time, and the stable release never notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traffic import Traffic, completion, traffic
from launcher.settings import StackSettings
from router.control.releases.plan import OnTimeout, Plan
from router.control.releases.records import Rollout, RolloutState
from router.control.releases.states import State
from router.core.manifest import Manifest
from tests.stack.breaking import BREAKAGES, fail_for_one_in_twenty
from tests.stack.conftest import TinyModels, Wrecks
from tests.stack.releasing import IN_FLIGHT, Change, ReleaseStack, until, write_multiplier

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

EMBEDDINGS = StackSettings().embeddings
MOST_TO_FAIL_S = 5.0
# Where Triton starts three processes first, which takes 3 s; a busy machine takes several times as long.
MOST_TO_FAIL_IN_TRITON_S = 15.0
REQUESTS_MEANWHILE, PER_S = 150, 20
FULL_REQUESTS_MEANWHILE, FULL_PER_S = 1000, 55
MOST_ROLLBACK_S = 60.0
MOST_ROLLBACK_REQUESTS = 400  # of simulated rollouts like it 95 in 100 take up to 277
# Latencies are compared from 15 s on.
COMPARED_AFTER_S = 16.0
WRONG = Plan((0.5, 1.0), min_requests=1000, min_duration_s=60.0)
# To show that one is good takes longer than to find out one that is not.
IDENTICAL = Plan(
    (0.5, 1.0),
    min_requests=50,
    min_duration_s=COMPARED_AFTER_S,
    time_limit_s=2 * COMPARED_AFTER_S,
    on_timeout=OnTimeout.PROMOTE,
)


def test_a_stack_starts_with_broken_releases_present(release_stack: ReleaseStack, wrecks: Wrecks) -> None:
    """They were ready when it last ran, and one of them had a model's traffic."""
    for manifest in wrecks.manifests:
        release_stack.wait_for(manifest, State.FAILED)
    assert release_stack.ask("tiny@1")[0] == 1


def broken(stack: ReleaseStack, models: TinyModels, folder: Path) -> Iterator[tuple[Manifest, str, float]]:
    """Each way to break a release: behind the back of its description, and as it was described."""
    for breakage in BREAKAGES:
        checkpoint = breakage.checkpoint(models.usual, folder / f"tampered-{breakage.name}")
        tampered = stack.add("tiny", checkpoint)
        breakage.act(stack.repository, tampered)
        yield tampered, breakage.told_as_tampering, MOST_TO_FAIL_S
        checkpoint = breakage.checkpoint(models.usual, folder / f"from-the-start-{breakage.name}")
        made = stack.add("tiny", checkpoint, breakage.act)
        yield made, breakage.told_by_triton, MOST_TO_FAIL_IN_TRITON_S


def test_broken_canaries_fail_in_seconds_and_the_stable_release_never_does(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path: Path, full: bool
) -> None:
    canaries = list(broken(release_stack, tiny_models, tmp_path))
    requests, per_s = (FULL_REQUESTS_MEANWHILE, FULL_PER_S) if full else (REQUESTS_MEANWHILE, PER_S)
    with traffic(release_stack.url, completion("tiny", 2), per_s, most_in_flight=IN_FLIGHT) as running:
        for canary, reason, limit_s in canaries:
            release_stack.installation.releases.begin_rollout("tiny", canary.version, WRONG)
            rollout = release_stack.wait_for_end("tiny", 30)
            assert rollout.state is RolloutState.ROLLED_BACK
            assert reason in rollout.reason
            assert release_stack.state(canary) is State.FAILED
            began_s, failed_s = (release_stack.happened_s(canary, what) for what in ("loading", "failed"))
            print(f"{canary.name} failed after {failed_s - began_s:.2f} s: {rollout.reason}")
            assert failed_s - began_s <= limit_s, canary.name
            assert release_stack.weights("tiny") == {1: 1.0}
        running.wait_for(max(0, requests - len(running.answered)))
    assert running.errors == []
    assert {each.release for each in running.answered} == {"1"}


def test_a_canary_that_gives_nan_is_not_admitted(
    release_stack: ReleaseStack, tiny_models: TinyModels
) -> None:
    """It is seen when it is warmed up."""
    canary = release_stack.add("tiny", tiny_models.gives_nan)
    release_stack.installation.releases.begin_rollout("tiny", canary.version, WRONG)
    rollout = release_stack.wait_for_end("tiny")
    assert rollout.state is RolloutState.ROLLED_BACK
    assert "a canonical prompt failed" in rollout.reason
    assert release_stack.state(canary) is State.FAILED


def test_a_canary_twice_as_slow_between_tokens_is_refused_before_anybody_meets_it(
    release_stack: ReleaseStack, tiny_models: TinyModels
) -> None:
    canary = release_stack.add("tiny", tiny_models.slow, max_tokens_in_paged_kv_cache="1024")
    release_stack.installation.releases.begin_rollout("tiny", canary.version, WRONG)
    rollout = release_stack.wait_for_end("tiny", 240)
    print(rollout.figures["before_traffic"]["line"], rollout.reason)
    assert (rollout.state, rollout.progress.step) == (RolloutState.ROLLED_BACK, -1)
    assert rollout.reason.startswith(("between tokens ", "first token "))
    assert "if that is meant, start it again with --accept-slower" in rollout.reason
    assert release_stack.weights("tiny") == {1: 1.0}


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


@dataclass(frozen=True)
class Pair:
    """A second release beside the first, and what is asked of them."""

    canary: Manifest
    asked: tuple[str, Callable[[int], dict[str, Any]]]
    plan: Plan
    per_s: float


@pytest.fixture(scope="module")
def identical(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory, full: bool
) -> Iterator[list[Pair]]:
    """Releases that differ from the first in nothing, of models of all kinds."""
    multiplier = write_multiplier(tmp_path_factory.mktemp("multiplier") / "multiplier", {1: 2})
    made = [
        (beside_the_first(release_stack, name, multiplier), numbers(name))
        for name in (("twice", "doubled") if full else ("twice",))
    ]
    made += [
        (beside_the_first(release_stack, "calm", tiny_models.usual), texts("calm")),
        (release_stack.add(EMBEDDINGS, EMBEDDINGS), vectors(EMBEDDINGS)),
    ]
    yield [Pair(canary, asked, IDENTICAL, 6.0) for canary, asked in made]
    office = release_stack.installation.releases
    for canary, _ in made:
        office.promote(canary.model, 1)
        office.unload(canary.model, canary.version)
        if canary.model != EMBEDDINGS:
            office.unload(canary.model, 1, withdraw=True)


def beside_the_first(stack: ReleaseStack, model: str, path: Path, change: Change | None = None) -> Manifest:
    first = stack.add(model, path)
    stack.installation.releases.promote(model, first.version)
    return stack.add(model, path, change)


@pytest.fixture(scope="module")
def trials(release_stack: ReleaseStack, tiny_models: TinyModels, identical: list[Pair]) -> dict[str, Trial]:
    """All at once, which takes less time: two that are wrong, and one of each identical pair."""
    shaky = beside_the_first(release_stack, "shaky", tiny_models.usual, fail_for_one_in_twenty)
    slow = release_stack.add("tiny", tiny_models.slow, max_tokens_in_paged_kv_cache="1024")
    release_stack.load(*(pair.canary for pair in identical), shaky, slow)
    wrong = [Pair(shaky, texts("shaky"), WRONG, 25.0), Pair(slow, texts("tiny"), WRONG, 8.0)]
    return under_traffic(release_stack, [*wrong, *identical])


def under_traffic(
    stack: ReleaseStack, pairs: Sequence[Pair], *, to_the_end: bool = False
) -> dict[str, Trial]:
    """Until each is rolled back or has nothing held against it; the good ones are promoted then."""
    office = stack.installation.releases
    with ExitStack() as closing:
        running = {}
        for pair in pairs:
            path, body = pair.asked
            sending = traffic(stack.url, body, pair.per_s, path=path, most_in_flight=IN_FLIGHT)
            running[pair.canary.model] = closing.enter_context(sending)
        began_s = time.time()
        for pair in pairs:
            office.begin_rollout(pair.canary.model, pair.canary.version, pair.plan)
        for canary in [pair.canary for pair in pairs]:
            until(partial(is_decided, stack, canary.model, to_the_end), f"{canary.name}: undecided", 300)
            if not stack.rollout(canary.model).state.is_over:
                office.promote(canary.model, canary.version, "nothing speaks against it")
    return {
        model: Trial(pair.canary, running[model], stack.rollout(model), began_s)
        for model, pair in ((pair.canary.model, pair) for pair in pairs)
    }


def is_decided(stack: ReleaseStack, model: str, to_the_end: bool) -> bool:
    """The second step has all of the traffic, and nothing to compare the times with."""
    rollout = stack.rollout(model)
    return rollout.state.is_over or (not to_the_end and rollout.progress.step >= 1)


def counted(trial: Trial) -> int:
    """Requests that the canary got, of which there are no figures where it got none."""
    rollout = trial.rollout
    return 0 if rollout.progress.step < 0 else int(rollout.figures["canary"]["errors"]["total"])


def figures(trial: Trial) -> str:
    return f"{trial.rollout.reason} (after {trial.took_s:.1f} s, {counted(trial)} requests)"


def assert_rolled_back_in_time(stack: ReleaseStack, trial: Trial) -> None:
    print(figures(trial))
    assert trial.rollout.state is RolloutState.ROLLED_BACK
    assert trial.took_s <= MOST_ROLLBACK_S or counted(trial) <= MOST_ROLLBACK_REQUESTS
    last = next(each for each in stack.history(trial.canary.model) if each.what == "rollback")
    assert last.reason == trial.rollout.reason


def test_a_canary_that_fails_one_request_in_twenty_rolls_back(
    release_stack: ReleaseStack, trials: dict[str, Trial]
) -> None:
    trial = trials["shaky"]
    assert_rolled_back_in_time(release_stack, trial)
    assert trial.rollout.reason.startswith("errors: ")
    failed = {each.release for each in trial.running.answered if each.error is not None}
    assert failed == {str(trial.canary.version)}, "only the canary fails"
    assert release_stack.weights("shaky") == {1: 1.0}


def test_a_canary_twice_as_slow_between_tokens_rolls_back(
    release_stack: ReleaseStack, trials: dict[str, Trial]
) -> None:
    trial = trials["tiny"]
    assert_rolled_back_in_time(release_stack, trial)
    # On busy cores one that is slow between tokens is behind with its first ones too, and may be noticed only
    # under traffic.
    before = ("between tokens ", "first token ")
    under_traffic = ("inter-token latency: ", "time to first token: ")
    assert trial.rollout.reason.startswith(before if trial.rollout.progress.step < 0 else under_traffic)
    assert trial.running.errors == []
    assert release_stack.weights("tiny") == {1: 1.0}


def test_identical_canaries_are_not_rolled_back(
    release_stack: ReleaseStack, trials: dict[str, Trial], identical: list[Pair], full: bool
) -> None:
    """One of each kind; at full length twenty, each to its end."""
    for pair in identical:
        assert_promoted(trials[pair.canary.model])
    for turn in range(4 if full else 0):
        # The former canary is stable now, and the other one is its canary.
        versions = [1 if turn % 2 == 0 else pair.canary.version for pair in identical]
        pairs = [
            replace(pair, canary=release_stack.find_version(pair.canary.model, version), per_s=15.0)
            for pair, version in zip(identical, versions, strict=True)
        ]
        for trial in under_traffic(release_stack, pairs, to_the_end=True).values():
            assert_promoted(trial)


def assert_promoted(trial: Trial) -> None:
    assert trial.rollout.state is RolloutState.PROMOTED, figures(trial)
    assert trial.running.errors == []
