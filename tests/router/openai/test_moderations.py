"""/v1/moderations, by the operator's rules."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from router.safety.guard import Safety
from router.safety.rules import Rule, RuleCheck, Rules
from tests.router.running import RunningRouter, running_router

RULES = Rules(
    (
        Rule("violence", terms=("punch",)),
        Rule("Violence graphic", terms=("gore",)),
        Rule("project names", terms=("blue heron",), applies_to="answer"),
    )
)


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_router(safety=Safety(RuleCheck(RULES))) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


async def test_rules_are_categories_openais_where_they_are_named_so(client: openai.AsyncOpenAI) -> None:
    told = await client.moderations.create(input=["fine", "a PUNCH", "gore", "the blue heron"])
    assert [result.flagged for result in told.results] == [False, True, True, True]
    fine, punch, gore, heron = told.results
    assert not any(fine.categories.model_dump().values())
    assert punch.categories.violence
    assert punch.category_scores.violence == 1.0
    assert gore.categories.violence_graphic
    assert not gore.categories.violence
    assert heron.categories.model_dump()["project names"]
    assert heron.category_applied_input_types.violence == ["text"]
    assert told.id.startswith("modr-")
    assert told.model == "inflight-safety-rules"


async def test_parts_are_one_input_and_images_are_refused(client: openai.AsyncOpenAI) -> None:
    parts = await client.moderations.create(
        input=[{"type": "text", "text": "a"}, {"type": "text", "text": "punch"}]
    )
    assert [result.flagged for result in parts.results] == [True]
    with pytest.raises(openai.BadRequestError, match="images are not supported"):
        await client.moderations.create(input=[{"type": "image_url", "image_url": {"url": "data:"}}])


async def test_without_rules_it_is_refused_with_how_to_set_them(router: RunningRouter) -> None:
    answer = await router.http.post("/v1/moderations", json={"input": "hi"})
    assert answer.status_code == 400
    assert "safety_rules" in answer.json()["error"]["message"]
