"""What a client may ask of the engine, as plain values that travel to the engine process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from python_backend.wire.pools import Part
from python_backend.wire.tiers import Tier

# Colder, logits over temperature leave the range of fp32, and only the likeliest token has a chance anyway.
_COLDEST = 1e-5


class GuideKind(str, Enum):
    JSON = "json"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF_GRAMMAR = "ebnf_grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """The language the answer must be a word of; `text` is empty for plain JSON."""

    kind: GuideKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; `top_k` 0 with `top_p` 0, or `temperature` 0, means the likeliest one.

    After each token `top_p` is multiplied by `top_p_decay`, down to `top_p_min`; the token `top_p_reset_id`
    sets it back to where it began. `min_p` leaves out tokens whose share is less than that part of the
    likeliest one's, before `top_k` and `top_p` do.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    top_p_min: float = 1e-6
    top_p_decay: float = 1.0
    top_p_reset_id: int = -1
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 1
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _COLDEST or self.top_k == 1 or (self.top_k == 0 and self.top_p <= 0)

    @property
    def decays_top_p(self) -> bool:
        return self.top_p > 0 and 0 < self.top_p_decay < 1

    @property
    def resets_top_p(self) -> bool:
        """Whether `top_p` depends on which tokens came, and not on their number alone."""
        return self.decays_top_p and self.top_p_reset_id >= 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """How long the blocks of prompt tokens `start` to `end` (None: to the last) outlive their sequence.

    Blocks of lower `priority` (0 to 100) are evicted first; after `duration_ms` (None: never) the priority
    falls back to the ordinary one.
    """

    start: int
    end: int | None
    priority: int
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    ORDINARY_PRIORITY = 35

    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int = 35
    decode_duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked of the engine; `end_id` None or -1 means that no token ends the answer.

    `token_bias` is added to the scores of its tokens. Requests with different `cache_salt` never share cached
    blocks, but for those of the first `shared_tokens` tokens; `tenant` is whose turn it is where guides wait
    to be compiled, and whose place it takes in the batch, of which tenants with a `weight` have each a part.
    `top_log_probs` asks for the log probs of each token and of so many of the likeliest beside it,
    `returns_prompt_log_probs` for the same of the prompt's tokens. With `notes_steps` the end of its first
    sequence tells which steps that was part of. With `takes_any_ids` a prompt's ids may be beyond the
    vocabulary, and then stand for others: NVIDIA's benchmarks of the engine alone draw them at random.
    `adapter` is the name of a LoRA adapter to answer with. `images` are files, one for each place that the
    prompt has for one. Where `part` is not the whole, the prompt is computed for another engine, or was by
    one: `context` is what that said of where it can be had.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    end_id: int | None = None
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    token_bias: dict[int, float] = field(default_factory=dict)
    guide: Guide | None = None
    num_return_sequences: int = 1
    tier: Tier = Tier.STANDARD
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 0.0
    shared_tokens: int = 0
    retention: Retention = field(default_factory=Retention)
    returns_log_probs: bool = False
    returns_context_logits: bool = False
    returns_generation_logits: bool = False
    top_log_probs: int | None = None
    returns_prompt_log_probs: bool = False
    notes_steps: bool = False
    takes_any_ids: bool = False
    adapter: str = ""
    images: tuple[bytes, ...] = ()
    part: Part = Part.WHOLE
    context: bytes = b""

    @property
    def prompt_alone(self) -> GenerationRequest:
        """What is left where another engine answers: one token is chosen here, and it is nobody's."""
        return replace(
            self,
            max_new_tokens=1,
            end_id=None,
            stop_sequences=(),
            bad_sequences=(),
            token_bias={},
            guide=None,
            sampling=SamplingParams(),
            returns_log_probs=False,
            returns_generation_logits=False,
            top_log_probs=None,
            part=Part.CONTEXT,
        )

    @property
    def asks_of_prompt(self) -> bool:
        """Whether every token of the prompt has to be computed, and told of."""
        return self.returns_context_logits or self.returns_prompt_log_probs

    @property
    def single_ends(self) -> list[int]:
        """Every token that ends the answer on its own."""
        ends = [stop[0] for stop in self.stop_sequences if len(stop) == 1]
        return ends if self.end_id is None else [self.end_id, *ends]
