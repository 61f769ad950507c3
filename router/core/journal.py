"""The port between a request and whoever may have to go on with its answer elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from router.core.generation import Generation, GenerationCall, Pipeline


class Journal(Protocol):
    """Keeps what the engine told of one request; there where its client has asked for that.

    One that `judges` may find that a whole answer will not do.
    """

    @property
    def judges(self) -> bool: ...

    def generate(self, pipeline: Pipeline, index: int, call: GenerationCall) -> Generation:
        """The answer of this index, from its beginning: what was told before comes again as it was."""

    def goes_on_elsewhere(self, error: BaseException | None) -> bool:
        """Whether another router may end what ended here so: then it is that one which bills it."""

    async def judge(self, prompts: Sequence[str], texts: Sequence[str]) -> None:
        """Of one that judges: raises where this whole answer is not to be told."""
