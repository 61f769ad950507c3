"""What a load test saw: every request from the client's side, and the server's own figures beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

# Of a request on the server, in the order of its life; one that is told as a whole has `triton` for most.
STAGES = (
    "admission",
    "queue",
    "preprocessing",
    "engine_queue",
    "prefill",
    "decode",
    "postprocessing",
    "triton",
    "send",
)


@dataclass(slots=True)
class RequestResult:
    """One attempt. `at_s` is its planned moment since the run began; the other moments count from there.

    A closed-loop user plans to send when it sends. `gaps_s` are the times between pieces of a stream, each
    divided by the tokens that came with it, so that the distribution is one of tokens. Where the server does
    not say how many came, they are taken to be the same number in each piece after the first.
    """

    kind: str  # chat, completions, embeddings, triton, conversation, trace
    at_s: float
    tenant: str = ""
    tier: str = "standard"
    model: str = ""
    release: str = ""
    status: int = 0  # 0 where there was no answer
    sent_s: float = 0.0  # later than planned: the client was not fast enough
    first_token_s: float | None = None
    ended_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    retry_after_s: float | None = None
    error: str = ""
    request_id: str = ""
    attempt: int = 0  # of one request that was refused and asked again
    asked_tokens: int = 0  # what the answer was to have, 0 where its length was left to the model
    cached_tokens: int = 0  # of the prompt, that the server had computed before
    pieces: int = 0
    longest_gap_s: float = 0.0  # between two pieces, however many tokens came with the second
    text: str = ""  # where somebody asked for it; not stored

    @property
    def is_answered(self) -> bool:
        """Whole: nothing went wrong, and it has the length it was to have."""
        is_ended = self.status // 100 == 2 and not self.error and self.ended_s is not None
        return is_ended and self.asked_tokens in (0, self.completion_tokens)

    @property
    def is_refused(self) -> bool:
        """Turned away, with a word on when to come back."""
        return self.status in (429, 503) and self.retry_after_s is not None

    @property
    def has_left(self) -> bool:
        """It gave up, whatever would have become of it."""
        return self.ended_s is None and not self.error

    @property
    def has_failed(self) -> bool:
        return not (self.is_answered or self.is_refused or self.has_left)

    @property
    def between_tokens_s(self) -> float | None:
        """On average over the answer."""
        if (
            self.first_token_s is None
            or self.ended_s is None
            or self.completion_tokens < 2
            or not self.gaps_s
        ):
            return None
        return sum(self.gaps_s) / len(self.gaps_s)


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The stack at one moment, from its own metrics; None where they do not tell."""

    at_s: float
    waiting: float | None = None  # requests that the router holds back
    running: float | None = None  # requests in the engine's batch
    batch_limit: float | None = None
    kv_used_ratio: float | None = None
    tokens_by_tenant: dict[str, float] = field(default_factory=dict)  # since the server started
    stage_seconds: dict[str, float] = field(default_factory=dict)  # sums since the server started
    stage_requests: float = 0.0


@dataclass(frozen=True, slots=True)
class Slo:
    """What one request has to keep to count as good; None asks for nothing."""

    first_token_s: float | None = None
    between_tokens_s: float | None = None
    ended_s: float | None = None

    def is_kept_by(self, result: RequestResult) -> bool:
        """Answered whole, and in time by every measure that there is of it."""
        seen_s = (result.first_token_s, result.between_tokens_s, result.ended_s)
        wanted_s = (self.first_token_s, self.between_tokens_s, self.ended_s)
        in_time = (
            seen is None or wanted is None or seen <= wanted
            for seen, wanted in zip(seen_s, wanted_s, strict=True)
        )
        return result.is_answered and all(in_time)


@dataclass(slots=True)
class LoadRun:
    """Everything a report is made of."""

    name: str
    began_at: str  # ISO 8601, with the zone
    duration_s: float
    results: list[RequestResult] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)
    slo: dict[str, Slo] = field(default_factory=dict)  # by tier
    about: dict[str, str] = field(default_factory=dict)  # machine, versions, target, how it was called
    clamped: int = 0  # requests of a trace that were shortened to fit the model
    planned: int | None = (
        None  # requests that were to be sent, where that was known; fewer: it was broken off
    )
