"""What the open replicas of a release can do together, by what their engines and Triton say of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepCost
from router.admission.demand import Capacity, Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.costs.batch_cost import BatchCost
    from python_backend.wire.engine_report import EngineReport

# More than there will ever be: nothing waits where nobody knows how much there is.
UNLIMITED = 1 << 30
UNKNOWN = Capacity(replicas=1, places=UNLIMITED)
# One is computed while the next one gathers.
_BATCHES_UNDER_WAY = 2
# Of the cache, what one request may count for: the rest is the room for answers longer than expected.
_LARGEST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a Triton model takes rows: 0 `rows` is one without batches, 0 `instances` one that has none."""

    rows: int
    instances: int = 1
    is_decoupled: bool = False

    @property
    def places(self) -> int:
        """What may be under way on one server, in rows."""
        if self.is_decoupled or self.instances == 0:
            return UNLIMITED
        return _BATCHES_UNDER_WAY * max(self.rows, 1) * self.instances


def of_engines(reports: Sequence[EngineReport | None]) -> Capacity:
    """Of open replicas of one release; where none of them says anything, the fleet alone decides.

    One that is silent, as it has just come back, is like the others: they run the same files.
    """
    known = [report for report in reports if report is not None]
    if not known:
        return UNKNOWN if not reports else replace(UNKNOWN, replicas=len(reports))
    costs = [report.learned.cost for report in known if report.learned is not None]
    places = sum(report.max_batch_size for report in known)
    kv_tokens = sum(report.total_blocks * report.tokens_per_block for report in known)
    return Capacity(
        replicas=len(reports),
        places=max(places * len(reports) // len(known), 1),
        kv_tokens=kv_tokens * len(reports) // len(known) or None,  # one without a cache is not limited by it
        block_tokens=max(report.tokens_per_block for report in known),
        holds_whole_answers=any(report.holds_whole_answers for report in known),
        step_tokens=max(min(report.max_step_tokens for report in known), 1),
        step=_mean(costs) if costs else None,
    )


def of_batches(replicas: int, shape: BatchShape | None, cost: BatchCost | None) -> Capacity:
    if replicas == 0 or shape is None:
        return replace(UNKNOWN, replicas=max(replicas, 1))
    # What Triton measures of one that answers on and on is how soon it returned, not what it took.
    known = None if shape.is_decoupled else cost
    return Capacity(replicas, min(shape.places * replicas, UNLIMITED), batch=known)


def with_places(capacity: Capacity, places: int) -> Capacity:
    """As an operator wants it: 0 is as many as there are, -1 no limit at all."""
    if places == 0:
        return capacity
    return replace(capacity, places=UNLIMITED if places < 0 else places)


def fitted(need: Need, capacity: Capacity) -> Need:
    """What it counts for: one that can only run in parts, as all there is.

    So its turn comes, and what is refused as too large is only what would not fit alone.
    """
    sequences = min(need.sequences, capacity.places)
    prompt, completion = need.prompt_tokens, need.completion_tokens
    if capacity.kv_tokens is not None:
        whole = completion if capacity.holds_whole_answers else 1
        if need.sequences == 1 and prompt + whole > capacity.kv_tokens:
            return need
        # Each ends in a block of its own, with a token at least.
        most, each = int(_LARGEST_SHARE * capacity.kv_tokens), capacity.block_tokens + 1
        sequences = max(min(sequences, most // (2 * each)), 1)
        most -= each * sequences
        prompt = min(prompt, most)
        if capacity.holds_whole_answers:
            completion = min(completion, most - prompt)
    counted = Need(prompt, completion, sequences)
    return need if counted == need else counted


def _mean(costs: Sequence[StepCost]) -> StepCost:
    return StepCost(
        sum(cost.base_ms for cost in costs) / len(costs),
        sum(cost.prefill_token_ms for cost in costs) / len(costs),
        sum(cost.decode_sequence_ms for cost in costs) / len(costs),
        sum(cost.kv_kilotoken_ms for cost in costs) / len(costs),
    )
