"""What the open replicas of a release can do together, by what engines and Triton say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepCost
from router.admission.demand import Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.costs.batch_cost import BatchCost
    from python_backend.wire.engine_report import EngineReport

# More than there will ever be: nothing waits where the capacity is unknown.
UNLIMITED = 1 << 30
# Of a batch model one batch is computed while the next one fills.
BATCHES_IN_FLIGHT = 2
# The largest share of the cache that one request counts for: the rest is for answers longer than expected.
_LARGEST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """Layers that keep the last `tokens` of a sequence alone, and take `blocks` blocks more for those.

    Without `keeps_all` there are no others. The cache is counted in tokens of long sequences.
    """

    tokens: int
    blocks: int
    keeps_all: bool = True

    def taken(self, tokens: int) -> int:
        """Of the cache, by a sequence so long."""
        return tokens * self.keeps_all + self.blocks * min(tokens, self.tokens)

    def tokens_in(self, taken: int) -> int:
        """How long a sequence is that takes so much; where only windows are kept, at least."""
        short = taken // (self.blocks + self.keeps_all)
        return taken - self.blocks * self.tokens if short > self.tokens else short


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the open replicas of a release can do, all together.

    `slots` is how many sequences (or rows) may be in flight; `kv_tokens` what the caches hold, None where
    that is not the limit. `holds_whole_answers`: a sequence reserves the cache of all it may ever generate
    when it begins. `step_tokens` is the most that one step of one replica computes. Where neither cost is
    known nothing can be predicted, and requests are admitted by slots and cache alone. Where other routers
    use the same replicas, `own_slots` and `own_kv_tokens` are this router's share; None is all. Engines that
    `can_pause` make way for tenants with less than their part, whatever runs. Where layers have a `window` a
    token takes less of the cache the longer its sequence is.
    """

    replicas: int
    slots: int
    kv_tokens: int | None = None
    block_tokens: int = 1
    holds_whole_answers: bool = False
    step_tokens: int = 512
    step: StepCost | None = None
    batch: BatchCost | None = None
    own_slots: int | None = None
    own_kv_tokens: int | None = None
    can_pause: bool = False
    window: CacheWindow | None = None

    @property
    def slots_here(self) -> int:
        return self.slots if self.own_slots is None else self.own_slots

    @property
    def kv_tokens_here(self) -> int | None:
        return self.kv_tokens if self.own_kv_tokens is None else self.own_kv_tokens


UNKNOWN = Capacity(replicas=1, slots=UNLIMITED)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a Triton model batches rows: `rows` 0 is one without batches, `instances` 0 one that has none."""

    rows: int
    instances: int = 1
    is_decoupled: bool = False

    @property
    def slots(self) -> int:
        """Rows that may be in flight on one server."""
        if self.is_decoupled or self.instances == 0:
            return UNLIMITED
        return BATCHES_IN_FLIGHT * max(self.rows, 1) * self.instances


def of_engines(reports: Sequence[EngineReport | None]) -> Capacity:
    """Of open replicas of one release; where none of them reports, no limit is applied.

    A replica without a report, as it has just come back, counts like the others: they run the same files.
    """
    known = [report for report in reports if report is not None]
    if not known:
        return UNKNOWN if not reports else replace(UNKNOWN, replicas=len(reports))
    costs = [report.learned.cost for report in known if report.learned is not None]
    slots = sum(report.max_batch_size for report in known)
    kv_tokens = sum(report.total_blocks * report.tokens_per_block for report in known)
    return Capacity(
        replicas=len(reports),
        slots=max(slots * len(reports) // len(known), 1),
        kv_tokens=kv_tokens * len(reports) // len(known) or None,  # one without a cache is not limited by it
        block_tokens=max(report.tokens_per_block for report in known),
        holds_whole_answers=any(report.holds_whole_answers for report in known),
        step_tokens=max(min(report.max_step_tokens for report in known), 1),
        step=_mean(costs) if costs else None,
        can_pause=all(report.can_pause for report in known),
        window=_window(known),
    )


def _window(reports: Sequence[EngineReport]) -> CacheWindow | None:
    """They run the same files; one that was started with other settings may have a little more or less."""
    windows = [(each.window_tokens, each.window_blocks, each.keeps_all) for each in reports]
    tokens, blocks, keeps_all = max(windows)
    return CacheWindow(tokens, blocks, keeps_all) if blocks else None


def of_batches(replicas: int, shape: BatchShape | None, cost: BatchCost | None) -> Capacity:
    if replicas == 0 or shape is None:
        return replace(UNKNOWN, replicas=max(replicas, 1))
    # Of a decoupled model Triton measures how soon it returned, not what the answer took.
    known = None if shape.is_decoupled else cost
    return Capacity(replicas, min(shape.slots * replicas, UNLIMITED), batch=known)


def with_slots(capacity: Capacity, slots: int) -> Capacity:
    """As an operator sets it: 0 is as many as there are, -1 no limit."""
    if slots == 0:
        return capacity
    return replace(capacity, slots=UNLIMITED if slots < 0 else slots)


def fitted(need: Need, capacity: Capacity) -> Need:
    """What it counts for: a request that can only run in parts counts as all there is.

    So its turn comes, and only what would not fit alone is refused as too large.
    """
    sequences = min(need.sequences, capacity.slots)
    prompt, completion = need.prompt_tokens, need.completion_tokens
    if capacity.kv_tokens is not None:
        whole = prompt + (completion if capacity.holds_whole_answers else 1)
        taken = whole if capacity.window is None else capacity.window.taken(whole)
        if need.sequences == 1 and taken > capacity.kv_tokens:
            return need
        most, each = int(_LARGEST_SHARE * capacity.kv_tokens), _of_each(capacity)
        sequences = max(min(sequences, most // (2 * each)), 1)
        most = max(most - each * sequences, 1)
        prompt = min(prompt, most)
        if capacity.holds_whole_answers:
            completion = min(completion, most - prompt)
    counted = Need(prompt, completion, sequences)
    return need if counted == need else counted


def fitting_tokens(capacity: Capacity) -> int:
    """One sequence of at most so many tokens, prompt and answer, is its own `fitted`."""
    if capacity.slots < 1:
        return -1
    if capacity.kv_tokens is None:
        return UNLIMITED
    return int(_LARGEST_SHARE * capacity.kv_tokens) - _of_each(capacity)


def _of_each(capacity: Capacity) -> int:
    """What a sequence takes by itself: it ends in a block of its own, with a token at least; its window."""
    in_window = capacity.window.blocks * capacity.window.tokens if capacity.window else 0
    return capacity.block_tokens + 1 + in_window


def _mean(costs: Sequence[StepCost]) -> StepCost:
    return StepCost(
        sum(cost.base_ms for cost in costs) / len(costs),
        sum(cost.prefill_token_ms for cost in costs) / len(costs),
        sum(cost.decode_sequence_ms for cost in costs) / len(costs),
        sum(cost.kv_kilotoken_ms for cost in costs) / len(costs),
    )
