"""Log probabilities on the real stack: true ones, of the text that leaves and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack
from tests.stack.conftest import TinyModels

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def openai(exact_stack: RunningStack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{exact_stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_log_probs_are_those_of_transformers(
    openai: OpenAI, exact_stack: RunningStack, tiny_models: TinyModels, tiny_in_transformers: Any
) -> None:
    """Of the prompt and of the answer, in fp32; no bias or temperature of the request is in them."""
    from tests.engine.checkpoints import all_logits

    tokenizer = Tokenizer.from_file(str(tiny_models.usual / "tokenizer.json"))
    prompt = "The capital of France is Paris. The capital of Italy"
    words = {name: tokenizer.encode(name).ids[0] for name in (" sea", " moon", " bread", " rain")}
    answer = openai.completions.create(
        model=exact_stack.model,
        prompt=prompt,
        echo=True,
        logprobs=5,
        max_tokens=8,
        temperature=1.5,
        seed=7,
        logit_bias={str(token_id): 100 for token_id in words.values()},
    )
    told: Any = answer.choices[0].logprobs
    text = answer.choices[0].text
    assert text.startswith(prompt)
    assert "".join(told.tokens) == text
    assert all(text.startswith(token, at) for at, token in zip(told.text_offset, told.tokens, strict=True))

    ids = tokenizer.encode(prompt).ids
    ids += [words[token] for token in told.tokens[len(ids) :]]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids) - answer.usage.prompt_tokens == 8
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    expected = all_logits(tiny_in_transformers, ids).log_softmax(-1)
    for place in range(1, len(ids)):
        own = float(expected[place - 1, ids[place]])
        assert told.token_logprobs[place] == pytest.approx(own, abs=2e-3)
        numbers, likeliest = expected[place - 1].topk(5)
        names = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in likeliest.tolist()]
        beside = dict(zip(names, numbers.tolist(), strict=True))
        whole = {name: number for name, number in beside.items() if "\ufffd" not in name}
        found = told.top_logprobs[place]
        assert len(found) == len({told.tokens[place], *names})
        assert {**whole, told.tokens[place]: own} == pytest.approx(
            {name: found[name] for name in (*whole, told.tokens[place])}, abs=2e-3
        )


@pytest.mark.parametrize("stream", [False, True])
def test_log_prob_bytes_are_the_text_before_the_stop_string(
    openai: OpenAI, exact_stack: RunningStack, stream: bool
) -> None:
    asked: dict[str, Any] = {
        "model": exact_stack.model,
        "messages": [{"role": "user", "content": "Repeat it."}],
        "logprobs": True,
        "top_logprobs": 3,
        "stop": "ïve 日本",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "text", "schema": {"const": "😀 é naïve 日本 STOP"}},
        },
    }
    if stream:
        chunks = [chunk.choices[0] for chunk in openai.chat.completions.create(**asked, stream=True)]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        assert all(bool(chunk.delta.content) == bool(chunk.logprobs) for chunk in chunks)
        entries = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content or []]
    else:
        choice: Any = openai.chat.completions.create(**asked).choices[0]
        text, entries = choice.message.content, choice.logprobs.content
    assert text == '"😀 é na'
    pieces = [bytes(each.bytes or ()) for each in entries]
    assert b"".join(pieces).startswith(text.encode()), "none is missing"
    assert len(b"".join(pieces[:-1])) < len(text.encode()), "none is too many"
    assert any("\\x" in each.token for each in entries), "some token is half a character"
    assert all(len(each.top_logprobs) == 3 for each in entries)
