"""The port between the router and whatever generates text."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from enum import Enum
from math import inf
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from router.core.images import Image, Vision
from router.core.stages import EngineTimes
from router.core.trace import Trace

# What "no limit" means on the wire; the engine clips it to what is left of the context.
MAX_NEW_TOKENS = 1_000_000
# What the engine calls an end -> what OpenAI does; one that it has another name for is none that was wanted.
FINISH_REASONS = {"end_id": "stop", "stop_words": "stop", "length": "length"}
# English text has about four characters a token; other scripts may have one, of three bytes.
_CHARS_PER_TOKEN = 3


# Behind the first character of a text that would be a special token and must not be: preprocessing takes it
# out again. Letters, which a template's filters leave alone, and rare ones: each prompt is searched for it.
# Known to this process only.
LITERAL_MARK = "".join(secrets.choice("jkqxz") for _ in range(40))


def unmarked(prompt: str) -> tuple[str, str | None]:
    """A rendered prompt without marks, and the one with them, if it has any."""
    return (prompt.replace(LITERAL_MARK, ""), prompt) if LITERAL_MARK in prompt else (prompt, None)


def text_tokens(text: str) -> int:
    """How many tokens a text has at most, as far as its length tells; the model alone knows."""
    return len(text) // _CHARS_PER_TOKEN + 1 if text.isascii() else len(text)


def byte_tokens(size: int) -> int:
    """The same for text in so many bytes of UTF-8."""
    return size // _CHARS_PER_TOKEN + 1


class GenerationCall(msgspec.Struct, frozen=True, kw_only=True):
    """All that the engine needs to know of one request."""

    request_id: str
    prompt: str  # empty where `prompt_ids` takes its place
    marked_prompt: str | None = None  # the same with LITERAL_MARKs, where it has any
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
    guide_field: str | None = None  # where the caller wrote it
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    stop_token_ids: tuple[int, ...] | None = None
    shows_special_tokens: bool | None = None
    prompt_ids: tuple[int, ...] | None = None
    # One for each place that the prompt has for one, and how many tokens they are at most.
    images: tuple[Image, ...] | None = None
    image_tokens: int = 0
    # With the first delta come the ids of the prompt, then those of the answer.
    returns_token_ids: bool | None = None
    # With each token its log probability, and those of so many of the likeliest.
    top_log_probs: int | None = None
    # Who goes first when there is not room for all: interactive, standard (None) or batch.
    tier: str | None = None
    # Its tenant's, beside others that want the same places; 0: those are not shared by tenants.
    weight: float = 0.0
    # Further answers to the prompt of the call before it: its tokens are counted there.
    shares_prompt: bool = False
    echo: bool = False
    # The prompt alone is wanted, with its log probabilities; the engine generates a token that nobody sees.
    is_scoring: bool = False
    trace: Trace | None = None
    # By when its first token is wanted, on the clock of `time.monotonic`; the engine is not told.
    deadline_s: float = inf
    # Where the prompt begins with what tenants may share, as the engine is told; see wire.shared_prefix.
    shared_prefix: str | None = None
    # Where the prompt and its answer are computed apart: which of them this is for, by the contract's name,
    # and for the answer where the prompt can be had.
    part: str | None = None
    context: bytes | None = None

    @property
    def most_prompt_tokens(self) -> int:
        """As far as its length tells."""
        text = text_tokens(self.prompt) if self.prompt_ids is None else len(self.prompt_ids)
        return text + self.image_tokens

    @property
    def logged_texts(self) -> tuple[str, ...]:
        """The prompt, and in the place of each image a text."""
        return (self.prompt, *(image.description for image in self.images or ()))

    @property
    def engine_echoes(self) -> bool:
        """Whether the first delta is the prompt, because only the tokenizer's side can tell its tokens."""
        return self.echo and (self.prompt_ids is not None or self.top_log_probs is not None)


class LoggedToken(msgspec.Struct, frozen=True, gc=False):
    """One token of an answer; `piece` is its bytes, or what one that is not shown is called.

    `characters` of the text were completed by it: 0 for the first half of a character. `log_prob` is None
    for a prompt's first token, which nothing predicts.
    """

    piece: bytes
    log_prob: float | None
    characters: int
    is_hidden: bool = False
    top: tuple[tuple[bytes, float], ...] = ()


class Delta(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """What one response of the engine added."""

    text: str
    completion_tokens: int = 0
    prompt_tokens: int = 0
    finish: str | None = None  # end_id, stop_words, length, cancelled
    engine: EngineTimes | None = None  # with the last one, where the engine tells
    cached_tokens: int = 0  # of the prompt, with the first one
    tokens: tuple[LoggedToken, ...] = ()
    steps: Sequence[int] = ()  # of the engine, with the last one, if the request is traced
    token_ids: Sequence[int] = ()  # where they were asked for
    context: bytes = b""  # of a prompt alone, with the last one: what whoever answers has to know


class Generation(Protocol):
    """One request under way."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas; the last one carries `finish`. Raises InflightError when the request fails."""

    def stop(self) -> None:
        """Asks the engine to end early. The deltas then end by themselves, soon; read them to the end."""


class RawGeneration(Protocol):
    """One request under way in Triton, by its own messages."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Its responses as they come, the last one marked final. Raises InflightError when it fails."""

    def stop(self) -> None:
        """Asks the model to end early. The responses then end by themselves, soon; read them to the end."""


class Pipeline(Protocol):
    """One model that generates text."""

    @property
    def vision(self) -> Vision | None:
        """What its engines take of images; None where they read text alone, or have not told yet."""

    def generate(self, call: GenerationCall, told: Sequence[Delta] = ()) -> Generation:
        """Starts nothing until the first delta is asked for.

        What was `told` of the same call before is generated again, compared and passed over.
        """

    def relay(self, request: Any, trace: Trace | None = None) -> RawGeneration:
        """A request built from the ensemble's contract, whose name is filled in; starts nothing either."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""


async def read_to_the_end(work: AsyncIterable[object]) -> None:
    """So that the engine is known to be done with the request; its client has an answer already."""
    try:
        async for _ in work:
            pass
    except InflightError:
        pass


MAX_BIASES = 300
MOST_STOP_IDS = 64
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=MOST_STOP_IDS)]


class Failure(Enum):
    """What a request that failed says of its replica."""

    UNREACHABLE = "Triton is unreachable"
    STUB_DEAD = "a process of the model died"
    NOT_LOADED = "the model is not loaded"
    ENGINE_DIED = "its engine process died"
    ENGINE_AWAY = "its engine process is being started again"
    ENGINE = "the engine failed"  # its answer to this request; another replica would say the same
    OVERLOADED = "overloaded"
    CALLER = "the request cannot be served"
    CUT = "given up"  # by us, because the replica is known to be down
