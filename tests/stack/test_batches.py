"""Files and batches with the official client against the real stack."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types import Batch

from benchmarks.stack import RunningStack
from tests.pace import is_over
from tests.waiting import wait_until

pytestmark = pytest.mark.stack

OVER = ("failed", "completed", "expired", "cancelled")


@pytest.fixture(scope="module")
def openai(stack: RunningStack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def make(openai: OpenAI, stack: RunningStack, count: int, max_tokens: int) -> Batch:
    lines = [
        json.dumps(
            {
                "custom_id": f"question-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": stack.model,
                    "messages": [{"role": "user", "content": f"What is {number} plus {number}?"}],
                    "max_tokens": max_tokens,
                    "ignore_eos": True,
                },
            }
        )
        for number in range(count)
    ]
    file = openai.files.create(file=("questions.jsonl", "\n".join(lines).encode()), purpose="batch")
    return openai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def until(openai: OpenAI, batch: Batch, statuses: tuple[str, ...], timeout_s: float = 120.0) -> Batch:
    began_s = time.monotonic()
    while batch.status not in statuses:
        assert not is_over(began_s, timeout_s), batch
        time.sleep(0.2)
        batch = openai.batches.retrieve(batch.id)
    return batch


def answers(openai: OpenAI, file_id: str | None) -> list[dict[str, object]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in openai.files.content(file_id).text.splitlines()]


def test_a_batch_of_questions_becomes_a_file_of_answers(openai: OpenAI, stack: RunningStack) -> None:
    ended = until(openai, make(openai, stack, 20, 4), OVER)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert (ended.request_counts.completed, ended.request_counts.failed) == (20, 0)
    assert ended.usage is not None
    assert ended.usage.output_tokens == 80
    lines = answers(openai, ended.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"question-{number}" for number in range(20)]
    assert all(line["error"] is None for line in lines)


def test_a_batch_is_cancelled_and_frees_the_engine(openai: OpenAI, stack: RunningStack) -> None:
    batch = until(openai, make(openai, stack, 20, 400), ("in_progress", *OVER))
    openai.batches.cancel(batch.id)
    ended = until(openai, batch, OVER)
    assert ended.status == "cancelled"
    done, dropped = answers(openai, ended.output_file_id), answers(openai, ended.error_file_id)
    assert len(done) + len(dropped) == 20
    wait_until(lambda: stack.used_blocks() == 0)
