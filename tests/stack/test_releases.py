"""Several models and releases at once from one Triton, and traffic that does not notice them come and go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from benchmarks.traffic import completion, traffic
from router.control.releases import records
from router.control.releases.records import RolloutState
from router.control.releases.states import State
from router.control.releases.writes import bump, put_split
from router.core.manifest import Manifest
from router.routing.split import Sticky
from tests.pace import patience
from tests.stack.conftest import TinyModels
from tests.stack.releasing import IN_FLIGHT, ReleaseStack
from tests.stack.test_recovery import run_of, settled_memory, shared_memory
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
# What a canary must show takes longer than this test should.
UNPROVEN = ("--time-limit", "1s", "--on-timeout", "promote", "--no-rehearsal")

KEYS = 300
SHARE = 0.1
KEYS_ASKED_AGAIN = 60
AT_ONCE = 32
# By which the number of requests in an arm may miss its share in 1 of 100 samples.
NORMAL_99 = 2.576


@pytest.fixture(scope="module")
def other_words(release_stack: ReleaseStack, tiny_models: TinyModels) -> Iterator[Manifest]:
    """A second release of `tiny` that says something else."""
    made = release_stack.add("tiny", tiny_models.other_words)
    release_stack.load(made)
    yield made
    release_stack.installation.releases.promote("tiny", 1)
    release_stack.unload(made)


def test_two_models_and_three_releases_answer_from_one_triton(
    release_stack: ReleaseStack, tiny_models: TinyModels, other_words: Manifest
) -> None:
    second_model = release_stack.add("second", tiny_models.other_words)
    release_stack.command("promote", second_model.name)
    release_stack.wait_for(second_model, State.READY)
    release_stack.wait_until_read()
    stable, usual = release_stack.ask("tiny")
    pinned, other = release_stack.ask(other_words.name)
    by_header = release_stack.ask("tiny", headers={"x-inflight-release": str(other_words.version)})
    assert (stable, pinned) == (1, other_words.version)
    assert by_header == (pinned, other)
    assert usual != other == release_stack.ask("second")[1]
    assert len(release_stack.tritons) == 1
    listed = {
        each["id"]
        for each in httpx.get(f"{release_stack.url}/v1/models", timeout=patience(30)).json()["data"]
    }
    assert {"tiny", "second"} <= listed
    release_stack.command("unload", second_model.name, "--withdraw", "--no-wait")


def test_a_release_is_added_rolled_out_and_rolled_back_and_no_request_fails(
    release_stack: ReleaseStack, tiny_models: TinyModels
) -> None:
    with traffic(release_stack.url, completion("tiny", 8), per_s=10, most_in_flight=IN_FLIGHT) as running:
        release_stack.command("add", "tiny", str(tiny_models.other_words), "--notes", "other words")
        with release_stack.installation.releases.look() as connection:
            canary = records.list_releases(connection, "tiny")[-1].manifest
        assert release_stack.state(canary) is State.ADDED
        plan = ("--steps", "20%,100%", "--min-requests", "4", "--min-duration", "1s", *UNPROVEN)
        assert "20%, 100%" in release_stack.command("canary", canary.name, *plan)
        wait_until(
            lambda: release_stack.weights("tiny") == {canary.version: 0.2, 1: 0.8}, "no first step", 240
        )
        assert release_stack.wait_for_end("tiny").state is RolloutState.PROMOTED
        assert release_stack.weights("tiny") == {canary.version: 1.0}
        running.wait_for(20)
        assert release_stack.states("tiny")[1] is State.READY, "who was stable stands by"
        assert f"tiny@{canary.version}" in release_stack.command("status", "tiny", "--once")
        release_stack.command("rollback", "tiny", "--reason", "second thoughts")
        assert release_stack.weights("tiny") == {1: 1.0}
        release_stack.wait_until_read()
        before = len(running.answered)
        running.wait_for(20)
        assert release_stack.state(canary) is State.READY
    assert running.errors == []
    assert {each.release for each in running.answered} == {"1", str(canary.version)}
    assert {each.release for each in running.answered[before + IN_FLIGHT :]} == {"1"}
    happened = [(each.what, each.reason) for each in reversed(release_stack.history("tiny"))]
    assert [what for what, _ in happened if what in ("canary", "advance", "promote", "rollback")][-5:] == [
        "canary",
        "advance",
        "advance",
        "promote",
        "rollback",
    ]
    assert happened[-1] == ("rollback", "second thoughts")
    release_stack.unload(canary)


def test_a_split_is_kept_and_every_key_stays_in_its_arm_over_a_restart(
    release_stack: ReleaseStack, other_words: Manifest
) -> None:
    with release_stack.store.begin() as connection:
        bump(release_stack.store, connection)
        split = records.find_split(connection, "tiny")
        assert split is not None
        # A salt by chance would fail this test by chance.
        put_split(release_stack.store, connection, replace(split, salt="the same in each run"))
    arms = [(other_words.version, SHARE), (1, 1 - SHARE)]
    release_stack.installation.releases.set_split("tiny", arms, Sticky.CONVERSATION, None)
    release_stack.wait_until_read()
    before = asyncio.run(arms_of(release_stack, range(KEYS)))
    in_arm = sum(release == str(other_words.version) for release in before.values())
    assert abs(in_arm - KEYS * SHARE) <= NORMAL_99 * math.sqrt(KEYS * SHARE * (1 - SHARE))

    router = release_stack.router
    router.kill()
    wait_until(lambda: is_ready(release_stack), "the router did not come back", 60)
    assert release_stack.router.pid != router.pid
    after = asyncio.run(arms_of(release_stack, range(KEYS_ASKED_AGAIN)))
    assert after == {key: before[key] for key in range(KEYS_ASKED_AGAIN)}
    assert len(set(after.values())) == 2
    # With no weight it stays loaded.
    release_stack.command("split", "tiny", "1=100%", f"{other_words.version}=0%", "--sticky", "request")


def is_ready(stack: ReleaseStack) -> bool:
    try:
        return httpx.get(f"{stack.url}/health/ready", verify=False, timeout=patience(30)).status_code == 200
    except httpx.HTTPError:
        return False


async def arms_of(stack: ReleaseStack, keys: range) -> dict[int, str]:
    """Which release answers each conversation; every other one is known by its user alone."""
    found: dict[int, str] = {}
    free = asyncio.Semaphore(AT_ONCE)

    async def ask(http: httpx.AsyncClient, key: int) -> None:
        body = {"model": "tiny", "prompt": "One", "max_tokens": 1}
        headers = {"x-inflight-conversation": f"talk-{key}"} if key % 2 else {}
        async with free:
            answer = await http.post("/v1/completions", json={**body, "user": f"user-{key}"}, headers=headers)
        assert answer.status_code == 200, answer.text
        found[key] = answer.headers["x-inflight-release"]

    async with httpx.AsyncClient(base_url=stack.url, timeout=patience(60)) as http:
        await asyncio.gather(*(ask(http, key) for key in keys))
    return found


@pytest.fixture
def twin(release_stack: ReleaseStack, tiny_models: TinyModels) -> Iterator[Manifest]:
    """A release that says what the first one says; nothing is left of it once it is unloaded."""
    made = release_stack.add("tiny", tiny_models.usual)
    before = settled_memory(release_stack.stack)
    release_stack.load(made)
    yield made
    release_stack.unload(made)
    release_stack.wait_for(made, State.UNLOADED)
    wait_until(lambda: shared_memory(run_of(release_stack.stack)) <= before, "its memory is still there", 30)


def test_a_shadow_is_compared_and_never_answers(
    release_stack: ReleaseStack, other_words: Manifest, twin: Manifest
) -> None:
    expected = release_stack.ask("tiny@1")
    for shadow, outcome in ((other_words, "different"), (twin, "equal")):
        labels = {"model": "tiny", "release": str(shadow.version), "outcome": outcome}
        before = release_stack.metric("inflight_shadow_answers_total", **labels)
        release_stack.command("split", "tiny", "1=100%", "--shadow", f"{shadow.version}=100%")
        release_stack.wait_until_read()
        assert [release_stack.ask("tiny") for _ in range(8)] == [expected] * 8

        def is_compared(labels: dict[str, str] = labels, before: float = before) -> bool:
            """Shadows give way where there is no time for them, so that more may have to be asked."""
            assert release_stack.ask("tiny") == expected
            return release_stack.metric("inflight_shadow_answers_total", **labels) >= before + 8

        wait_until(is_compared, f"{shadow.name} was not compared", 30)
    release_stack.command("split", "tiny", "1=100%")
