"""Canaries that are broken, wrong or slow are taken back in time, and the stable release never notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.traffic import Traffic, completion, traffic
from router.control.releases.plan import Plan, Tolerance
from router.control.releases.records import GoldenPrompt, Rollout, RolloutState
from router.control.releases.states import State
from router.core.manifest import Manifest
from tests.pace import patience
from tests.stack.breaking import BREAKAGES, fail_for_one_in_three, make_it_hang
from tests.stack.conftest import TinyModels, Wrecks
from tests.stack.releasing import IN_FLIGHT, LOADED_WITHIN_S, ReleaseStack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

# Triton starts three processes first, which takes 3 s, and on a busy machine up to ten times as long.
MOST_TO_FAIL_S = 30.0
PER_S = 15.0
SELDOM_PER_S = 5.0  # where nothing is counted, so that canaries and not their audience have the processors
ENDS_WITHIN_S = 200.0
# Steps of the engine that compute nothing, and take four milliseconds or sixteen.
PACED = {"inflight_runtime": "paced", "inflight_paced_cost": "4,0,0,0"}
SLOW = {"inflight_runtime": "paced", "inflight_paced_cost": "16,0,0,0"}
WRONG = Plan((0.5, 1.0), min_requests=1000, min_duration_s=60.0)
UNREHEARSED = Plan((0.5, 1.0), min_requests=1000, min_duration_s=60.0, is_rehearsed=False)
# Few requests show that a canary is no worse than that; `python -m benchmarks.canaries` has the usual ones.
LENIENT = Tolerance(error_margin=0.9, latency_ratio=100.0, length_ratio=10.0, refusal_rate=0.9)
RECORDED = 40
SHOWN_SOON = Plan((0.5, 1.0), min_requests=4, min_duration_s=1.0, tolerance=LENIENT, is_rehearsed=False)


def test_a_stack_starts_with_broken_releases_present(release_stack: ReleaseStack, wrecks: Wrecks) -> None:
    """They were ready when it last ran, and one of them had a model's traffic."""
    for manifest, breakage in zip(wrecks.manifests, BREAKAGES, strict=True):
        failed = release_stack.wait_for(manifest, State.FAILED)
        assert breakage.told_as_tampering in failed.reason
    assert release_stack.ask("tiny@1")[0] == 1


def broken(stack: ReleaseStack, models: TinyModels, folder: Path) -> Iterator[tuple[Manifest, str]]:
    """Each way to break a release, described as broken as it is; tampering was found above."""
    for breakage in BREAKAGES:
        checkpoint = breakage.checkpoint(models.usual, folder / breakage.name)
        yield stack.add("tiny", checkpoint, breakage.act), breakage.told_by_triton


def under_traffic(stack: ReleaseStack, model: str, per_s: float = PER_S) -> AbstractContextManager[Traffic]:
    return traffic(stack.url, completion(model, 8), per_s, most_in_flight=IN_FLIGHT)


def test_broken_canaries_fail_in_seconds_and_the_stable_release_never_does(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path: Path
) -> None:
    canaries = list(broken(release_stack, tiny_models, tmp_path))
    with under_traffic(release_stack, "tiny", SELDOM_PER_S) as running:
        for canary, reason in canaries:
            release_stack.installation.releases.begin_rollout("tiny", canary.version, WRONG)
            rollout = release_stack.wait_for_end("tiny", 2 * MOST_TO_FAIL_S)
            assert rollout.state is RolloutState.ROLLED_BACK
            assert reason in rollout.reason
            assert release_stack.state(canary) is State.FAILED
            began_s, failed_s = (release_stack.happened_s(canary, what) for what in ("loading", "failed"))
            print(f"{canary.name} failed after {failed_s - began_s:.2f} s: {rollout.reason}")
            assert failed_s - began_s <= patience(MOST_TO_FAIL_S), canary.name
            assert release_stack.weights("tiny") == {1: 1.0}
    assert running.errors == []
    assert {each.release for each in running.answered} == {"1"}


def test_a_process_that_hangs_while_it_starts_fails_and_does_not_hold_up_what_is_loaded_next(
    release_stack: ReleaseStack, tiny_models: TinyModels
) -> None:
    """Triton by itself would wait for it for half an hour."""
    hanging = release_stack.add("tiny", tiny_models.usual, make_it_hang)
    release_stack.installation.releases.load("tiny", hanging.version)
    failed = release_stack.wait_for(hanging, State.FAILED, 2 * LOADED_WITHIN_S)
    assert "hangs: not finished after 2 s" in failed.reason
    assert release_stack.ask("tiny@1")[0] == 1


@pytest.fixture(scope="module")
def slow(release_stack: ReleaseStack, tiny_models: TinyModels) -> Iterator[Manifest]:
    """Beside a first release of its model that takes a fourth of the time between tokens."""
    office = release_stack.installation.releases
    first = release_stack.add("paced", tiny_models.usual, None, **PACED)
    office.promote("paced", first.version)
    made = release_stack.add("paced", tiny_models.usual, None, **SLOW)
    release_stack.load(first, made)
    yield made
    office.unload("paced", made.version)
    office.unload("paced", first.version, withdraw=True)


@pytest.mark.thorough("tests/router/control/releases, with fakes and simulated traffic")
def test_a_canary_slow_between_tokens_is_refused_before_anybody_meets_it(
    release_stack: ReleaseStack, slow: Manifest
) -> None:
    office = release_stack.installation.releases
    office.set_split("paced", [(1, 1.0), (slow.version, 0.0)], None, None)  # stays loaded
    office.begin_rollout("paced", slow.version, WRONG)
    rollout = release_stack.wait_for_end("paced", ENDS_WITHIN_S)
    print(rollout.figures["before_traffic"]["line"], rollout.reason)
    assert (rollout.state, rollout.progress.step) == (RolloutState.ROLLED_BACK, -1)
    assert rollout.reason.startswith(("between tokens ", "first token "))
    assert "if that is intended, start the rollout again with --accept-slower" in rollout.reason
    assert release_stack.weights("paced") == {1: 1.0, slow.version: 0.0}


@dataclass(frozen=True)
class Trial:
    """A rollout under traffic, and what its clients saw until it was decided."""

    canary: Manifest
    running: Traffic
    rollout: Rollout


Try = Callable[[Manifest, Plan], Trial]


@pytest.fixture
def try_out(release_stack: ReleaseStack) -> Try:
    def run(canary: Manifest, plan: Plan) -> Trial:
        with under_traffic(release_stack, canary.model) as running:
            release_stack.installation.releases.begin_rollout(canary.model, canary.version, plan)
            rollout = release_stack.wait_for_end(canary.model, ENDS_WITHIN_S)
        print(rollout.reason)
        return Trial(canary, running, rollout)

    return run


def assert_rolled_back_under_traffic(stack: ReleaseStack, trial: Trial) -> None:
    assert (trial.rollout.state, trial.rollout.progress.step) == (RolloutState.ROLLED_BACK, 0)
    last = next(each for each in stack.history(trial.canary.model) if each.what == "rollback")
    assert last.reason == trial.rollout.reason
    assert stack.weights(trial.canary.model) == {1: 1.0}


@pytest.mark.thorough("tests/router/control/releases, with fakes and simulated traffic")
def test_a_canary_slow_between_tokens_rolls_back_under_traffic(
    release_stack: ReleaseStack, slow: Manifest, try_out: Try
) -> None:
    trial = try_out(slow, UNREHEARSED)
    assert_rolled_back_under_traffic(release_stack, trial)
    # On busy cores one that is slow between tokens is behind with its first ones too.
    assert trial.rollout.reason.startswith(("inter-token latency: ", "time to first token: "))
    assert trial.running.errors == []


@pytest.mark.thorough("tests/router/control/releases, with fakes and simulated traffic")
def test_a_canary_that_fails_one_request_in_three_rolls_back(
    release_stack: ReleaseStack, tiny_models: TinyModels, try_out: Try
) -> None:
    shaky = release_stack.add("tiny", tiny_models.usual, fail_for_one_in_three)
    trial = try_out(shaky, UNREHEARSED)
    assert_rolled_back_under_traffic(release_stack, trial)
    assert trial.rollout.reason.startswith("errors: ")
    failed = {each.release for each in trial.running.answered if each.error is not None}
    assert failed == {str(shaky.version)}, "only the canary fails"


@pytest.fixture(scope="module")
def other_words(release_stack: ReleaseStack, tiny_models: TinyModels) -> Iterator[Manifest]:
    """Loaded, and as good as the first release for who does not mind its answers."""
    office = release_stack.installation.releases
    made = release_stack.add("tiny", tiny_models.other_words)
    release_stack.load(made)
    office.set_split("tiny", [(1, 1.0), (made.version, 0.0)], None, None)  # stays loaded
    yield made
    office.promote("tiny", 1)
    office.unload("tiny", made.version)


@pytest.mark.thorough("tests/router/control/releases, with fakes and simulated traffic")
def test_a_canary_with_other_answers_is_refused_and_then_promoted_where_nobody_minds(
    release_stack: ReleaseStack, other_words: Manifest, try_out: Try
) -> None:
    office = release_stack.installation.releases
    golden = GoldenPrompt("One, two", equals=release_stack.ask("tiny@1")[1], max_tokens=8)
    office.begin_rollout("tiny", other_words.version, SHOWN_SOON, [golden])
    refused = release_stack.wait_for_end("tiny", ENDS_WITHIN_S)
    assert (refused.state, refused.progress.step) == (RolloutState.ROLLED_BACK, -1)
    assert refused.reason.startswith("golden prompts: 1 failed")

    trial = try_out(other_words, replace(SHOWN_SOON, mirror_per_s=2.0))
    assert trial.rollout.state is RolloutState.PROMOTED
    assert trial.rollout.figures["canary"]["copies"] > 0, "requests of the stable release are mirrored"
    assert trial.rollout.reason.startswith("shown to be within its tolerances (errors, ")
    assert trial.running.errors == []
    office.promote("tiny", 1)


@pytest.mark.thorough("tests/router/control/releases, with fakes and simulated traffic")
def test_a_canary_is_promoted_by_recorded_prompts_while_nobody_asks_for_anything(
    release_stack: ReleaseStack, other_words: Manifest
) -> None:
    office = release_stack.installation.releases
    with under_traffic(release_stack, "tiny") as running:
        running.wait_for(RECORDED)
    before = release_stack.metric("inflight_replayed_prompts_total", outcome="compared", model="tiny")
    office.begin_rollout("tiny", other_words.version, replace(SHOWN_SOON, replay_per_s=10.0))
    rollout = release_stack.wait_for_end("tiny", ENDS_WITHIN_S)
    print(rollout.reason)
    assert rollout.state is RolloutState.PROMOTED
    canary, stable = (rollout.figures[arm] for arm in ("canary", "stable"))
    assert canary["errors"]["total"] == canary["replays"] == stable["errors"]["total"], "nobody asked"
    asked = release_stack.metric("inflight_replayed_prompts_total", outcome="compared", model="tiny")
    assert asked - before >= canary["replays"]
    office.promote("tiny", 1)
