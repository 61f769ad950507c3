"""What a router measures of the requests it answers, by the tier that they are in."""

from __future__ import annotations

import pytest

from python_backend.wire.tiers import Tier
from router.core.generation import Delta
from router.core.objective import Metric
from tests.fakes.pipeline import words
from tests.router.running import EMBEDDER, MODEL, RunningRouter


def samples(router: RunningRouter, model: str, tier: Tier) -> tuple[int, ...]:
    """First tokens, further tokens, whole answers."""
    return tuple(router.metrics.objectives.window(model, tier, metric).samples for metric in Metric)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_token_is_measured_once_a_request_and_each_further_one(
    router: RunningRouter, stream: bool
) -> None:
    router.pipeline.script = lambda call: [
        Delta("a", completion_tokens=1, prompt_tokens=7),
        0.02,
        Delta("bcde", completion_tokens=4, prompt_tokens=7),
        *words("f"),
    ]
    await router.chat(n=2, stream=stream)
    await router.until(lambda: samples(router, MODEL, Tier.STANDARD) == (1, 10, 1))
    between, whole = (
        router.metrics.objectives.window(MODEL, Tier.STANDARD, metric).p50_s or 0.0
        for metric in (Metric.INTER_TOKEN, Metric.END_TO_END)
    )
    assert 0.004 < between < 1.1 * whole / 4, "each of four that come together has its part of the time"


@pytest.mark.parametrize(
    ("asked", "tier"), [("auto", Tier.STANDARD), ("flex", Tier.BATCH), ("priority", Tier.INTERACTIVE)]
)
async def test_a_service_tier_in_the_body_is_the_tier_that_is_measured(
    router: RunningRouter, asked: str, tier: Tier
) -> None:
    await router.chat(service_tier=asked)
    await router.until(lambda: samples(router, MODEL, tier)[2] == 1)
    assert samples(router, MODEL, tier) == (1, 1, 1)
    for other in set(Tier) - {tier}:
        assert samples(router, MODEL, other) == (0, 0, 0)


async def test_a_model_without_tokens_is_measured_by_the_whole_answer(router: RunningRouter) -> None:
    body = {"model": EMBEDDER, "input": ["a", "b"]}
    assert (await router.http.post("/v1/embeddings", json=body)).is_success
    await router.until(lambda: samples(router, EMBEDDER, Tier.STANDARD) == (0, 0, 1))


async def test_failed_and_refused_requests_are_not_timed(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("a", finish="cancelled")
    assert (await router.chat()).status_code >= 500
    assert (await router.chat(max_tokens=0)).status_code == 400
    await router.until(lambda: router.permits.open_count == 0)
    assert samples(router, MODEL, Tier.STANDARD) == (1, 0, 0), "its first token did come"


async def test_a_request_refused_before_the_model_counts_as_refused(router: RunningRouter) -> None:
    router.permits.drain()
    assert (await router.chat()).status_code == 503
    await router.until(lambda: router.metrics.objectives.refusals(MODEL, Tier.STANDARD) == 1)
    assert samples(router, MODEL, Tier.STANDARD) == (0, 0, 0)
