"""How many tokens texts have for a model: by its own tokenizer where there is one, else by their length."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from router.content.conversations.items import Item
    from router.routing.models import ServedModel

log = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 3
_LIMIT = re.compile(r"at most (\d{1,9})")


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

    async def is_exact(self, model: str) -> bool:
        return await self._tokenizer(model) is not None

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
