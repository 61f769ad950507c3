"""Responses and conversations on the real stack: what was said is remembered, and cut to what fits."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import ResponseInputItemParam

from benchmarks.stack import RunningStack
from tests.pace import patience
from tests.router.content.documents.pdf_files import pdf

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def openai(stack: RunningStack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_streamed_response_is_stored_and_continued(openai: OpenAI, stack: RunningStack) -> None:
    asked = "Name the capital of France."
    with openai.responses.stream(
        model=stack.model, input=asked, temperature=0, max_output_tokens=40
    ) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        first = stream.get_final_response()
    assert "Paris" in streamed
    assert first.output_text == streamed
    assert openai.responses.retrieve(first.id).output_text == streamed
    second = openai.responses.create(
        model=stack.model,
        input="Say that again.",
        previous_response_id=first.id,
        temperature=0,
        max_output_tokens=40,
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_a_conversation_longer_than_the_context_is_cut(openai: OpenAI, stack: RunningStack) -> None:
    """The default model reads 8,192 tokens: the first turn alone has more, the rules and the second stay."""
    turns: list[ResponseInputItemParam] = [
        {"role": "system", "content": "You know geography."},
        {"role": "user", "content": "the quick brown fox jumps " * 2000},
        {"role": "assistant", "content": "Over the lazy dog."},
        {"role": "user", "content": "I like France."},
        {"role": "assistant", "content": "So do I."},
    ]
    conversation = openai.conversations.create(items=turns)
    answer = openai.responses.create(
        model=stack.model,
        input="Name its capital.",
        conversation=conversation.id,
        temperature=0,
        max_output_tokens=8,
    )
    assert answer.usage is not None
    assert 30 < answer.usage.input_tokens < 100
    assert len(list(openai.conversations.items.list(conversation.id))) == len(turns) + 2


def test_a_pdf_is_read(openai: OpenAI, stack: RunningStack) -> None:
    file = openai.files.create(file=("note.pdf", pdf("The secret word is marble.")), purpose="user_data")
    answer = openai.responses.create(
        model=stack.model,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "file_id": file.id},
                    {"type": "input_text", "text": "What is the secret word?"},
                ],
            }
        ],
        temperature=0,
        max_output_tokens=30,
    )
    assert "marble" in answer.output_text.lower()
    openai.files.delete(file.id)


def test_tokens_are_counted_as_the_engine_counts_them(openai: OpenAI, stack: RunningStack) -> None:
    asked = "Wie heißt die Hauptstadt von Frankreich? 🗼"
    counted = openai.responses.input_tokens.count(model=stack.model, input=asked)
    messages = [{"role": "user", "content": asked}]
    told = httpx.post(f"{stack.url}/tokenize", json={"messages": messages}, timeout=patience(30)).json()
    answer = openai.responses.create(model=stack.model, input=asked, max_output_tokens=1)
    assert answer.usage is not None
    assert counted.input_tokens == told["count"] == answer.usage.input_tokens
    back = httpx.post(f"{stack.url}/detokenize", json={"tokens": told["tokens"]}, timeout=patience(30)).json()
    assert asked in back["prompt"]


def test_a_background_response_is_read_on_after_a_disconnect(openai: OpenAI, stack: RunningStack) -> None:
    asked = {"model": stack.model, "input": "Count to ten.", "temperature": 0, "max_output_tokens": 40}
    whole = openai.responses.create(**asked).output_text
    stream = openai.responses.create(**asked, background=True, stream=True)
    seen = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            stream.close()
            break
    response_id = seen[0].response.id
    rest = list(openai.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    assert openai.responses.retrieve(response_id).output_text == whole
