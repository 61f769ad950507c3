"""A prompt that no model could read costs its own tenant a look at its beginning, and Triton nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from python_backend.wire.errors import ErrorKind, InflightError
from router.request.prompt_lengths import PromptLengths
from router.request.token_counting import Known, Tokenizers
from router.request.tokenizer_program import COUNT
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline
from tests.router.running import RunningRouter

CONTEXT = 1000
SERVED = ServedModel("tiny", FakePipeline(), context_tokens=CONTEXT)


@pytest.fixture
async def tokenizers(tmp_path: Path) -> AsyncIterator[Tokenizers]:
    tokenizer = Tokenizer(WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    opened = Tokenizers({"tiny": tmp_path})
    yield opened
    await opened.close()


async def test_a_prompt_of_far_too_many_tokens_is_refused_by_its_beginning(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    real = Tokenizers._ask

    def ask(self: Tokenizers, tenant: str, kind: bytes, known: Known, *given: Any) -> Any:
        if kind == COUNT:
            counted.append(given[0])
        return real(self, tenant, kind, known, *given)

    monkeypatch.setattr(Tokenizers, "_ask", ask)
    with pytest.raises(InflightError, match="maximum context length is 1000 tokens") as refused:
        await PromptLengths(tokenizers).check(SERVED, ["word " * 200_000], "acme")
    assert refused.value.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert sum(map(len, counted)) < 50_000


async def test_few_tokens_or_no_tokenizer_leave_it_to_the_engine(tokenizers: Tokenizers) -> None:
    await PromptLengths(tokenizers).check(SERVED, ["w" * 100_000], "acme")
    await PromptLengths(Tokenizers({})).check(SERVED, ["word " * 200_000], "acme")


async def test_every_endpoint_refuses_it_before_triton_is_asked(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exceeds(self: Tokenizers, *given: object) -> bool:
        return True

    monkeypatch.setattr(Tokenizers, "exceeds", exceeds)
    text = "word " * 150_000
    for response in (
        await router.chat(messages=[{"role": "user", "content": text}]),
        await router.complete(prompt=text),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert router.pipeline.calls == []
