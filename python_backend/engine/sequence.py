"""The engine's noun: one request's tokens, how far they are computed, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random

from python_backend.engine.blocks import BlockTable

# Colder, logits over temperature leave the range of fp32, and only the likeliest token has a chance anyway.
_COLDEST = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; `top_k` 0 with `top_p` 0, or `temperature` 0, means the likeliest one."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 1

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _COLDEST or self.top_k == 1 or (self.top_k == 0 and self.top_p <= 0)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked of the engine; `end_id` None or -1 means that no token ends the answer."""

    prompt_ids: list[int]
    max_new_tokens: int
    end_id: int | None = None
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)

    @property
    def single_ends(self) -> list[int]:
        """Every token that ends the answer on its own."""
        ends = [stop[0] for stop in self.stop_sequences if len(stop) == 1]
        return ends if self.end_id is None else [self.end_id, *ends]


class FinishReason(str, Enum):
    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Sequence:
    """A request inside the engine.

    `tokens` holds prompt and answer; the first `computed_tokens` of them have their keys and values in the
    cache. A step hands the sequence some of the rest; when none is left over, the step yields the next
    token. Preemption sets `computed_tokens` back to 0 and touches nothing else, so that a sequence goes on
    exactly where it was, `random` included.
    """

    __slots__ = (
        "arrival",
        "computed_tokens",
        "finish_reason",
        "is_cancelled",
        "key",
        "max_new_tokens",
        "prompt_tokens",
        "random",
        "request",
        "table",
        "tokens",
    )

    def __init__(self, key: int, arrival: int, request: GenerationRequest, max_new_tokens: int) -> None:
        self.key = key
        self.arrival = arrival
        self.request = request
        self.max_new_tokens = max_new_tokens
        self.tokens = list(request.prompt_ids)
        self.prompt_tokens = len(self.tokens)
        self.computed_tokens = 0
        self.table = BlockTable()
        self.random = Random(request.sampling.seed)
        self.is_cancelled = False
        self.finish_reason: FinishReason | None = None

    @property
    def pending_tokens(self) -> int:
        return len(self.tokens) - self.computed_tokens

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def generated_ids(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def most_cached_tokens(self) -> int:
        """Keys and values this sequence can ever need: those of all its tokens but the last."""
        return self.prompt_tokens + self.max_new_tokens - 1

    @property
    def may_end(self) -> bool:
        return self.generated_tokens >= self.request.sampling.min_tokens

    def accept(self, token_id: int) -> list[int]:
        """Takes the next token, returns what of it belongs to the answer, sets `finish_reason` at its end."""
        if token_id == self.request.end_id and self.may_end:
            self.finish_reason = FinishReason.END_ID
            return []
        self.tokens.append(token_id)
        if self.may_end and self._ends_with_stop():
            self.finish_reason = FinishReason.STOP_WORDS
        elif self.generated_tokens >= self.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH
        return [token_id]

    def _ends_with_stop(self) -> bool:
        return any(
            0 < len(stop) <= self.generated_tokens and self.tokens[-len(stop) :] == list(stop)
            for stop in self.request.stop_sequences
        )

    def __repr__(self) -> str:
        return f"Sequence({self.key}, {self.computed_tokens} of {len(self.tokens)} tokens computed)"
