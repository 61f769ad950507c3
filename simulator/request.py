"""One request in the simulation: what it asks for, its progress, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.tiers import Tier
from router.routing.replica_choice import LEAST_TOKENS, answer_tokens

if TYPE_CHECKING:
    from router.admission.demand import Reason


class Engine(Protocol):
    """The engine that a request was sent to, as the request needs it."""

    @property
    def steps_told(self) -> int:
        """Decoding steps whose tokens have been sent."""

    def add(self, request: SimulatedRequest, now_s: float) -> None:
        """Takes a request in."""


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """It carries its own progress.

    `generated` is how many tokens it had when it last began to decode, or was preempted; `last_step` the
    engine's decoding step that yields its last token, -1 while it does not decode. `attempt` counts the
    client's earlier attempts.
    """

    number: int
    at_s: float
    tenant: str
    tier: Tier
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    attempt: int = 0
    is_tier_told: bool = True

    engine: Engine | None = None
    generated: int = 0
    computed_tokens: int = 0
    blocks: int = 0
    left_blocks: int = 0  # that it had filled when it was preempted, and ...
    gone_at: int = 0  # ... how many the engine has taken when the first of them is another's
    last_step: int = -1
    preemptions: int = 0
    pauses: int = 0
    is_paused: bool = False
    paused_ns: int = 0  # in all, but for a pause that is not over
    paused_since_ns: int = 0
    weight: float = 1.0  # its tenant's; 0 where slots are not shared by tenants

    begun_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    ended_s: float | None = None
    refused: Reason | None = None
    refused_s: float = 0.0
    retry_after_s: float | None = None
    forecast_late_s: float | None = None

    @property
    def engine_tier(self) -> Tier:
        """The one that the engine is told."""
        return self.tier if self.is_tier_told else Tier.STANDARD

    @property
    def rank(self) -> tuple[int, int]:
        return self.engine_tier, self.number

    @property
    def holder(self) -> tuple[int, str]:
        """Whose place it takes in the engine."""
        return self.engine_tier, self.tenant if self.weight else ""

    @property
    def has_blocks(self) -> bool:
        return self.blocks > 0

    def pause(self, now_ns: int) -> None:
        self.is_paused, self.paused_since_ns = True, now_ns
        self.pauses += 1

    def resume(self, now_ns: int) -> None:
        self.is_paused = False
        self.paused_ns += now_ns - self.paused_since_ns

    @property
    def lacking_tokens(self) -> int:
        """Tokens to compute before its next one."""
        return self.prompt_tokens + self.generated - self.computed_tokens

    def tokens_at(self, step: int) -> int:
        """Its tokens after the engine's decoding step `step`."""
        return self.generated if self.last_step < 0 else self.output_tokens - (self.last_step - step)

    @property
    def completion_tokens(self) -> int:
        return self.generated if self.engine is None else self.tokens_at(self.engine.steps_told)

    @completion_tokens.setter
    def completion_tokens(self, value: int) -> None:
        raise AttributeError("tokens are counted by the engine")

    @property
    def outstanding_tokens(self) -> int:
        """What is left of it for its replica, as the router counts that."""
        expected = answer_tokens(self.max_tokens, self.max_tokens)
        if self.first_token_s is None:
            return self.prompt_tokens + expected
        return max(expected - self.completion_tokens, LEAST_TOKENS)
