"""Images on their way into vLLM, with stand-ins for its renderer and its decoder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from python_backend.engine.report import Ready
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.hosted.checkpoint import CheckpointFacts
from python_backend.engine.runtimes.hosted.host import Asked
from python_backend.engine.runtimes.hosted.news import News
from python_backend.engine.runtimes.vllm.host import VllmHost
from python_backend.engine.runtimes.vllm.images import has_images, image_arguments, image_prompt
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters

PLACE, TOKENS = 9, 4  # of an image in a prompt, and how many tokens it becomes
PARAMETERS = EngineParameters("inflight_fused_batching", "/model", inflight_max_images=3)


class Decoder:
    def load_bytes(self, data: bytes) -> str:
        if data == b"broken":
            raise ValueError("Failed to load image")
        return f"decoded {data.decode()}"


class Llm:
    """Answers with one token; a renderer makes room for images as vLLM's does."""

    def __init__(self, max_model_len: int = 100) -> None:
        self.renderer = self
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=max_model_len))
        self.rendered: list[Any] = []
        self.asked: list[Any] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def render_cmpl_async(self, prompts: list[Any]) -> list[Any]:
        self.rendered += prompts
        self.meanwhile()
        ids = [each for token in prompts[0]["prompt_token_ids"] for each in [token] * self._room(token)]
        return [{"type": "multimodal", "prompt_token_ids": ids}]

    def _room(self, token: int) -> int:
        return TOKENS if token == PLACE else 1

    async def generate(self, **arguments: Any) -> AsyncIterator[Any]:
        self.asked.append(arguments)
        answer = SimpleNamespace(token_ids=[4], logprobs=None, finish_reason="stop", stop_reason=None)
        of_prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "num_cached_tokens": 0}
        yield SimpleNamespace(outputs=[answer], finished=True, metrics=None, **of_prompt)


def request(*images: bytes, salt: str = "ours") -> GenerationRequest:
    return GenerationRequest([1, *[PLACE] * len(images), 2], 8, cache_salt=salt, images=images)


def asked(*images: bytes) -> Asked:
    return Asked({"prompt": image_prompt(request(*images)), "request_id": "3.0"})


async def told(llm: Llm, of: Asked) -> list[News]:
    return [news async for news in VllmHost(llm, image_io=Decoder()).follow(of)]


async def test_images_are_named_by_tenant_and_content() -> None:
    llm = Llm()
    for data, salt in ((b"a", "ours"), (b"a", "ours"), (b"b", "ours"), (b"a", "theirs"), (b"a", "")):
        prompt = image_prompt(request(data, salt=salt))
        assert prompt.get("cache_salt", "") == salt
        await told(llm, Asked({"prompt": prompt, "request_id": "3.0"}))
    names = [each["multi_modal_uuids"]["image"][0] for each in llm.rendered]
    assert names[0] == names[1]
    assert len({*names}) == 4


async def test_images_are_decoded_and_what_they_have_come_to_is_told_behind_a_sign_of_life() -> None:
    llm = Llm()
    alive, news = await told(llm, asked(b"a", b"b"))
    assert alive == News()
    assert llm.rendered[0]["multi_modal_data"] == {"image": ["decoded a", "decoded b"]}
    assert llm.asked[0]["prompt"]["prompt_token_ids"] == [1, *[PLACE] * 8, 2]
    assert news.image_tokens == 6
    assert (news.token_ids, news.is_last) == ([4], True)


async def test_a_prompt_without_images_is_not_rendered() -> None:
    llm, prompt = Llm(), {"type": "token", "prompt_token_ids": [1, 2]}
    assert not has_images(prompt)
    (news,) = await told(llm, Asked({"prompt": prompt, "request_id": "3.0"}))
    assert (llm.rendered, news.image_tokens) == ([], 0)


async def test_what_cannot_be_decoded_ends_its_own_request() -> None:
    with pytest.raises(ValueError, match="Failed to load"):
        await told(Llm(), asked(b"broken"))


async def test_images_that_do_not_fit_are_refused_as_a_prompt_that_is_too_long() -> None:
    with pytest.raises(InflightError, match="the prompt has 10 tokens, including its images") as found:
        await told(Llm(max_model_len=10), asked(b"a", b"b"))
    assert found.value.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED


async def test_who_leaves_while_images_are_read_is_never_generated_for() -> None:
    llm, of = Llm(), asked(b"a")
    llm.meanwhile = lambda: setattr(of, "is_aborted", True)
    (news,) = await told(llm, of)
    assert (news.finish_reason, news.is_last, llm.asked) == ("cancelled", True, [])


def test_room_is_made_for_images_alone_and_only_where_the_model_sees() -> None:
    facts = CheckpointFacts(10, 10, (), None, sees=True)
    limits = {"limit_mm_per_prompt": {"image": 3, "video": 0, "audio": 0}}
    assert image_arguments(PARAMETERS, facts) == limits
    assert image_arguments(PARAMETERS, CheckpointFacts(10, 10, (), None)) == {}


def test_an_engine_reads_text_alone_unless_it_says_otherwise() -> None:
    assert Ready(1, 1, 1, 1, 1).max_images == 0
