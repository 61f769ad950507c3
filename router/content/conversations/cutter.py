"""Cuts the past to what fits a model beside the new input and the answer, by counting tokens."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import Item
from router.content.conversations.window import fit
from router.routing.models import ServedModel

log = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 3
_LIMIT = re.compile(r"at most (\d{1,9})")
# Left for an answer whose length nobody limited.
_ANSWER_TOKENS = 1024
_ANSWER_SHARE = 4
# A tokenizer gives no more tokens than a text has bytes, but for a few that it adds by itself.
_SPECIAL_TOKENS = 8
# How much less is tried when the engine refuses without a number.
_LESS = 0.75


def estimate(text: str) -> int:
    """Rather too many: a turn dropped for nothing costs less than a request refused."""
    return len(text.encode()) // _BYTES_PER_TOKEN + 1


class Tokenizers:
    """By model, from `tokenizer.json` in its checkpoint; loaded when first needed, all work in threads."""

    def __init__(self, checkpoints: Mapping[str, Path]) -> None:
        self._checkpoints = checkpoints
        self._loading: dict[str, asyncio.Task[Any]] = {}

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        tokenizer = await self._tokenizer(model)
        if tokenizer is None:
            return [estimate(text) for text in texts]
        return await asyncio.to_thread(_count, tokenizer, list(texts))

    async def counted(self, model: str, items: Sequence[Item]) -> list[Item]:
        """The same items, each with its size for this model; sizes that are known are not counted again."""
        unknown = [index for index, item in enumerate(items) if item.counted_by != model]
        if not unknown:
            return list(items)
        sizes = await self.count(model, [items[index].size_text for index in unknown])
        counted = list(items)
        for index, size in zip(unknown, sizes, strict=True):
            counted[index] = msgspec.structs.replace(items[index], tokens=size, counted_by=model)
        return counted

    async def _tokenizer(self, model: str) -> Any:
        task = self._loading.get(model)
        if task is None:
            path = self._checkpoints.get(model)
            task = asyncio.ensure_future(asyncio.to_thread(_load, path))
            self._loading[model] = task
        # Shielded: a request that is given up must not take the tokenizer from the others.
        return await asyncio.shield(task)


def _load(checkpoint: Path | None) -> Any:
    file = None if checkpoint is None else checkpoint / "tokenizer.json"
    if file is None or not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # the library raises nothing narrower
        log.exception("%s cannot be read: tokens are estimated", file.name)
        return None


def _count(tokenizer: Any, texts: list[str]) -> list[int]:
    return [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


class ContextLengths:
    """What fits a model: as its checkpoint says, or less where the engine has said so."""

    def __init__(self) -> None:
        self._learned: dict[str, int] = {}

    def of(self, model: ServedModel) -> int:
        return min(model.context_tokens, self._learned.get(model.name, model.context_tokens))

    def learn(self, model: ServedModel, refusal: str) -> bool:
        """Reads the engine's limit out of its refusal; tells whether it was news."""
        found = _LIMIT.search(refusal)
        if found is None or not 0 < int(found[1]) < self.of(model):
            return False
        self._learned[model.name] = int(found[1])
        return True


@dataclass(frozen=True, slots=True)
class Past:
    """`history` is what may be dropped, `new` is not."""

    history: Sequence[Item]
    new: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Cut:
    """What the model is shown. `counted` are items of the history whose size was not known before."""

    prompt: str
    shown: Sequence[Item]
    new: Sequence[Item]
    tokens: int | None = None
    counted: Sequence[Item] = ()


def room_for_prompt(context_tokens: int, max_output_tokens: int | None) -> int:
    """What is left beside the answer, of a length that was asked for or of a usual one."""
    usual = min(_ANSWER_TOKENS, context_tokens // _ANSWER_SHARE)
    return context_tokens - (usual if max_output_tokens is None else max_output_tokens)


class Cutter:
    """Counts no more than it must: a prompt of few bytes fits whatever its tokens are."""

    def __init__(self, tokenizers: Tokenizers, contexts: ContextLengths) -> None:
        self._tokenizers = tokenizers
        self._contexts = contexts

    async def cut(
        self,
        model: ServedModel,
        past: Past,
        max_output_tokens: int | None,
        render: Callable[[Sequence[Item]], str],
        room_tokens: int | None = None,
    ) -> Cut:
        """`render` makes the prompt; sizes of items are a first guess, that of the prompt decides."""
        context = self._contexts.of(model)
        room = room_for_prompt(context, max_output_tokens)
        room = room if room_tokens is None else min(room, room_tokens)
        everything = [*past.history, *past.new]
        prompt = render(everything)
        if len(prompt.encode()) + _SPECIAL_TOKENS <= room:
            return Cut(prompt, everything, past.new)
        items = await self._tokenizers.counted(model.name, everything)
        history, new = items[: len(past.history)], items[len(past.history) :]
        counted = [item for item, was in zip(history, past.history, strict=True) if item is not was]
        entries = [item.entry(index >= len(history)) for index, item in enumerate(items)]
        budget = room
        while True:
            window = fit(entries, budget)
            shown = [items[index] for index in window.kept]
            prompt = render(shown)
            [tokens] = await self._tokenizers.count(model.name, [prompt])
            if tokens <= room:
                return Cut(prompt, shown, new, tokens, counted)
            if not window.fits or fit(entries, 0).kept == window.kept:
                raise _too_long(tokens, room, context)
            # At least one turn less each time, and at once as many as the guess was wrong by.
            budget = window.tokens - max(1, tokens - room)

    async def lessened(self, model: ServedModel, cut: Cut, refusal: InflightError) -> int | None:
        """The room to try again with after the engine refused a prompt; None where its word is new enough."""
        if self._contexts.learn(model, refusal.message):
            return None
        tokens = cut.tokens
        if tokens is None:
            [tokens] = await self._tokenizers.count(model.name, [cut.prompt])
        return int(tokens * _LESS)


def _too_long(tokens: int, room: int, context: int) -> InflightError:
    message = (
        f"the new input, with instructions and system messages, has {tokens} tokens; at most "
        f"{max(room, 0)} fit beside the answer into the {context} tokens of this model"
    )
    return InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, message, "input")
