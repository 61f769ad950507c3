"""Cascades, over HTTP: a small model, a large one and a judge behind one name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anthropic
import httpx
import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.cascade.cascade import Cascade
from router.cascade.checks import Checks
from router.core.generation import Delta, LoggedToken
from router.core.tenant import Limits, Price
from router.routing.models import ServedModel
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.fakes.pipeline import FakePipeline, Step, words
from tests.router.running import COMPILED, MODEL, QUESTION, RunningRouter, running_router

NAME, LARGE, JUDGE = "thrifty", "large", "judge"
CERTAIN = Cascade(NAME, MODEL, LARGE, Checks(least_log_prob=-1.0))
SCHEMA = {"type": "object", "required": ["city"]}
FORMED = Cascade(NAME, MODEL, LARGE, Checks(has_schema=True), SCHEMA)
JUDGED = Cascade(NAME, MODEL, LARGE, Checks(has_judge=True), judge=JUDGE, judge_prompt="{prompt}|{answer}?")
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": QUESTION},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 9},
    "/api/chat": {"messages": QUESTION},
    "/api/generate": {"prompt": "hi"},
}


M = 1_000_000  # a millionth of a dollar a token


def _set_price(price: Price, admin: Administration) -> None:
    admin.set_price(SYSTEM, price)


def said(text: str, log_prob: float = -0.1) -> list[Step]:
    token = LoggedToken(text.encode(), log_prob, len(text))
    return [
        Delta(text, completion_tokens=1, prompt_tokens=7, tokens=(token,)),
        Delta("", prompt_tokens=7, finish="end_id"),
    ]


@dataclass
class Cascading:
    router: RunningRouter
    large: FakePipeline
    judge: FakePipeline

    @property
    def small(self) -> FakePipeline:
        return self.router.pipeline

    async def ask(self, path: str = CHAT, **fields: object) -> httpx.Response:
        return await self.router.http.post(path, json={"model": NAME, **BODIES[path], **fields})

    def calls(self) -> tuple[int, int, int]:
        return len(self.small.calls), len(self.large.calls), len(self.judge.calls)

    def answered(self) -> dict[tuple[str, str], int]:
        counts = self.router.parts.cascaded.answered
        return {(model, reason): count for (_, model, reason), count in counts.items()}


@asynccontextmanager
async def cascading(cascade: Cascade) -> AsyncIterator[Cascading]:
    large, judge = FakePipeline(), FakePipeline()
    large.script = lambda call: words("large")
    others = [ServedModel(LARGE, large, COMPILED), ServedModel(JUDGE, judge, COMPILED)]
    async with running_router(cascade=cascade, others=others) as router:
        router.pipeline.script = lambda call: said("small")
        yield Cascading(router, large, judge)


async def test_a_tag_of_ollama_is_part_of_the_name_elsewhere() -> None:
    async with cascading(CERTAIN) as it:
        assert (await it.ask("/api/chat", model=f"{NAME}:latest")).status_code == 200
        refused = await it.ask(CHAT, model=f"{NAME}:latest")
        assert (refused.status_code, it.calls()) == (404, (1, 0, 0))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_every_door_tells_the_small_models_answer_where_it_passes_and_else_the_large_ones(
    path: str, stream: bool
) -> None:
    async with cascading(CERTAIN) as it:
        good = await it.ask(path, stream=stream)
        it.small.script = lambda call: said("small", log_prob=-2.0)
        bad = await it.ask(path, stream=stream)
        assert (good.status_code, bad.status_code) == (200, 200), (good.text, bad.text)
        assert "small" in good.text
        assert "large" not in good.text
        assert f'"model":"{MODEL}"' in good.text.replace(": ", ":")
        assert good.headers["x-inflight-cascade"] == f"{NAME}; model={MODEL}"
        assert "small" not in bad.text
        assert f'"model":"{LARGE}"' in bad.text.replace(": ", ":")
        assert bad.headers["x-inflight-cascade"] == f"{NAME}; model={LARGE}; reason=log_prob"
        assert it.calls() == (2, 1, 0)
        assert it.answered() == {(MODEL, ""): 1, (LARGE, "log_prob"): 1}


async def test_a_cascade_is_found_however_its_name_is_escaped() -> None:
    async with cascading(CERTAIN) as it:
        body = json.dumps({"model": NAME, "messages": QUESTION}).replace(
            NAME, f"\\u{ord(NAME[0]):04x}{NAME[1:]}"
        )
        kind = {"content-type": "application/json"}
        answer = await it.router.http.post(CHAT, content=body, headers=kind)
        assert answer.headers["x-inflight-cascade"] == f"{NAME}; model={MODEL}"
        assert it.calls() == (1, 0, 0)


@pytest.mark.parametrize("script", ["good", "bad"])
async def test_the_official_clients_read_both_answers_as_streams(script: str) -> None:
    async with cascading(CERTAIN) as it:
        log_prob = -0.1 if script == "good" else -5.0
        it.small.script = lambda call: said("small", log_prob)
        expected, model = ("small", MODEL) if script == "good" else ("large", LARGE)
        async with openai.AsyncOpenAI(base_url=f"{it.router.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "hi"}], stream=True
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == expected
        assert {each.model for each in chunks} == {model}
        async with anthropic.AsyncAnthropic(base_url=it.router.url, api_key="none") as claude:
            message = await claude.messages.create(
                model=NAME, max_tokens=9, messages=[{"role": "user", "content": "hi"}]
            )
        assert (message.model, getattr(message.content[0], "text", "")) == (model, expected)


async def test_log_probabilities_are_asked_of_the_engine_and_told_only_to_who_wants_them() -> None:
    async with cascading(CERTAIN) as it:
        silent = (await it.ask()).json()
        asking = (await it.ask(logprobs=True)).json()
        assert [call.top_log_probs for call in it.small.calls] == [0, 0]
        assert not silent["choices"][0].get("logprobs")
        assert asking["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.1


async def test_an_engine_that_tells_no_log_probabilities_has_not_passed() -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: words("small")
        assert "large" in (await it.ask()).text


async def test_an_answer_that_does_not_fit_the_schema_is_not_told() -> None:
    async with cascading(FORMED) as it:
        it.small.script = lambda call: words('{"city": "Rome"}')
        assert "Rome" in (await it.ask()).text
        it.small.script = lambda call: words('{"town": "Rome"}')
        assert "large" in (await it.ask()).text
        it.small.script = lambda call: words("Rome")
        assert "large" in (await it.ask()).text
        assert it.answered() == {(MODEL, ""): 1, (LARGE, "schema"): 2}


async def test_a_call_of_a_tool_is_not_held_to_the_schema() -> None:
    async with cascading(FORMED) as it:
        it.small.script = lambda call: words("I look it up")
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        assert "I look it up" in (await it.ask(tools=[tool])).text


@pytest.mark.parametrize("verdict", ["yes", "no"])
async def test_a_judge_is_shown_question_and_answer_and_decides(verdict: str) -> None:
    async with cascading(JUDGED) as it:
        it.small.script = lambda call: words("small {prompt}")
        it.judge.script = lambda call: words(verdict)
        answer = await it.ask()
        assert ("small" if verdict == "yes" else "large") in answer.json()["choices"][0]["message"]["content"]
        [asked] = it.judge.calls
        assert "hi" in asked.prompt
        assert "|small {prompt}?" in asked.prompt  # what a model wrote is no place to fill in
        assert asked.guide == ("regex", "yes|no")


async def test_a_judge_that_fails_has_not_agreed() -> None:
    async with cascading(JUDGED) as it:
        it.judge.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "died")]
        assert "large" in (await it.ask()).text
        assert it.answered() == {(LARGE, "judge"): 1}


@pytest.mark.parametrize("kind", [ErrorKind.ENGINE_FAILED, ErrorKind.CONTEXT_LENGTH_EXCEEDED])
async def test_where_the_small_model_gives_no_answer_the_large_one_does(kind: ErrorKind) -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: [*said("half")[:1], InflightError(kind, "no")]
        answer = await it.ask(stream=True)
        assert answer.status_code == 200
        assert "half" not in answer.text
        assert answer.headers["x-inflight-cascade"].endswith("reason=failed")


async def test_an_error_of_the_large_model_is_told_as_it_is() -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: said("small", -9)
        it.large.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "died")]
        answer = await it.ask()
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "died")


async def test_nothing_is_sent_before_the_check_has_passed() -> None:
    async with cascading(CERTAIN) as it:
        gate = asyncio.Event()
        it.small.script = lambda call: [said("small", -9)[0], gate, said("")[1]]
        sent: list[str] = []

        async def read() -> None:
            body = {"model": NAME, "messages": QUESTION, "stream": True}
            async with it.router.http.stream("POST", CHAT, json=body) as stream:
                async for line in stream.aiter_lines():
                    sent.append(line)

        reading = asyncio.create_task(read())
        await it.router.until(lambda: bool(it.small.calls) and it.small.generations[0].delivered == 1)
        assert not sent
        gate.set()
        await reading
        assert "small" not in "".join(sent)
        assert "large" in "".join(sent)


@pytest.mark.parametrize("stage", ["small", "judge", "large"])
async def test_a_client_that_leaves_stops_whichever_model_is_at_work(stage: str) -> None:
    async with cascading(JUDGED) as it:
        it.judge.script = lambda call: words("no")
        pipeline = {"small": it.small, "judge": it.judge, "large": it.large}[stage]
        pipeline.script = lambda call: [said("begun")[0], None]
        asking = asyncio.create_task(it.ask(stream=True))
        await it.router.until(lambda: bool(pipeline.generations) and pipeline.generations[0].delivered == 1)
        asking.cancel()
        await it.router.until(lambda: pipeline.generations[0].ended and not it.router.permits.open_count)
        calls = {"small": (1, 0, 0), "judge": (1, 0, 1), "large": (1, 1, 1)}
        assert it.calls() == calls[stage]
        assert pipeline.generations[0].stopped


async def test_every_call_is_billed_at_its_own_models_price_and_the_request_counts_once() -> None:
    async with cascading(replace(JUDGED, checks=Checks(-1.0, has_judge=True))) as it:
        it.judge.script = lambda call: words("no")
        router = it.router
        tenant = await router.new_tenant("acme", Limits(requests_per_min=1))
        key = await router.new_key(tenant)
        prices = [Price(model, of, of, of) for model, of in ((MODEL, M), (LARGE, 10 * M), (JUDGE, 2 * M))]
        for price in prices:
            await router.parts.tenancy.administer(partial(_set_price, price))
        headers = {"authorization": f"Bearer {key}"}
        asked = {"model": NAME, "messages": QUESTION}
        answer = await router.http.post(CHAT, json=asked, headers=headers)
        assert answer.status_code == 200
        assert answer.json()["usage"]["total_tokens"] == 8  # of the model that answered
        assert (await router.http.post(CHAT, json=asked, headers=headers)).status_code == 429
        used = {each.group[0]: (each.requests, each.cost) for each in await router.usage(tenant)}
        assert used == {MODEL: (1, 8), LARGE: (1, 80), JUDGE: (1, 16)}
        assert router.permits.open_count == 0
        assert router.parts.cascaded.rejected_tokens == {NAME: 8}


async def test_a_key_needs_the_right_to_both_models() -> None:
    async with cascading(CERTAIN) as it:
        tenant = await it.router.new_tenant()
        for models, status in ((frozenset({MODEL}), 403), (frozenset({MODEL, LARGE}), 200)):
            key = await it.router.new_key(tenant, models=models)
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": NAME, "messages": QUESTION}
            assert (await it.router.http.post(CHAT, json=body, headers=headers)).status_code == status
            listed = (await it.router.http.get("/v1/models", headers=headers)).json()["data"]
            assert (NAME in {each["id"] for each in listed}) == (status == 200)
        assert len(it.small.calls) == 1


async def test_a_cascade_has_no_releases_to_pin() -> None:
    async with cascading(CERTAIN) as it:
        headers = {"x-inflight-release": "1"}
        body = {"model": NAME, "messages": QUESTION}
        refused = await it.router.http.post(CHAT, json=body, headers=headers)
        assert refused.status_code == 400
        assert "has no releases" in refused.text


async def test_a_rejected_answer_is_not_stored() -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: said("small", -9)
        response = (await it.ask("/v1/responses")).json()
        stored = (await it.router.http.get(f"/v1/responses/{response['id']}")).json()
        assert stored["model"] == LARGE
        await it.ask(store=True)
        chats = (await it.router.http.get(CHAT)).json()["data"]
        assert [each["model"] for each in chats] == [LARGE]


async def test_what_is_made_in_the_background_is_made_by_the_large_model() -> None:
    async with cascading(CERTAIN) as it:
        made = await it.ask("/v1/responses", background=True)
        assert made.headers["x-inflight-cascade"].endswith("reason=unheld")
        await it.router.until(lambda: bool(it.large.calls))
        assert not it.small.calls


async def test_a_request_with_a_key_is_tried_once_and_told_twice() -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: said("small", -9)
        headers = {"idempotency-key": "one"}
        body = {"model": NAME, "messages": QUESTION}
        first = await it.router.http.post(CHAT, json=body, headers=headers)
        again = await it.router.http.post(CHAT, json=body, headers=headers)
        assert first.content == again.content
        assert "large" in again.text
        assert it.calls() == (1, 1, 0)


async def test_the_answer_of_a_cascade_is_cached_as_any_other() -> None:
    async with cascading(CERTAIN) as it:
        it.small.script = lambda call: said("small", -9)
        key = await it.router.new_key(await it.router.new_tenant("acme", Limits(answers_cached_s=60)))
        headers = {"authorization": f"Bearer {key}", "cache-control": "max-age=60"}
        body = {"model": NAME, "messages": QUESTION}
        answers = [await it.router.http.post(CHAT, json=body, headers=headers) for _ in range(2)]
        assert [each.headers["x-inflight-cache"] for each in answers] == ["miss", "hit"]
        assert answers[0].content == answers[1].content
        assert it.calls() == (1, 1, 0)


async def test_whoever_only_counts_tokens_is_told_of_the_large_model() -> None:
    async with cascading(CERTAIN) as it:
        shown = (await it.router.http.get(f"/v1/models/{NAME}")).json()
        assert shown["id"] == LARGE


async def test_other_models_and_broken_bodies_pass_by() -> None:
    async with cascading(CERTAIN) as it:
        for text in (b"{", b'["thrifty"]', b'{"model": 3, "x": "thrifty"}'):
            answer = await it.router.http.post(
                CHAT, content=text, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 400
        answer = await it.router.chat(messages=[{"role": "user", "content": '"thrifty'}])
        assert answer.status_code == 200
        assert "x-inflight-cascade" not in answer.headers
        assert [call.top_log_probs for call in it.small.calls] == [None]
