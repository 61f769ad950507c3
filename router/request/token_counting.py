"""Counts tokens with the models' own tokenizers: in turns that tenants share, no more than is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import byte_tokens
from router.core.program_pool import BrokenProgram, ProgramPool
from router.core.side_work import SideWork
from router.request.decoding import invalid
from router.request.tokenizer_program import COUNT, DECODE, ENCODE, LOAD, NAMES
from router.routing.models import Registry, ServedModel

log = logging.getLogger(__name__)

_PROGRAM = Path(__file__).with_name("tokenizer_program.py")
# What is counted in one turn: some tens of milliseconds.
_TURN_CHARACTERS = 32_768
_WAITING_EACH = 16


def estimate(text: str) -> int:
    """Rather too many: a turn dropped for nothing costs less than a request refused."""
    return byte_tokens(len(text.encode()))


@dataclass(frozen=True, slots=True)
class Known:
    """A tokenizer that can be read; `most_bytes` of a text are one token at most, None where nobody knows."""

    file: str
    most_bytes: int | None


class Tokenizers:
    """By model, from `tokenizer.json` in its checkpoint, in programs beside this one; read when needed."""

    @classmethod
    def of(
        cls, models: Registry, share: ProcessorShare | None = None, side_work: SideWork | None = None
    ) -> Tokenizers:
        places = {model.name: model.checkpoint_dir for model in models}
        return cls({name: place for name, place in places.items() if place is not None}, share, side_work)

    def __init__(
        self,
        checkpoints: Mapping[str, Path],
        share: ProcessorShare | None = None,
        side_work: SideWork | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._looking: dict[Path | None, asyncio.Task[Known | None]] = {}
        self._programs = ProgramPool(
            "tokens to be counted", _PROGRAM, (), _WAITING_EACH, share, side_work, ends_turns=True
        )

    async def load(self) -> None:
        """All of them, before anybody is served."""
        for checkpoint in dict.fromkeys(self._checkpoints.values()):
            await self._known(checkpoint)

    async def close(self) -> None:
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
        await self._programs.close()

    async def count(self, tenant: str, model: str, text: str, most: int | None = None) -> int:
        """Of a long text a few too many rather than too few, as it is counted in parts.

        With `most`, more than that is not counted: any greater number means that there are more.
        """
        known = await self._known(self._checkpoints.get(model))
        return estimate(text) if known is None else await self._count(tenant, known, text, most)

    async def _count(self, tenant: str, known: Known, text: str, most: int | None = None) -> int:
        total = 0
        for part in parts(text):
            total += await self._ask(tenant, COUNT, known, part)
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
        ids: list[int] = await self._ask(tenant, ENCODE, await self._of(served), text, add_special_tokens)
        return ids

    async def names(self, tenant: str, served: ServedModel, ids: Sequence[int]) -> list[str]:
        """Of tokens, as the vocabulary has them."""
        names: list[str] = await self._ask(tenant, NAMES, await self._of(served), ids)
        return names

    async def decode(self, tenant: str, served: ServedModel, ids: Sequence[int]) -> str:
        """Raises INVALID_REQUEST for an id that is no token's."""
        return str(await self._ask(tenant, DECODE, await self._of(served), ids))

    async def _of(self, served: ServedModel) -> Known:
        known = await self._known(served.checkpoint_dir)
        if known is None:
            message = f"the checkpoint of '{served.name}' has no tokenizer.json: its tokens cannot be counted"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "model")
        return known

    # By the model's name

    async def least(self, model: str, size_bytes: int) -> int:
        """A text of so many bytes has no fewer tokens than this."""
        known = await self._known(self._checkpoints.get(model))
        return 0 if known is None or known.most_bytes is None else size_bytes // known.most_bytes

    async def exceeds(self, tenant: str, model: str, text: str, most: int) -> bool:
        """Whether a text has more tokens; never by an estimate."""
        if await self._known(self._checkpoints.get(model)) is None:
            return False
        return await self.count(tenant, model, text, most) > most

    async def _known(self, checkpoint: Path | None) -> Known | None:
        task = self._looking.get(checkpoint)
        if task is None:
            task = asyncio.ensure_future(self._look(checkpoint))
            self._looking[checkpoint] = task
        # Shielded: a request that is given up must not take the tokenizer from the others.
        return await asyncio.shield(task)

    async def _look(self, checkpoint: Path | None) -> Known | None:
        file = None if checkpoint is None else checkpoint / "tokenizer.json"
        if file is None or not file.is_file():
            return None
        try:
            return Known(str(file), await self._ask("", LOAD, Known(str(file), None)))
        except InflightError as error:
            log.error("%s cannot be read: tokens are estimated (%s)", file.name, error.message)
            if not error.kind.is_callers_fault:  # the program's: it may be well the next time
                self._looking.pop(checkpoint, None)
            return None

    async def _ask(self, tenant: str, kind: bytes, known: Known, *given: Any) -> Any:
        try:
            is_well, answer = await self._programs.ask(
                tenant, kind, msgspec.json.encode((known.file, *given))
            )
        except BrokenProgram:
            message = "the token counter has exited; try again"
            raise InflightError(ErrorKind.OVERLOADED, message) from None
        if not is_well:
            raise invalid(answer.decode(), answer.decode().partition(":")[0])
        return msgspec.json.decode(answer)


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
