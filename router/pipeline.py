"""The port between the router and whatever generates text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from router.stages import EngineTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# What "no limit" means on the wire; the engine clips it to what is left of the context.
MAX_NEW_TOKENS = 1_000_000


class GenerationCall(msgspec.Struct, frozen=True, kw_only=True):
    """All that the engine needs to know of one request."""

    request_id: str
    prompt: str
    max_tokens: int
    seed: int
    tenant: str = "local"
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    add_special_tokens: bool = True
    # What the answer must be a word of: a kind of the contract's guided_decoding_guide_type, and its text.
    guide: tuple[str, str] | None = None
    logit_bias: dict[str, float] | None = None
    # Further answers to the prompt of the call before it: its tokens are counted there.
    shares_prompt: bool = False
    echo: bool = False


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one response of the engine added."""

    text: str
    completion_tokens: int = 0
    prompt_tokens: int = 0
    finish: str | None = None  # end_id, stop_words, length, cancelled
    engine: EngineTimes | None = None  # with the last one, where the engine tells


class Generation(Protocol):
    """One request under way."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas; the last one carries `finish`. Raises InflightError when the request fails."""

    def stop(self) -> None:
        """Asks the engine to end early. The deltas then end by themselves, soon; read them to the end."""


class Pipeline(Protocol):
    """One model that generates text."""

    def generate(self, call: GenerationCall) -> Generation:
        """Starts nothing until the first delta is asked for."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""
