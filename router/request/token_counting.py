"""Counts tokens with the models' own tokenizers: in turns that tenants share, no more than is needed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import byte_tokens
from router.request.decoding import invalid
from router.request.fair_pool import FairPool
from router.routing.models import Registry, ServedModel

log = logging.getLogger(__name__)

# What is counted in one turn: some tens of milliseconds, in which nobody else waits for the interpreter.
_TURN_CHARACTERS = 32_768
_AT_ONCE = 2
_WAITING_EACH = 16
# By which factor a tokenizer may shorten a text before it looks at it: composed characters have a third of
# the bytes of what they are composed of. Other tokenizers may drop or replace any part of it.
_SHORTENING = {"NoneType": 1, "NFC": 3}


def estimate(text: str) -> int:
    """Rather too many: a turn dropped for nothing costs less than a request refused."""
    return byte_tokens(len(text.encode()))


@dataclass(frozen=True, slots=True)
class Loaded:
    """`most_bytes` are those of a text that one token stands for at most; None where that is not known."""

    tokenizer: Any
    most_bytes: int | None


class Tokenizers:
    """By model, from `tokenizer.json` in its checkpoint; all work in threads. Loaded when first needed."""

    @classmethod
    def of(cls, models: Registry, share: ProcessorShare | None = None) -> Tokenizers:
        places = {model.name: model.checkpoint_dir for model in models}
        return cls({name: place for name, place in places.items() if place is not None}, share)

    def __init__(self, checkpoints: Mapping[str, Path], share: ProcessorShare | None = None) -> None:
        self._checkpoints = checkpoints
        self._loading: dict[Path | None, asyncio.Task[Loaded | None]] = {}
        self._pool = FairPool("tokens to be counted", _AT_ONCE, _WAITING_EACH, share)

    async def load(self) -> None:
        """All of them, before anybody is served: nothing else runs while the library reads one."""
        for checkpoint in dict.fromkeys(self._checkpoints.values()):
            await self._loaded(checkpoint)

    async def count(self, tenant: str, model: str, text: str, most: int | None = None) -> int:
        """Of a long text a few too many rather than too few, as it is counted in parts.

        With `most`, more than that is not counted: any greater number means that there are more.
        """
        loaded = await self._loaded(self._checkpoints.get(model))
        return estimate(text) if loaded is None else await self._count(tenant, loaded, text, most)

    async def _count(self, tenant: str, loaded: Loaded, text: str, most: int | None = None) -> int:
        total = 0
        for part in parts(text):
            total += await self._pool.run(tenant, _count, loaded.tokenizer, part)
            if most is not None and total > most:
                break
        return total

    # Of one release, by its own tokenizer; UNSUPPORTED where it has none

    async def count_for(self, tenant: str, served: ServedModel, text: str) -> int:
        """Exactly, where the text is no longer than a turn's."""
        return await self._count(tenant, await self._of(served), text)

    async def encode(
        self, tenant: str, served: ServedModel, text: str, add_special_tokens: bool
    ) -> list[int]:
        """Whole, in one turn: parts would not have the same tokens."""
        tokenizer = (await self._of(served)).tokenizer
        return await self._pool.run(tenant, _encode, tokenizer, text, add_special_tokens)

    async def names(self, tenant: str, served: ServedModel, ids: Sequence[int]) -> list[str]:
        """Of tokens, as the vocabulary has them."""
        tokenizer = (await self._of(served)).tokenizer
        return await self._pool.run(tenant, lambda: [tokenizer.id_to_token(each) for each in ids])

    async def decode(self, tenant: str, served: ServedModel, ids: Sequence[int]) -> str:
        """Raises INVALID_REQUEST for an id that is no token's."""
        return await self._pool.run(tenant, _decode, (await self._of(served)).tokenizer, ids)

    async def _of(self, served: ServedModel) -> Loaded:
        loaded = await self._loaded(served.checkpoint_dir)
        if loaded is None:
            message = f"the checkpoint of '{served.name}' has no tokenizer.json: its tokens are not known"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "model")
        return loaded

    # By the model's name

    async def least(self, model: str, size_bytes: int) -> int:
        """A text of so many bytes has no fewer tokens than this."""
        loaded = await self._loaded(self._checkpoints.get(model))
        return 0 if loaded is None or loaded.most_bytes is None else size_bytes // loaded.most_bytes

    async def exceeds(self, tenant: str, model: str, text: str, most: int) -> bool:
        """Whether a text has more tokens; never by an estimate."""
        if await self._loaded(self._checkpoints.get(model)) is None:
            return False
        return await self.count(tenant, model, text, most) > most

    async def _loaded(self, checkpoint: Path | None) -> Loaded | None:
        task = self._loading.get(checkpoint)
        if task is None:
            task = asyncio.ensure_future(asyncio.to_thread(_load, checkpoint))
            self._loading[checkpoint] = task
        # Shielded: a request that is given up must not take the tokenizer from the others.
        return await asyncio.shield(task)


def parts(text: str) -> Iterator[str]:
    """Cut before blanks, where tokens begin, if there are any."""
    start = 0
    while len(text) - start > _TURN_CHARACTERS:
        end = start + _TURN_CHARACTERS
        blank = text.rfind(" ", start + _TURN_CHARACTERS // 2, end)
        end = end if blank < 0 else blank
        yield text[start:end]
        start = end
    yield text[start:]


def _load(checkpoint: Path | None) -> Loaded | None:
    file = None if checkpoint is None else checkpoint / "tokenizer.json"
    if file is None or not file.is_file():
        return None
    from tokenizers import Tokenizer

    # A turn is one thread's: the library would take all processors for one tenant.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return Loaded(tokenizer, _most_bytes(tokenizer))
    except Exception:  # the library raises nothing narrower
        log.exception("%s cannot be read: tokens are estimated", file.name)
        return None


def _most_bytes(tokenizer: Any) -> int | None:
    shortening = _SHORTENING.get(type(tokenizer.normalizer).__name__)
    if shortening is None or "ByteLevel" not in str(tokenizer.pre_tokenizer):
        return None
    # Byte-level tokens are written with a character for each byte, of which some take two themselves.
    return shortening * max(len(token.encode()) for token in tokenizer.get_vocab())


def _count(tokenizer: Any, text: str) -> int:
    # Unlike `encode`, this lets other threads run meanwhile.
    [encoded] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return len(encoded)


def _encode(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    [encoded] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoded.ids)


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    size = tokenizer.get_vocab_size()
    for index, token in enumerate(ids):
        if token >= size and tokenizer.id_to_token(token) is None:
            raise invalid(f"tokens[{index}]: there is no token {token}", f"tokens[{index}]")
    # Unlike `decode`, this lets other threads run meanwhile.
    [text] = tokenizer.decode_batch([ids], skip_special_tokens=False)
    return str(text)
