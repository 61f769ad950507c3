"""The past is cut to what fits: sizes are a guess, the prompt decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.cutter import (
    ContextLengths,
    Cutter,
    Past,
    room_for_prompt,
)
from router.content.conversations.items import Item, message_item, text_part
from router.core.messages import Part, image_part
from router.request.token_counting import Known, Tokenizers, estimate, parts
from router.request.tokenizer_program import COUNT
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline
from tests.router.chat.pictures import IMAGE_TOKENS, seer
from tests.tiers import examples

FRAME = "<turn> "


def said(role: str, text: str) -> Item:
    return message_item(role, [text_part(role, text)], text)


def turns(count: int, words: int) -> list[Item]:
    return [said(role, "word " * words) for _ in range(count) for role in ("user", "assistant")]


def rendered(items: Sequence[Item]) -> str:
    return "".join(f"{FRAME}{item.text}" for item in items)


async def render(items: Sequence[Item]) -> str:
    return rendered(items)


def model(context_tokens: int) -> ServedModel:
    return ServedModel("tiny", FakePipeline(), context_tokens=context_tokens)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """With a tokenizer that makes a token of each word and of each mark."""
    tokenizer = Tokenizer(WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
async def tokenizers(checkpoint: Path) -> AsyncIterator[Tokenizers]:
    opened = Tokenizers({"tiny": checkpoint})
    yield opened
    await opened.close()


async def test_a_prompt_of_few_bytes_is_not_tokenized(tmp_path: Path) -> None:
    """No tokenizer is read for it: this one would fail."""
    (tmp_path / "tokenizer.json").mkdir()
    cutter = Cutter(Tokenizers({"tiny": tmp_path}), ContextLengths())
    past = Past(turns(2, 3), [said("user", "word")])
    cut = await cutter.cut("acme", model(1000), past, 10, render)
    assert list(cut.shown) == [*past.history, *past.new]
    assert cut.tokens is None


async def test_the_oldest_turns_are_dropped_until_the_prompt_fits(tokenizers: Tokenizers) -> None:
    cutter = Cutter(tokenizers, ContextLengths())
    past = Past([said("system", "word"), *turns(10, 20)], [said("user", "word")])
    cut = await cutter.cut("acme", model(200), past, 50, render)
    assert cut.tokens is not None
    assert cut.tokens <= 150
    assert cut.shown[0].id == past.history[0].id
    assert cut.shown[-1].id == past.new[0].id
    assert 0 < len(cut.shown) - 2 < 20
    assert len(cut.shown) % 2 == 0
    assert {item.counted_by for item in cut.counted} == {"tiny"}


async def test_images_take_their_part_of_the_room(tokenizers: Tokenizers) -> None:
    cutter, seeing = Cutter(tokenizers, ContextLengths()), replace(seer(), context_tokens=200)
    shown = message_item("user", [], "word", parts=[image_part("x"), Part("text", "word")])
    past = Past([shown, said("assistant", "word")] * 4, [said("user", "word")])
    cut = await cutter.cut("acme", seeing, past, 50, render)
    assert sum(item.images for item in cut.shown) == 2  # of 50 tokens each, in a room of 150
    assert cut.tokens is not None
    assert 2 * IMAGE_TOKENS < cut.tokens <= 150


async def test_known_sizes_are_not_counted_again(tokenizers: Tokenizers) -> None:
    cutter = Cutter(tokenizers, ContextLengths())
    first = await cutter.cut("acme", model(200), Past(turns(10, 20), [said("user", "word")]), 50, render)
    again = await cutter.cut("acme", model(200), Past(first.counted, [said("user", "word")]), 50, render)
    assert again.counted == []


async def test_new_input_that_does_not_fit_alone_is_refused(tokenizers: Tokenizers) -> None:
    cutter = Cutter(tokenizers, ContextLengths())
    with pytest.raises(
        InflightError, match=r"length is 100 tokens.* has 303 tokens or more; at most 50 fit"
    ) as caught:
        await cutter.cut("acme", model(100), Past(turns(3, 5), [said("user", "word " * 300)]), 50, render)
    assert caught.value.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "input"


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.integers(0, 30)), max_size=12),
    st.integers(40, 400),
)
def test_any_conversation_is_cut_to_fit_or_refused(before: list[tuple[str, int]], room: int) -> None:
    history = [said(role, "w " * words) for role, words in before]
    past = Past(history, [said("user", "w")])
    cutting = Cutter(Tokenizers({}), ContextLengths()).cut("acme", model(room), past, 0, render)
    must_stay = [*(item for item in history if item.role == "system"), *past.new]
    if estimate(rendered(must_stay)) > room:
        with pytest.raises(InflightError, match="at most"):
            asyncio.run(cutting)
    else:
        made = asyncio.run(cutting)
        assert estimate(made.prompt) <= room
        assert made.shown[-1].id == past.new[0].id


async def test_the_context_limit_in_an_engines_error_is_remembered(tokenizers: Tokenizers) -> None:
    contexts = ContextLengths()
    cutter = Cutter(tokenizers, contexts)
    served = model(8192)
    past = Past(turns(40, 20), [said("user", "word")])
    cut = await cutter.cut("acme", served, past, 64, render)
    refusal = InflightError(
        ErrorKind.CONTEXT_LENGTH_EXCEEDED,
        "the prompt has 2000 tokens; prompt and answer together may have at most 512",
    )
    assert await cutter.lessened("acme", served, cut, refusal) is None
    assert contexts.of(served) == 512
    again = await cutter.cut("acme", served, past, 64, render)
    assert again.tokens is not None
    assert again.tokens <= 448


async def test_a_context_error_without_a_number_shortens_the_prompt_further(tokenizers: Tokenizers) -> None:
    cutter = Cutter(tokenizers, ContextLengths())
    past = Past(turns(10, 20), [said("user", "word")])
    cut = await cutter.cut("acme", model(8192), past, 64, render)
    room = await cutter.lessened(
        "acme", model(8192), cut, InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long")
    )
    assert room is not None
    again = await cutter.cut("acme", model(8192), past, 64, render, room)
    assert len(again.shown) < len(cut.shown)


async def test_an_unreadable_tokenizer_leaves_an_estimate(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    tokenizers = Tokenizers({"tiny": tmp_path})
    assert await tokenizers.count("acme", "tiny", "hello there") == estimate("hello there")
    assert await tokenizers.count("acme", "unknown", "") == 1
    await tokenizers.close()


async def test_tokens_are_counted_by_the_models_tokenizer(tokenizers: Tokenizers) -> None:
    counts = [await tokenizers.count("acme", "tiny", text) for text in ("word word", "", "word, word")]
    assert counts == [2, 0, 3]


async def test_a_long_text_is_counted_in_parts_and_no_further_than_is_asked(tokenizers: Tokenizers) -> None:
    text = "word " * 50_000
    assert "".join(parts(text)) == text
    assert await tokenizers.count("acme", "tiny", text) == 50_000
    assert 10 < await tokenizers.count("acme", "tiny", text, most=10) < 10_000


def spy_on_counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are counted."""
    counted: list[str] = []
    real = Tokenizers._ask

    def ask(self: Tokenizers, tenant: str, kind: bytes, known: Known, *given: Any) -> Any:
        if kind == COUNT:
            counted.append(given[0])
        return real(self, tenant, kind, known, *given)

    monkeypatch.setattr(Tokenizers, "_ask", ask)
    return counted


async def test_input_that_cannot_fit_by_its_bytes_is_refused_without_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizers = Tokenizers({"tiny": tmp_path})
    assert await tokenizers.least("tiny", 1000) == 500
    counts = spy_on_counts(monkeypatch)
    cutter = Cutter(tokenizers, ContextLengths())
    with pytest.raises(InflightError, match="has 150 tokens or more; at most 100 fit"):
        await cutter.cut("acme", model(150), Past([], [said("user", "ab" * 150)]), 50, render)
    assert counts == []
    await tokenizers.close()


async def test_a_long_text_that_does_not_fit_is_refused_before_a_prompt_is_made_of_it(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(items: Sequence[Item]) -> str:
        raise AssertionError("a prompt was made")

    counts = spy_on_counts(monkeypatch)
    with pytest.raises(InflightError, match="at most 50 fit") as caught:
        await Cutter(tokenizers, ContextLengths()).cut(
            "acme", model(100), Past(turns(3, 5), [said("user", "word " * 20_000)]), 50, fail
        )
    assert caught.value.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert len(counts) == 1


async def test_a_long_text_that_fits_is_counted_once_and_shown(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = spy_on_counts(monkeypatch)
    text = "word " * 10_000
    cut = await Cutter(tokenizers, ContextLengths()).cut(
        "acme", model(12_000), Past(turns(1, 3_000), [said("user", text)]), 50, render
    )
    assert [item.text for item in cut.shown] == [text]
    assert (cut.new[0].tokens, cut.new[0].counted_by) == (10_000, "tiny")
    assert sum(map(len, counts)) < 3 * len(text)


async def test_of_a_long_past_no_more_is_counted_than_could_be_shown(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = spy_on_counts(monkeypatch)
    past = Past(turns(500, 40), [said("user", "word")])
    cut = await Cutter(tokenizers, ContextLengths()).cut("acme", model(200), past, 50, render)
    assert cut.shown[-1].id == past.new[0].id
    assert len(counts) < 20
    assert sum(map(len, counts)) < 10_000


@pytest.mark.parametrize(
    ("context", "asked", "room"), [(8192, None, 7168), (1000, None, 750), (1000, 900, 100)]
)
def test_room_is_left_for_an_answer(context: int, asked: int | None, room: int) -> None:
    assert room_for_prompt(context, asked) == room
