"""What the engine has under way: what of it is still to come, read off as it runs."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from router.admission.demand import Capacity
from router.admission.pricing import context_tokens, kv_need, per_sequence, prices_of

if TYPE_CHECKING:
    from router.admission.demand import Place
    from router.admission.pricing import OutputLengths
    from router.admission.queue import Turns
    from router.admission.room import Room

# How often the running are looked at: nobody tells us of each token. More of them are looked at less often.
_LOOK_S, _LOOK_AT = 0.05, 64
_BATCH_S = 5.0
# Prices change when the usual batch has: not with every request that comes and goes.
_NOTABLE = 0.1
# A batch nobody has seen yet: the cache would hold so many of sequences of this length.
_USUAL_TOKENS, _LARGEST_BATCH = 512, 256.0


class UnderWay:
    """The running places. Their tenants are charged for tokens when these have come, and for no others."""

    def __init__(self, room: Room, turns: Turns, lengths: OutputLengths) -> None:
        self._room = room
        self._turns = turns
        self._lengths = lengths
        self.places: dict[Place, None] = {}
        self.remaining_us = 0
        self.prefill_tokens = 0
        self._looked_s = 0.0
        self._batch = self._priced_batch = 1.0
        self._is_measured = False
        self.prices = prices_of(Capacity(replicas=0, places=0), 1.0)

    def resize(self, capacity: Capacity) -> None:
        if not self._is_measured:
            self._batch = _first_batch(capacity)
        self._priced_batch = self._batch
        self.prices = prices_of(capacity, self._batch)

    def begin(self, place: Place) -> None:
        self._room.take(place)
        self._turns.begin(place)
        self.places[place] = None
        place.charged_tokens = place.progress.completion_tokens
        place.remaining_us = place.cost_us
        self._add_remaining(place, place.remaining_us)
        place.prefill_tokens = place.demand.prompt_tokens
        self.prefill_tokens += place.prefill_tokens
        self._charge(place, self.prices.prompt_us(place.demand))

    def prefilled(self, place: Place) -> None:
        self.prefill_tokens -= place.prefill_tokens
        place.prefill_tokens = 0

    def end(self, place: Place) -> None:
        self._read(place)
        self.prefilled(place)
        self._add_remaining(place, -place.remaining_us)
        del self.places[place]
        self._room.give_back(place)
        self._turns.end(place)

    def look(self, now_s: float) -> None:
        """Reads how far everybody is, if that is some time ago."""
        passed_s = now_s - self._looked_s
        if passed_s < _LOOK_S * max(1.0, len(self.places) / _LOOK_AT):
            return
        self._looked_s = now_s
        for place in self.places:
            if place.progress.completion_tokens > place.charged_tokens:
                self._read(place)
        capacity = self._room.capacity
        if self._turns.waiting and capacity.batch is None and capacity.replicas:
            batch = self._room.sequences / capacity.replicas
            self._batch += (batch - self._batch) * (1 - exp(-passed_s / _BATCH_S))
            self._is_measured = True
            if abs(self._batch - self._priced_batch) > _NOTABLE * self._priced_batch:
                self.resize(capacity)

    def _read(self, place: Place) -> None:
        tokens = place.progress.completion_tokens
        new = tokens - place.charged_tokens
        if new > 0:
            place.charged_tokens = tokens
            self._charge(place, self.prices.tokens_us(new, place.context_tokens + tokens / 2))
            if tokens >= place.look_again_at:
                self._expect_more(place, tokens)

    def _charge(self, place: Place, service_us: int) -> None:
        lane = self._turns.charge(place, service_us)
        done_us = service_us if service_us < place.remaining_us else place.remaining_us
        place.remaining_us -= done_us
        self.remaining_us -= done_us
        lane.running_us -= done_us

    def _add_remaining(self, place: Place, us: int) -> None:
        self.remaining_us += us
        self._turns.lanes[place.demand.tier].running_us += us

    def _expect_more(self, place: Place, tokens: int) -> None:
        """It is longer than most: how much longer is judged by those that were, and the cache kept for it."""
        demand = place.demand
        each = tokens // max(demand.sequences, 1)
        left = self._lengths.remaining(demand.tenant, per_sequence(demand), each)
        more = left.mean * demand.sequences
        remaining_us = self.prices.tokens_us(more, context_tokens(demand, each))
        self._add_remaining(place, remaining_us - place.remaining_us)
        place.remaining_us = remaining_us
        place.look_again_at = tokens + max(more // 2, 16)
        capacity = self._room.capacity
        if kv_need(demand, each, capacity) + capacity.block_tokens > place.kv_tokens:
            wanted = kv_need(demand, each + left.p50, capacity)
            if wanted > place.kv_tokens:
                self._room.grow(place, wanted - place.kv_tokens)

    def check(self) -> None:
        assert self.remaining_us == sum(place.remaining_us for place in self.places)
        assert self.remaining_us == sum(lane.running_us for lane in self._turns.lanes)
        assert self.prefill_tokens == sum(place.prefill_tokens for place in self.places)
        assert all(place.remaining_us >= 0 for place in self.places)


def _first_batch(capacity: Capacity) -> float:
    replicas = max(capacity.replicas, 1)
    if capacity.batch is not None:
        return min(max(capacity.places / (2 * replicas), 1.0), _LARGEST_BATCH)
    held = capacity.places if capacity.kv_tokens is None else capacity.kv_tokens / _USUAL_TOKENS
    return min(max(min(capacity.places, held) / replicas, 1.0), _LARGEST_BATCH)
