from __future__ import annotations

import asyncio

import pytest

from loadtest.replay.served_models import ServerError, ask_models, choose
from tests.fakes.completions_server import CompletionsServer, serving

MODELS = {"words": None, "tiny": 512, "large": 4096}


async def test_a_server_lists_its_models_and_their_context_lengths() -> None:
    async with serving(CompletionsServer(context_tokens=512)) as server:
        assert await asyncio.to_thread(ask_models, server.url) == {"tiny": 512}


def test_without_a_listener_the_error_says_so() -> None:
    with pytest.raises(ServerError, match=r"http://127.0.0.1:9 does not list its models: .*refused"):
        ask_models("http://127.0.0.1:9")


async def test_a_server_of_another_kind_is_reported() -> None:
    async with serving(CompletionsServer()) as server:
        with pytest.raises(ServerError, match="answers 404 to GET /v1/models"):
            await asyncio.to_thread(ask_models, f"{server.url}elsewhere")


def test_the_first_text_model_or_the_named_one_is_used() -> None:
    assert choose(MODELS, None, None) == ("tiny", 512)
    assert choose(MODELS, "large@3", None) == ("large@3", 4096)
    assert choose(MODELS, None, 100) == ("tiny", 100)
    with pytest.raises(ServerError, match="no model 'other'; there are: words, tiny, large"):
        choose(MODELS, "other", None)
    with pytest.raises(ServerError, match="set --context-tokens"):
        choose({"words": None}, None, None)
    with pytest.raises(ServerError, match="no model is served"):
        choose({}, None, 100)
