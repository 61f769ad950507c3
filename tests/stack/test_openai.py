"""The official client against the real stack: what a user of the OpenAI API sees."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack
from launcher.settings import StackSettings
from tests.pace import is_over, patience
from tests.waiting import wait_until

pytestmark = pytest.mark.stack

ASKED = "Name the capital of France."
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": ASKED}]


@pytest.fixture(scope="module")
def openai(steady_stack: RunningStack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{steady_stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_checkpoint / "tokenizer.json"))


def templated(question: str) -> str:
    """SmolLM2's chat format, written out."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_capital_of_france_is_paris(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    answer = openai.chat.completions.create(
        model=steady_stack.model, messages=QUESTION, temperature=0, max_tokens=64
    )
    text = answer.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode(templated(ASKED)).ids)
    assert answer.usage.completion_tokens == len(tokenizer.encode(text).ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_an_answer_follows_the_schema_it_is_given(openai: OpenAI, steady_stack: RunningStack) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "letters": {"type": "integer"}},
        "required": ["city", "letters"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model=steady_stack.model,
        messages=QUESTION,
        temperature=0,
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
    )
    place = json.loads(answer.choices[0].message.content or "")
    assert place.keys() == {"city", "letters"}
    assert place["city"] in ("Paris", "Rome")
    assert isinstance(place["letters"], int)


def test_an_impossible_schema_is_refused_by_the_callers_name(
    openai: OpenAI, steady_stack: RunningStack
) -> None:
    with pytest.raises(BadRequestError, match="response_format") as refusal:
        openai.chat.completions.create(
            model=steady_stack.model,
            messages=QUESTION,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "none", "schema": {"type": "colour"}},
            },
        )
    assert refusal.value.param == "response_format"


def test_a_required_tool_is_called_with_arguments_that_fit_it(
    openai: OpenAI, steady_stack: RunningStack
) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model=steady_stack.model,
        messages=[{"role": "user", "content": "How warm is it in Paris?"}],
        tools=[{"type": "function", "function": {"name": "warmth", "parameters": parameters}}],
        tool_choice="required",
        temperature=0,
        max_tokens=120,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "warmth"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")


def said(openai: OpenAI, model: str, **more: Any) -> tuple[str, str]:
    answer = openai.chat.completions.create(
        model=model, messages=QUESTION, extra_body={"temperature": 0, "max_tokens": 24, **more}
    )
    return answer.choices[0].message.content or "", answer.choices[0].finish_reason


def test_extensions_of_other_servers_are_honoured(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    model = steady_stack.model
    plain, _ = said(openai, model)
    # Only the likeliest token has the likeliest one's share.
    assert said(openai, model, temperature=2, min_p=1, seed=3)[0] == plain
    beyond, _ = said(openai, model, ignore_eos=True)
    shown, _ = said(openai, model, ignore_eos=True, skip_special_tokens=False)
    assert "<|im_end|>" not in beyond
    assert shown.startswith(f"{plain}<|im_end|>")
    third = tokenizer.encode(plain).ids[2]
    cut, reason = said(openai, model, stop_token_ids=[third])
    assert (reason, cut) == ("stop", tokenizer.decode(tokenizer.encode(plain).ids[:3]))
    assert said(openai, model, guided_choice=["Rome (I)", "Oslo?"])[0] in ("Rome (I)", "Oslo?")
    grammar = 'start: "So " CITY\nCITY: "Rome" | "Oslo"'
    assert said(openai, model, guided_grammar=grammar)[0] in ("So Rome", "So Oslo")
    loose = {"temperature": 1, "max_tokens": 20, "response_format": {"type": "json_object"}}
    assert all(said(openai, model, **loose, seed=seed)[0].startswith("{") for seed in range(4))


def test_a_prompt_is_scored_without_an_answer(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    text = "The capital of France is Paris."
    answer = openai.completions.create(
        model=steady_stack.model, prompt=text, max_tokens=0, echo=True, logprobs=1
    )
    choice = answer.choices[0]
    assert choice.text == text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == len(tokenizer.encode(text).ids)
    assert all(each < 0 for each in choice.logprobs.token_logprobs[1:])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_a_prompt_beyond_the_context_is_refused_in_openais_words(
    openai: OpenAI, steady_stack: RunningStack
) -> None:
    with pytest.raises(BadRequestError, match="This model's maximum context length is") as refusal:
        openai.completions.create(model=steady_stack.model, prompt=[5] * 9000)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "prompt")


def test_the_first_of_several_answers_is_the_one_that_comes_alone(
    openai: OpenAI, steady_stack: RunningStack
) -> None:
    def ask(n: int) -> ChatCompletion:
        return openai.chat.completions.create(
            model=steady_stack.model, messages=QUESTION, temperature=1.5, seed=5, max_tokens=24, n=n
        )

    alone, several = ask(1), ask(3)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.choices[0].message.content
    assert len(set(texts)) == 3
    assert several.usage is not None
    assert alone.usage is not None
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens


def test_a_token_with_the_lowest_bias_does_not_come(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    banned = {str(tokenizer.token_to_id(token)): -100 for token in ("ĠParis", "Paris")}
    answer = openai.chat.completions.create(
        model=steady_stack.model, messages=QUESTION, temperature=0, max_tokens=32, logit_bias=banned
    )
    assert "Paris" not in tokenizer.encode(answer.choices[0].message.content or "").tokens
    assert "ĠParis" not in tokenizer.encode(answer.choices[0].message.content or "").tokens


def test_a_stream_says_the_same_as_the_whole_answer(openai: OpenAI, steady_stack: RunningStack) -> None:
    whole = openai.chat.completions.create(
        model=steady_stack.model, messages=QUESTION, temperature=0, max_tokens=64
    )
    chunks = list(
        openai.chat.completions.create(
            model=steady_stack.model,
            messages=QUESTION,
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 5


def test_a_truncated_answer_has_the_finish_reason_length(openai: OpenAI, steady_stack: RunningStack) -> None:
    answer = openai.chat.completions.create(
        model=steady_stack.model, messages=QUESTION, temperature=0, max_completion_tokens=3
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_completions_continue_a_text(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    prompt = "The first five prime numbers are"
    answer = openai.completions.create(model=steady_stack.model, prompt=prompt, temperature=0, max_tokens=8)
    assert answer.choices[0].text.startswith(" ")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode(prompt).ids)
    streamed = openai.completions.create(
        model=steady_stack.model, prompt=prompt, temperature=0, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_a_stop_string_ends_the_text_before_it(openai: OpenAI, steady_stack: RunningStack) -> None:
    answer = openai.chat.completions.create(
        model=steady_stack.model, messages=QUESTION, temperature=0, max_tokens=64, stop=["Paris"]
    )
    text = answer.choices[0].message.content
    assert text is not None
    assert "capital of France is" in text
    assert "Par" not in text
    assert answer.choices[0].finish_reason == "stop"


def test_models_are_listed(openai: OpenAI, steady_stack: RunningStack) -> None:
    assert [model.id for model in openai.models.list()] == [steady_stack.model, StackSettings().embeddings]
    assert openai.models.retrieve(steady_stack.model).id == steady_stack.model


def test_stage_metrics_show_where_the_time_of_a_request_went(
    openai: OpenAI, steady_stack: RunningStack
) -> None:
    def lines() -> list[str]:
        with urllib.request.urlopen(f"{steady_stack.url}/metrics", timeout=patience(10)) as response:
            read: list[str] = response.read().decode().splitlines()
        return read

    def is_idle() -> bool:
        running = [line for line in lines() if line.startswith("inflight_requests_in_flight{")]
        return all(line.endswith(" 0.0") for line in running)

    def sums() -> dict[str, float]:
        of_stages = [line for line in lines() if line.startswith("inflight_stage_seconds_sum")]
        found = [line for line in of_stages if f'model="{steady_stack.model}"' in line]
        return {line.split('stage="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in found}

    wait_until(is_idle, "what was asked before is not counted yet", 30)
    before = sums()
    began_s = time.monotonic()
    openai.chat.completions.create(model=steady_stack.model, messages=QUESTION, max_tokens=32)
    # A request is counted once its stream has ended, which may be after its client has the answer.
    while (after := sums()).get("send", 0.0) == before.get("send", 0.0):
        assert not is_over(began_s, 30)
        time.sleep(0.02)
    took_s = time.monotonic() - began_s
    spent = {stage: total - before.get(stage, 0.0) for stage, total in after.items()}
    assert spent.pop("triton", 0.0) == 0, "the engine's clock is the router's"
    assert min(spent.values()) >= 0
    assert spent["prefill"] > 0
    assert spent["decode"] > 0
    assert sum(spent.values()) <= took_s


def test_ids_are_completed_as_their_text_is(
    openai: OpenAI, steady_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    prompt = "The capital of France is"
    asked: dict[str, Any] = {"model": steady_stack.model, "temperature": 0, "max_tokens": 8}
    ids = tokenizer.encode(prompt).ids
    by_text = openai.completions.create(prompt=prompt, echo=True, **asked).choices[0].text
    assert openai.completions.create(prompt=ids, echo=True, **asked).choices[0].text == by_text
    several = openai.completions.create(prompt=[ids, ids[:-1]], **asked)
    assert prompt + several.choices[0].text == by_text
    assert several.usage is not None
    assert several.usage.prompt_tokens == 2 * len(ids) - 1
    with pytest.raises(BadRequestError, match=r"prompt: there is no token 10000000; allowed: 0 to \d+"):
        openai.completions.create(prompt=[10_000_000], **asked)


def test_a_repeated_prompt_is_cached(openai: OpenAI, steady_stack: RunningStack) -> None:
    prompt = f"{time.time_ns()} " + "one two three four five six seven eight nine ten " * 8
    details = []
    tiers: tuple[Literal["flex", "priority"], ...] = ("flex", "priority")
    for tier in tiers:
        answer = openai.chat.completions.create(
            model=steady_stack.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=2,
            stop="never to be seen",
            service_tier=tier,
        )
        assert answer.service_tier == tier
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        details.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert details[0] < 64
    assert details[1] >= 64
