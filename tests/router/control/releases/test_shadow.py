from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.arm_stats import ArmStats
from router.control.releases.comparison import Comparison, likeness_of_texts, likeness_of_vectors
from router.control.releases.evidence import Proportion
from router.control.releases.shadow import Shadows, ShadowSettings
from router.core.embedding import ServedEmbedder
from router.core.tenant import LOCAL_CALLER
from router.routing.models import Lineup, ServedModel
from router.routing.split import Shadow
from tests.fakes.embedder import LIMITS, FakeEmbedder
from tests.fakes.pipeline import FakePipeline, words
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router
from tests.waiting import soon


def shadow(router: RunningRouter, share: float = 1.0) -> FakePipeline:
    """A second release that gets the requests too, with the same answers until it is told others."""
    lineups = dict(router.parts.models.lineups)
    stable = lineups[MODEL].stable
    assert isinstance(stable, ServedModel)
    pipeline = FakePipeline()
    second = replace(stable, pipeline=pipeline, version=2)
    split = replace(lineups[MODEL].split, shadow=Shadow(2, share))
    lineups[MODEL] = Lineup(MODEL, {1: stable, 2: second}, split)
    router.parts.models.publish(lineups)
    return pipeline


def shadows(router: RunningRouter) -> Shadows:
    return router.shadows


async def newest(router: RunningRouter, count: int = 1) -> Comparison:
    await router.until(lambda: len(shadows(router).newest) == count)
    return shadows(router).newest[0]


def counted(router: RunningRouter, outcome: str, model: str = MODEL) -> float:
    return router.metric("inflight_shadow_answers_total", outcome=outcome, model=model, release="2")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_request_goes_to_the_shadow_and_the_client_is_not_affected(
    router: RunningRouter, stream: bool
) -> None:
    pipeline = shadow(router)
    answer = await router.chat(stream=stream, seed=5)
    assert answer.headers["x-inflight-release"] == "1"
    compared = await newest(router)
    assert (compared.version, compared.shadow_version) == (1, 2)
    assert (compared.is_equal, compared.likeness) == (True, 1.0)
    assert compared.size == compared.shadow_size == len("Hello world")
    (asked,), (original,) = pipeline.calls, router.pipeline.calls
    assert (asked.prompt, asked.seed, asked.tier) == (original.prompt, 5, "batch")
    assert asked.request_id != original.request_id
    assert counted(router, "equal") == 1


async def test_a_different_shadow_answer_is_measured_and_dropped(router: RunningRouter) -> None:
    shadow(router).script = lambda call: words("Hello", " you")
    answer = await router.chat()
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    compared = await newest(router)
    assert not compared.is_equal
    assert compared.likeness == pytest.approx(len("Hello ") / len("Hello world"))
    assert counted(router, "different") == 1


async def test_a_shadow_that_fails_or_hangs_delays_no_request(router: RunningRouter) -> None:
    pipeline = shadow(router)
    pipeline.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "the step broke")]
    assert (await router.chat()).status_code == 200
    assert (await newest(router)).error == "the step broke"
    pipeline.script = lambda call: [None]
    assert (await router.chat()).status_code == 200
    assert router.permits.open_count == 0
    assert counted(router, "failed") == 1


async def test_a_shadow_that_takes_too_long_is_stopped() -> None:
    async with running_router(shadowing=ShadowSettings(timeout_s=0.05)) as router:
        pipeline = shadow(router)
        pipeline.script = lambda call: [None]
        await router.chat()
        assert (await newest(router)).error == "no answer within 0.05 s"
        assert pipeline.generations[0].ended


async def test_a_shadow_is_not_compared_with_a_failed_answer(router: RunningRouter) -> None:
    pipeline = shadow(router)
    pipeline.script = lambda call: [None]
    router.pipeline.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "the step broke")]
    assert (await router.chat()).status_code == 503
    await router.until(lambda: counted(router, "alone") == 1)
    assert pipeline.generations[0].stopped
    assert not shadows(router).newest


async def test_under_load_requests_are_not_shadowed() -> None:
    async with running_router(shadowing=ShadowSettings(most_at_once=1)) as router:
        pipeline = shadow(router)
        pipeline.script = lambda call: [None]
        await router.chat()
        await router.chat()
        assert len(pipeline.calls) == 1
        assert counted(router, "dropped") == 1
    async with running_router(shadowing=ShadowSettings(most_open=0)) as router:
        pipeline = shadow(router)
        await router.chat()
        assert pipeline.calls == []


async def test_stop_strings_and_several_choices_are_compared_as_the_client_saw_them(
    router: RunningRouter,
) -> None:
    pipeline = shadow(router)
    router.pipeline.script = lambda call: words("one ", "two STOP", " three")
    pipeline.script = lambda call: words("one two ST", "OP four")
    await router.chat(n=2, stop="STOP")
    compared = await newest(router)
    assert (compared.is_equal, compared.size) == (True, 2 * len("one two "))


async def test_tool_calls_are_compared(router: RunningRouter) -> None:
    pipeline = shadow(router)
    tool = {"type": "function", "function": {"name": "note"}}
    call = '<tool_call>{{"name": "note", "arguments": {{"a": {}}}}}</tool_call>'
    router.pipeline.script = pipeline.script = lambda asked: words(call.format(1))
    await router.chat(tools=[tool])
    assert (await newest(router)).is_equal
    pipeline.script = lambda asked: words(call.format(2))
    await router.chat(tools=[tool])
    assert not (await newest(router, 2)).is_equal


async def test_a_request_outside_the_shadows_share_is_not_shadowed(router: RunningRouter) -> None:
    pipeline = shadow(router, share=1e-9)
    await router.chat()
    assert pipeline.calls == []


async def test_a_shadow_is_not_billed(router: RunningRouter) -> None:
    shadow(router)
    tenant = await router.new_tenant()
    key = await router.new_key(tenant)
    await router.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
        headers={"authorization": f"Bearer {key}"},
    )
    await newest(router)
    (usage,) = await router.usage(tenant)
    assert (usage.requests, usage.completion_tokens) == (1, 2)


@pytest.fixture
def vectors(router: RunningRouter) -> FakeEmbedder:
    lineups = dict(router.parts.models.lineups)
    stable = lineups[EMBEDDER].stable
    assert isinstance(stable, ServedEmbedder)
    embedder = FakeEmbedder()
    second = replace(stable, embedder=embedder, version=2)
    split = replace(lineups[EMBEDDER].split, shadow=Shadow(2, 1.0))
    lineups[EMBEDDER] = Lineup(EMBEDDER, {1: stable, 2: second}, split)
    router.parts.models.publish(lineups)
    return embedder


async def test_shadow_vectors_are_compared_by_their_cosine(
    router: RunningRouter, vectors: FakeEmbedder
) -> None:
    texts = [f"text {number}" for number in range(20)]
    body = {"model": EMBEDDER, "input": texts, "dimensions": LIMITS.dimensions}
    assert (await router.http.post("/v1/embeddings", json=body)).status_code == 200
    compared = await newest(router)
    assert (compared.is_equal, compared.size) == (True, 20)
    assert compared.likeness == pytest.approx(1.0)
    vectors.fail = lambda call: InflightError(ErrorKind.ENGINE_FAILED, "broken")
    await router.http.post("/v1/embeddings", json=body)
    assert (await newest(router, 2)).error == "broken"


async def test_the_router_does_not_wait_for_shadows_when_it_stops(router: RunningRouter) -> None:
    pipeline = shadow(router)
    pipeline.script = lambda call: [None]
    await router.chat()
    await soon(shadows(router).close())
    assert pipeline.generations[0].stopped


@given(st.text(), st.text())
def test_texts_are_compared_by_their_common_prefix(one: str, other: str) -> None:
    likeness = likeness_of_texts(one, other)
    assert 0 <= likeness <= 1
    assert (likeness == 1) == (one == other)
    assert likeness == likeness_of_texts(other, one)


def test_vectors_of_different_sizes_are_not_alike() -> None:
    assert likeness_of_vectors(b"\0" * 8, b"\0" * 4, 1) == 0.0
    assert likeness_of_vectors(b"", b"", 0) == 0.0
    assert likeness_of_vectors(b"\0" * 8, b"\0" * 8, 1) == 0.0


def mirror(router: RunningRouter, per_s: float = 1000.0) -> FakePipeline:
    """A canary without traffic of its own that gets copies of the stable release's."""
    pipeline = shadow(router)
    lineups = dict(router.parts.models.lineups)
    split = replace(lineups[MODEL].split, shadow=None).with_canary(2, 0.0, 7, 0, per_s)
    lineups[MODEL] = replace(lineups[MODEL], split=split)
    router.parts.models.publish(lineups)
    return pipeline


async def arms(router: RunningRouter, least: int) -> dict[int, ArmStats]:
    """By version, as written; at least so many copies."""
    found: dict[int, ArmStats] = {}

    def is_there() -> bool:
        nonlocal found
        found = {key.version: arm.fold() for key, arm in router.arms.arms.items() if key.rollout_id == 7}
        return 2 in found and found[2].copies >= least

    await router.until(is_there)
    return found


async def test_copies_to_a_canary_are_counted_beside_their_originals_and_met_by_nobody(
    router: RunningRouter,
) -> None:
    mirror(router)
    answer = await router.chat()
    assert answer.headers["x-inflight-release"] == "1"
    found = await arms(router, 1)
    canary, stable = found[2], found[1]
    assert (canary.errors, canary.copies, canary.met) == (Proportion(0, 1), 1, 0)
    assert (stable.errors, stable.copies, stable.met) == (Proportion(0, 1), 0, 1)
    ((_, ratios),) = canary.mirrored.first_token.parts
    assert ratios.count == 1
    assert canary.timed.first_token.parts == stable.timed.first_token.parts == ()


async def test_a_copy_that_fails_is_the_canarys_error_and_no_clients(router: RunningRouter) -> None:
    mirror(router).script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "the step broke")]
    assert (await router.chat()).status_code == 200
    found = await arms(router, 1)
    assert found[2].errors == Proportion(1, 1)
    assert found[1].errors == Proportion(0, 1)


async def test_no_more_requests_are_mirrored_than_were_asked_for(router: RunningRouter) -> None:
    pipeline = mirror(router, per_s=0.001)
    for _ in range(3):
        await router.chat()
    found = await arms(router, 1)
    assert len(pipeline.calls) == 1
    assert len(found[1].timed.first_token.parts) >= 1, "who had no copy beside it is no part of a pair"
    assert found[1].met == 3


async def test_a_request_that_names_its_release_is_not_mirrored(router: RunningRouter) -> None:
    pipeline = mirror(router)
    await router.chat(model=f"{MODEL}@1")
    assert pipeline.calls == []


async def test_a_client_is_billed_for_its_request_and_not_for_the_copy(router: RunningRouter) -> None:
    mirror(router)
    await router.chat()
    await arms(router, 1)
    (used,) = await router.usage(LOCAL_CALLER.organisation.id)
    assert used.requests == 1


async def test_copies_of_several_choices_have_times_too(router: RunningRouter) -> None:
    mirror(router)
    await router.chat(n=2)
    found = await arms(router, 1)
    ((_, ratios),) = found[2].mirrored.first_token.parts
    assert ratios.count == 1
    assert found[2].copies == 1


async def test_copies_of_embeddings_are_timed_as_a_whole(router: RunningRouter) -> None:
    lineups = dict(router.parts.models.lineups)
    stable = lineups[EMBEDDER].stable
    assert isinstance(stable, ServedEmbedder)
    second = replace(stable, embedder=FakeEmbedder(), version=2)
    split = lineups[EMBEDDER].split.with_canary(2, 0.0, 7, 0, 1000.0)
    lineups[EMBEDDER] = Lineup(EMBEDDER, {1: stable, 2: second}, split)
    router.parts.models.publish(lineups)
    answer = await router.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "one"})
    assert answer.status_code == 200
    found = await arms(router, 1)
    ((_, ratios),) = found[2].mirrored.first_token.parts
    assert ratios.count == 1
    assert found[2].mirrored.between_tokens.parts == ()
