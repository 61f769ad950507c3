"""Responses and conversations on the real stack: what was said is remembered, and cut to what fits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types.responses import ResponseInputItemParam

from benchmarks.stack import RunningStack
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
