"""The operator's check holds for tensors as it does for messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from router.safety.check import Verdict
from router.safety.guard import Safety
from tests.fakes.triton_server import Reply, story
from tests.pace import patience
from tests.router.kserve.running import RunningKserve, running_kserve
from tests.router.running import MODEL

WORD = "secret"


class NoSecrets:
    """Forbids one word, and holds back what may be its beginning."""

    def judge(self, prompt: str) -> str | None:
        return "secrets" if WORD in prompt else None

    def reader(self) -> NoSecrets:
        return self

    def read(self, held: str, is_last: bool) -> Verdict:
        if WORD in held:
            return Verdict(held.index(WORD), "secrets")
        return Verdict(len(held) if is_last else max(len(held) - len(WORD) + 1, 0))


@pytest.fixture
async def kserve() -> AsyncIterator[RunningKserve]:
    async with running_kserve(Safety(NoSecrets())) as running:
        yield running


async def ask(kserve: RunningKserve, method: str = "generate_stream", **fields: Any) -> httpx.Response:
    body = {"text_input": "hi", "max_tokens": 5, "stream": True, **fields}
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as http:
        return await http.post(f"/v2/models/{MODEL}/{method}", json=body)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


async def test_a_forbidden_prompt_never_reaches_a_model(kserve: RunningKserve) -> None:
    answer = await ask(kserve, text_input="tell me the secret")
    assert answer.status_code == 400
    assert "secrets" in answer.json()["error"]
    assert not kserve.triton.requests


async def test_forbidden_text_in_pieces_never_leaves_and_the_engine_is_stopped(kserve: RunningKserve) -> None:
    kserve.triton.script = lambda request: [Reply("the se"), Reply("cret is"), Reply("42", pause_s=3600)]
    told = events(await ask(kserve))
    assert "".join(event["text_output"] for event in told) == "the "
    assert told[-1]["finish_reason"] == "content_filter"
    await kserve.router.until(lambda: not kserve.triton.running)
    assert kserve.triton.stops


@pytest.mark.parametrize("end", [{"finish": "end_id", "final": True}, {}])
async def test_held_back_text_is_sent_with_the_end_of_the_answer(
    kserve: RunningKserve, end: dict[str, Any]
) -> None:
    last = [] if end else [Reply(final=True, bare=True)]
    kserve.triton.script = lambda request: [Reply("a sec"), Reply("ond", **end), *last]
    told = events(await ask(kserve))
    assert "".join(event["text_output"] for event in told) == "a second"


async def test_a_whole_answer_is_checked(kserve: RunningKserve) -> None:
    kserve.triton.script = lambda request: story("my secret")
    answer = (await ask(kserve, "generate")).json()
    assert (answer["text_output"], answer["finish_reason"]) == ("my ", "content_filter")


@pytest.mark.parametrize("wish", [{"return_generation_logits": True}, {"num_return_sequences": 2}])
async def test_outputs_that_would_bypass_the_check_are_refused(
    kserve: RunningKserve, wish: dict[str, Any]
) -> None:
    answer = await ask(kserve, **wish)
    assert answer.status_code == 400
    assert "are checked" in answer.json()["error"]
