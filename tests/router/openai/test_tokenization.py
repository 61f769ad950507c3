"""/tokenize, /detokenize, /tokenizer_info and counted input: by the model's own tokenizer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from router.core.tenant import Limits
from router.openai import tokenization
from router.routing.checkpoint import CONTEXT_TOKENS
from tests.router.running import BARE_MODEL, EMBEDDER, MODEL, QUESTION, RunningRouter, running_router

PROMPT = "<user>hi</user><assistant>"  # of QUESTION


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """Of a model whose tokens are bytes, `hi` and `<s>`, which begins each text."""
    vocabulary = {each: index for index, each in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE({**vocabulary, "hi": 256}, [("h", "i")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 257)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Tiny", "bos_token": "<s>"}')
    async with running_router(checkpoint_dir=tmp_path) as running:
        yield running


async def post(router: RunningRouter, path: str, **body: object) -> Any:
    answer = await router.http.post(path, json={"model": MODEL, **body})
    return answer.json() | {"status": answer.status_code}


async def test_a_prompt_is_tokenized_as_the_model_reads_it(router: RunningRouter) -> None:
    told = await post(router, "/tokenize", prompt="hi é", return_token_strs=True)
    assert told["token_strs"] == ["<s>", "hi", "Ġ", "Ã", "©"]
    assert (told["count"], told["max_model_len"]) == (5, CONTEXT_TOKENS)
    assert told["tokens"][:2] == [257, 256]
    plain = await post(router, "/tokenize", prompt="hi é", add_special_tokens=False)
    assert (plain["tokens"], plain["token_strs"]) == (told["tokens"][1:], None)
    back = await post(router, "/detokenize", tokens=told["tokens"])
    assert back["prompt"] == "<s>hi é"
    assert router.pipeline.calls == []


async def test_messages_are_tokenized_by_the_chat_template(router: RunningRouter) -> None:
    told = await post(router, "/tokenize", messages=QUESTION)
    assert (await post(router, "/detokenize", tokens=told["tokens"]))["prompt"] == PROMPT
    assert told["count"] == len(PROMPT) - 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": QUESTION}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": None}, "model"),
        ("/tokenize", {"prompt": "a", "model": EMBEDDER}, "model"),
        ("/tokenize", {"prompt": "a", "model": BARE_MODEL}, "model"),
        ("/tokenize", {"messages": QUESTION, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": [{"role": "user", "content": "</user>"}]}, "messages"),
        ("/detokenize", {"tokens": [1, 300]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    router: RunningRouter, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await post(router, path, **body)
    assert (answer["status"], answer["error"]["param"]) == (400, param)


async def test_a_text_that_takes_too_long_is_refused(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "_CHARACTERS", 10)
    monkeypatch.setattr(tokenization, "_CHARACTERS_PER_TOKEN", 0)
    assert (await post(router, "/tokenize", prompt="x" * 11))["status"] == 413


async def test_the_checkpoints_words_on_its_tokenizer_are_shown(router: RunningRouter) -> None:
    answer = await router.http.get(f"/tokenizer_info?model={MODEL}")
    told = {"tokenizer_class": "Tiny", "bos_token": "<s>", "chat_template": None}
    assert json.loads(answer.text) == {**told, "max_model_len": CONTEXT_TOKENS}
    assert (await router.http.get(f"/tokenizer_info?model={BARE_MODEL}")).status_code == 400


async def test_who_has_no_tokens_left_or_may_not_use_the_model_gets_no_tokens_counted(
    router: RunningRouter,
) -> None:
    tenant = await router.new_tenant(limits=Limits(tokens_per_min=0))
    key = await router.new_key(tenant)
    free = await router.new_tenant("free")
    other = await router.new_key(free, models=frozenset({"other"}))
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        for text, status in ((key, 429), (other, 403)):
            headers = {"authorization": f"Bearer {text}"}
            answer = await router.http.post(path, json={"model": MODEL, **body}, headers=headers)
            assert answer.status_code == status


async def test_the_input_of_a_response_is_counted_as_the_engine_would(router: RunningRouter) -> None:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
        counted = await client.responses.input_tokens.count(model=MODEL, input="hi")
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", len(PROMPT) - 1)
        before = await client.responses.create(model=MODEL, input="hi")
        more = await client.responses.input_tokens.count(model=MODEL, previous_response_id=before.id)
        prompt = "<user>hi</user><assistant>Hello world</assistant><assistant>"
        assert more.input_tokens == len(prompt) - 1


async def test_compacting_is_refused_by_name_and_no_path_is_taken_for_an_id(router: RunningRouter) -> None:
    answer = await post(router, "/v1/responses/compact", input="hi")
    assert answer["status"] == 400
    assert "compact is not supported" in answer["error"]["message"]
    for name in ("compact", "input_tokens"):
        shown = await router.http.get(f"/v1/responses/{name}")
        assert (shown.status_code, shown.headers["allow"]) == (405, "POST")
