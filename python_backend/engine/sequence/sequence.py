"""The engine's noun: one answer to a request, its tokens, how far they are computed, and how it ended."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from python_backend.engine.kv.prefix_cache import first_hashes
from python_backend.engine.kv.table import BlockTable
from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest
from python_backend.engine.sequence.step_notes import StepNotes
from python_backend.engine.sequence.token_rules import Scoring, TokenRules, WordIndex

if TYPE_CHECKING:
    from python_backend.engine.adapters.shelf import Worn
    from python_backend.engine.guides.ports import AnswerGuide
    from python_backend.sharing.places import Holder


class Sequence:
    """A request inside the engine, or one of several that answer the same request.

    `tokens` holds prompt and answer; the first `computed_tokens` of them have their keys and values in the
    cache for certain, and the first `scheduled_tokens` were given to steps, some of which may still run. A
    step hands the sequence some of the rest; when none is left over, the step yields the next token. So many
    of these as running steps will tell are `coming_tokens`: the next step may have them computed before they
    are known. Preemption sets both counts back to 0 and touches nothing else, so that a sequence goes on
    exactly where it was; a token that is coming still comes. One that `is_paused` waits and keeps its blocks;
    its place is that of its `holder`, a tenant in a tier.

    Of the sequences of one request the first is the `leader` of the others: it computes the prompt for all.
    `rank` is the order in which sequences are served: tier, arrival, and number within the request. `hashes`
    stands for the full blocks, behind the root they begin at. What a sequence that `is_suspect` has computed
    is not to be trusted. An `adapter` is its own from before it is scheduled until it ends. `scoring` is kept
    here for the sampler. One that `needs_history` has its next token chosen by rules that look at the last
    ones on the host, so none of those may be still to come. The `steps` that it was part of are noted where
    somebody asked for that.
    """

    __slots__ = (
        "accepted_drafts",
        "adapter",
        "arrival_ns",
        "cached_tokens",
        "coming_tokens",
        "computed_tokens",
        "context_logits",
        "drafted_tokens",
        "finish_reason",
        "first_scheduled_ns",
        "first_token_ns",
        "guide",
        "hashes",
        "holder",
        "image_tokens",
        "index",
        "is_cancelled",
        "is_paused",
        "is_suspect",
        "key",
        "last_token_ns",
        "leader",
        "max_new_tokens",
        "most_tokens",
        "needs_history",
        "paused_ns",
        "paused_since_ns",
        "pauses",
        "preemptions",
        "prompt_log_probs",
        "prompt_tokens",
        "rank",
        "request",
        "scheduled_tokens",
        "scoring",
        "steps",
        "stop_words",
        "table",
        "tokens",
    )

    def __init__(
        self,
        key: int,
        arrival: int,
        request: GenerationRequest,
        max_new_tokens: int,
        leader: Sequence | None = None,
        index: int = 0,
        arrival_ns: int = 0,
    ) -> None:
        self.key = key
        self.index = index
        self.rank = (int(request.tier), arrival, index)
        self.holder: Holder = (int(request.tier), request.tenant if request.weight else "")
        self.request = request
        self.leader = leader
        self.max_new_tokens = max_new_tokens
        self.tokens = array("i", request.prompt_ids)
        self.prompt_tokens = len(self.tokens)
        self.most_tokens = self.prompt_tokens + max_new_tokens
        self.image_tokens = 0  # beside those of the prompt, where its images were read
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.scheduled_tokens = 0
        self.coming_tokens = 0
        self.needs_history: bool = leader.needs_history if leader else _needs_history(request)
        self.table = BlockTable()
        self.adapter: Worn | None = None
        self.hashes = first_hashes(request)
        self.stop_words: WordIndex = leader.stop_words if leader else WordIndex(request.stop_sequences)
        self.scoring: Scoring | None = None
        self.guide: AnswerGuide | None = None
        self.context_logits: list[bytes] = []
        self.prompt_log_probs: list[list[tuple[int, float]]] = []
        self.is_cancelled = False
        self.is_suspect = False
        self.finish_reason: FinishReason | None = None
        self.preemptions = 0
        self.drafted_tokens = 0  # that steps were given beside its own
        self.accepted_drafts = 0  # of them, that came
        self.is_paused = False
        self.pauses = 0
        self.paused_ns = 0  # in all, but for a pause that is not over
        self.paused_since_ns = 0
        self.arrival_ns = arrival_ns
        self.first_scheduled_ns = 0
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.steps = StepNotes() if request.notes_steps and leader is None else None

    @property
    def tier(self) -> int:
        return self.rank[0]

    @property
    def weight(self) -> float:
        return self.request.weight or 1.0

    @property
    def has_blocks(self) -> bool:
        return self.table.room > 0

    @property
    def pending_tokens(self) -> int:
        """Tokens that are known, and not in the cache for certain."""
        return len(self.tokens) - self.computed_tokens

    @property
    def expected_tokens(self) -> int:
        return len(self.tokens) + self.coming_tokens

    @property
    def unscheduled_tokens(self) -> int:
        """Tokens that a step may be given; none where those to come are certain to be the last."""
        expected = len(self.tokens) + self.coming_tokens
        return expected - self.scheduled_tokens if expected < self.most_tokens else 0

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def generated_ids(self) -> list[int]:
        return self.tokens[self.prompt_tokens :].tolist()

    @property
    def most_cached_tokens(self) -> int:
        """Keys and values this sequence can ever need: those of all its tokens but the last."""
        return self.most_tokens - 1

    @property
    def may_end(self) -> bool:
        return self.generated_tokens >= self.request.sampling.min_tokens

    @property
    def may_skip_prompt(self) -> bool:
        """Whether tokens computed for someone else will do; not while the prompt's own scores are wanted."""
        return not self.request.asks_of_prompt or self.generated_tokens > 0

    @property
    def awaits_guide(self) -> bool:
        """Which tokens may come next is not known yet."""
        return self.guide is not None and not self.guide.is_ready

    @property
    def awaits_leader(self) -> bool:
        """The leader is computing the prompt for this one too."""
        return self._has_running_leader and not self._leader_has_prompt

    @property
    def may_fork(self) -> bool:
        """The leader has computed the whole prompt, and this one needs nothing else yet."""
        return self._has_running_leader and self._leader_has_prompt

    @property
    def _has_running_leader(self) -> bool:
        return self.leader is not None and self.generated_tokens == 0 and self.leader.has_blocks

    @property
    def _leader_has_prompt(self) -> bool:
        return self.leader is not None and self.leader.computed_tokens >= self.prompt_tokens

    @property
    def _is_stopped(self) -> bool:
        return self.stop_words.at_end_of(self.tokens, self.generated_tokens)

    def wear(self, adapter: Worn) -> None:
        """Before it is scheduled: what was computed with another adapter, or with none, is not for it."""
        self.adapter = adapter
        self.hashes = first_hashes(self.request, adapter.identity)

    def pause(self, now_ns: int) -> None:
        self.is_paused = True
        self.pauses += 1
        self.paused_since_ns = now_ns

    def resume(self, now_ns: int) -> None:
        self.is_paused = False
        self.paused_ns += now_ns - self.paused_since_ns
        if self.steps is not None:
            self.steps.add_pause(self.paused_since_ns, now_ns)

    def scoring_for(self, vocabulary: int) -> Scoring:
        """What the sampler keeps; a request's lists are walked once for all its sequences."""
        if self.scoring is None:
            leader = self.leader
            rules = leader.scoring_for(vocabulary).rules if leader else TokenRules(self.request, vocabulary)
            self.scoring = Scoring(rules, self.prompt_tokens)
        return self.scoring

    def accept(self, token_id: int) -> list[int]:
        """Takes the next token, returns what of it belongs to the answer, sets `finish_reason` at its end."""
        if token_id == self.request.end_id and self.may_end:
            self.finish_reason = FinishReason.END_ID
            return []
        self.tokens.append(token_id)
        if self.request.stop_sequences and self.may_end and self._is_stopped:
            self.finish_reason = FinishReason.STOP_WORDS
        elif len(self.tokens) >= self.most_tokens:
            self.finish_reason = FinishReason.LENGTH
        elif self.guide is not None:
            self.guide.advance(token_id)
        return [token_id]

    @property
    def is_chosen_by_its_past(self) -> bool:
        """Whether the choice of a token needs to know all before it."""
        sampling = self.request.sampling
        return self.needs_history or sampling.has_penalties or sampling.decays_top_p

    def __repr__(self) -> str:
        return f"Sequence({self.key}.{self.index}, {self.computed_tokens} of {len(self.tokens)} computed)"


def _needs_history(request: GenerationRequest) -> bool:
    sampling = request.sampling
    return (
        request.guide is not None
        or any(len(word) > 1 for word in request.bad_sequences)
        or (sampling.resets_top_p and not sampling.is_greedy)
    )


def sequences_of(
    key: int, arrival: int, request: GenerationRequest, room_tokens: int, arrival_ns: int
) -> list[Sequence]:
    """One for each answer the request asks for; the others follow the first."""
    most = min(request.max_new_tokens, room_tokens)
    leader = Sequence(key, arrival, request, most, arrival_ns=arrival_ns)
    others = range(1, request.num_return_sequences)
    return [
        leader,
        *(Sequence(key, arrival, request, most, leader, index, arrival_ns) for index in others),
    ]
