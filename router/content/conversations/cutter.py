"""Cuts the past to what fits a model beside the new input and the answer, by counting tokens."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import Item
from router.content.conversations.window import fit
from router.request.token_counting import Tokenizers, estimate
from router.routing.models import ServedModel

_LIMIT = re.compile(r"(?:at most|maximum context length is) (\d{1,9})")
# Left for an answer whose length nobody limited.
_ANSWER_TOKENS = 1024
_ANSWER_SHARE = 4
# A tokenizer gives no more tokens than a text has bytes, but for a few that it adds by itself.
_SPECIAL_TOKENS = 8
_LONG_CHARACTERS = 32_768
# How much less is tried when the engine refuses without a number.
_LESS = 0.75


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


def image_tokens(model: ServedModel, items: Sequence[Item] | None = None) -> int:
    """How many tokens the images of these are at most, or one image alone."""
    one = 0 if model.vision is None else model.vision.image_tokens
    return one if items is None else one * sum(item.images for item in items)


class Cutter:
    """Counts no more than it must: a prompt of few bytes fits whatever its tokens are."""

    def __init__(self, tokenizers: Tokenizers, contexts: ContextLengths) -> None:
        self._tokenizers = tokenizers
        self._contexts = contexts

    async def cut(
        self,
        tenant: str,
        model: ServedModel,
        past: Past,
        max_output_tokens: int | None,
        render: Callable[[Sequence[Item]], Awaitable[str]],
        room_tokens: int | None = None,
    ) -> Cut:
        """`render` makes the prompt; sizes of items are a first guess, that of the prompt decides."""
        context = self._contexts.of(model)
        room = room_for_prompt(context, max_output_tokens)
        room = room if room_tokens is None else min(room, room_tokens)
        everything = [*past.history, *past.new]
        seen = image_tokens(model, everything)
        if sum(len(item.size_text) for item in everything) + seen <= room:
            prompt = await render(everything)
            if len(prompt.encode()) + _SPECIAL_TOKENS + seen <= room:
                return Cut(prompt, everything, past.new)
        await self._check_new(model, past.new, room, context)
        past = Past(past.history, await self._fitting(tenant, model, past.new, room))
        items = await self._counted(tenant, model.name, past, room)
        history, new = items[: len(past.history)], items[len(past.history) :]
        pairs = zip(history, past.history, strict=True)
        counted = [item for item, was in pairs if item is not was and item.counted_by]
        each_image = image_tokens(model)
        entries = [item.entry(index >= len(history), each_image) for index, item in enumerate(items)]
        budget = room
        while True:
            window = fit(entries, budget)
            shown = [items[index] for index in window.kept]
            prompt = await render(shown)
            tokens = await self._tokenizers.count(tenant, model.name, prompt, room)
            tokens += image_tokens(model, shown)
            if tokens <= room:
                return Cut(prompt, shown, new, tokens, counted)
            if not window.fits or fit(entries, 0).kept == window.kept:
                raise _too_long(tokens, room, context)
            # At least one turn less each time, and at once as many as the guess was wrong by.
            budget = window.tokens - max(1, tokens - room)

    async def check_whole(self, model: ServedModel, items: Sequence[Item]) -> None:
        """Refuses what cannot fit by its bytes alone; nothing is counted."""
        context = self._contexts.of(model)
        await self._check_new(model, items, context, context)

    async def lessened(self, tenant: str, model: ServedModel, cut: Cut, refusal: InflightError) -> int | None:
        """The room to try again with after the engine refused a prompt; None where its word is new enough."""
        if self._contexts.learn(model, refusal.message):
            return None
        tokens = cut.tokens
        if tokens is None:
            tokens = await self._tokenizers.count(tenant, model.name, cut.prompt)
        return int(tokens * _LESS)

    async def _check_new(self, model: ServedModel, items: Sequence[Item], room: int, context: int) -> None:
        characters = sum(len(item.size_text) for item in items)
        if characters > room and (least := await self._tokenizers.least(model.name, characters)) > room:
            raise _too_long(least, room, context)

    async def _fitting(
        self, tenant: str, model: ServedModel, new: Sequence[Item], room: int
    ) -> Sequence[Item]:
        """Refuses a long text that does not fit even alone, before a prompt is made of it."""
        fitting = []
        for item in new:
            if item.role == "user" and len(item.size_text) > _LONG_CHARACTERS:
                tokens = await self._tokenizers.count(tenant, model.name, item.size_text, room)
                if tokens > room:
                    raise _too_long(tokens, room, self._contexts.of(model))
                item = msgspec.structs.replace(item, tokens=tokens, counted_by=model.name)
            fitting.append(item)
        return fitting

    async def _counted(self, tenant: str, model: str, past: Past, room: int) -> list[Item]:
        """First what must stay, then the past from its end; what is too old to be shown is only estimated."""
        indexed = list(enumerate([*past.history, *past.new]))
        stays = [each for each in indexed if each[0] >= len(past.history) or each[1].role == "system"]
        others = [each for each in reversed(indexed[: len(past.history)]) if each[1].role != "system"]
        order = [*stays, *others]
        counted = await self._sizes(tenant, model, [item for _, item in order], room)
        found = {index: item for (index, _), item in zip(order, counted, strict=True)}
        return [_sized(found[index], model) for index, _ in indexed]

    async def _sizes(self, tenant: str, model: str, items: Sequence[Item], most: int) -> list[Item]:
        """The same items, each with its size for this model; sizes that are known are not counted again.

        From the first item on, until all together have more than `most`: the others stay as they are.
        """
        counted = list(items)
        total = 0
        for index, item in enumerate(items):
            if total > most:
                break
            if item.counted_by == model:
                total += item.tokens or 0
                continue
            size = await self._tokenizers.count(tenant, model, item.size_text, most)
            total += size
            if size <= most:  # else there may be more
                counted[index] = msgspec.structs.replace(item, tokens=size, counted_by=model)
        return counted


def _sized(item: Item, model: str) -> Item:
    if item.counted_by == model:
        return item
    return msgspec.structs.replace(item, tokens=estimate(item.size_text), counted_by="")


def _too_long(tokens: int, room: int, context: int) -> InflightError:
    message = (
        f"This model's maximum context length is {context} tokens. However, the new input, with instructions "
        f"and system messages, has {tokens} tokens or more; at most {max(room, 0)} fit beside the answer. "
        "Please reduce the length of the input."
    )
    return InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, message, "input")
