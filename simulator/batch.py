"""A simulated engine's batch: which requests run, which wait, and the cache blocks they hold.

The rules are those of the engine's scheduler and block pool: by rank, decodes first, prompts under the budget
that they leave, better tiers preempt worse ones, tenants above their part are paused for those below, and
when the cache is full the last in rank is preempted. There is no prefix cache.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

from python_backend.engine.scheduling.batch import Batch as Members
from python_backend.engine.scheduling.budget import handed_out, part_for_short, times_as_long
from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from python_backend.sharing.places import Holder
    from simulator.request import SimulatedRequest

_rank = attrgetter("rank")
_WORSE_THAN_ALL = max(Tier) + 1

Chunks = list[tuple["SimulatedRequest", int]]


class Batch:
    """`step` counts decoding steps: it alone tells how far each decoding request is.

    An ended request keeps its slot and its blocks until `let_go`.
    """

    def __init__(
        self,
        most: int,
        total_blocks: int,
        block_tokens: int,
        holds_whole_answers: bool,
        reuses_blocks: bool = True,
        even_context: int | None = None,
    ) -> None:
        self.members: Members[SimulatedRequest] = Members(most)
        self.behind: list[SimulatedRequest] = []  # of the running ones, those whose prompt is not computed
        self.step = 0
        self.preemptions = 0
        self.used_blocks = 0
        self._taken_blocks = 0  # ever
        self.present = [0 for _ in Tier]
        self.decoding = [0 for _ in Tier]
        self.decoding_kv_tokens = 0
        self._total_blocks = total_blocks
        self._block_tokens = block_tokens
        self._holds_whole_answers = holds_whole_answers
        self._reuses_blocks = reuses_blocks
        self._even_context = even_context
        # How many decoding requests fill a block at the same step.
        self._phases = [0] * block_tokens
        self.pauses = 0
        self._step_tokens = 0
        self._ended: list[SimulatedRequest] = []

    def add(self, request: SimulatedRequest) -> None:
        self.present[request.engine_tier] += 1
        self.members.put(request)

    def may_join(self, request: SimulatedRequest) -> bool:
        """Whether a new plan could admit it."""
        members = self.members
        if members.waiting and members.waiting[0].rank < request.rank and not members.is_full:
            return False
        if not members.is_full or members.may_exceed(request):
            return True
        return members.victim_for(request, ()) is not None

    def plan(
        self, max_batch_size: int, max_step_tokens: int, now_s: float, most_running: int | None = None
    ) -> Chunks:
        """Admits requests, and divides the step's prompt tokens; decoding requests get one token each."""
        self.members.limit, self.members.now_ns = max_batch_size, int(1e9 * now_s)
        self._shrink(most_running, now_s)
        if not self._holds_whole_answers:
            while self.members.running and self._free_blocks() < 0:
                self._take_any_blocks(now_s)
        chunks: Chunks = []
        if not self.behind and not self.members.waiting:
            return chunks
        self._step_tokens = max_step_tokens
        left, tier = max_step_tokens - sum(self.decoding), -1
        for request in list(self.behind):
            if request.engine_tier != tier:
                tier = request.engine_tier
                left = self._admit(chunks, left, tier, now_s)
            if request in self.behind:  # else it had to give way just now
                left = self._give(chunks, request, left)
        self._admit(chunks, left, _WORSE_THAN_ALL, now_s)
        return [chunk for chunk in chunks if chunk[0] in self.behind]

    def steps_until_full(self) -> int:
        """So many steps find room for certain, however their blocks fall."""
        rounds = (self._total_blocks - self.used_blocks) // sum(self.decoding)
        return max(1, rounds * self._block_tokens)

    def advance(self, steps: int) -> None:
        """Each decoding request has `steps` more tokens."""
        if not self._holds_whole_answers:
            self._take(self._growth(steps))
        self.step += steps
        self.decoding_kv_tokens += steps * sum(self.decoding)

    def begin_decoding(self, request: SimulatedRequest) -> None:
        """Its prompt is computed, and its next token is there."""
        self.behind.remove(request)
        request.generated += 1
        request.last_step = self.step + request.output_tokens - request.generated
        self._count_decoding(request, 1)

    def end(self, request: SimulatedRequest) -> None:
        """It has its last token."""
        request.blocks = self._held(request)
        self._stop_decoding(request)
        self._ended.append(request)

    def let_go(self) -> bool:
        """Frees ended requests; returns whether there were any."""
        ended, self._ended = self._ended, []
        for request in ended:
            self._take_out(request)
            self.present[request.engine_tier] -= 1
        return bool(ended)

    def _count_decoding(self, request: SimulatedRequest, count: int) -> None:
        tokens = request.prompt_tokens + request.tokens_at(self.step)
        self.decoding[request.tier] += count
        self.decoding_kv_tokens += count * (tokens - 1)
        self._phases[(tokens - self.step) % self._block_tokens] += count

    def _growth(self, steps: int) -> int:
        """Blocks that decoding requests take in the next `steps` steps."""
        size = self._block_tokens
        rounds, rest = divmod(steps, size)
        blocks = rounds * sum(self.decoding)
        return blocks + sum(self._phases[(1 - self.step - number) % size] for number in range(rest))

    def _free_blocks(self) -> int:
        """Without those that the next step will take."""
        growth = 0 if self._holds_whole_answers else self._growth(1)
        return self._total_blocks - self.used_blocks - growth

    def _stop_decoding(self, request: SimulatedRequest) -> None:
        self._count_decoding(request, -1)
        request.generated, request.last_step = request.tokens_at(self.step), -1

    def _take_out(self, request: SimulatedRequest) -> None:
        self.used_blocks -= request.blocks
        self.members.remove([request])

    def _held(self, request: SimulatedRequest) -> int:
        if self._holds_whole_answers or request.last_step < 0:
            return request.blocks
        return self._blocks(request.prompt_tokens + request.tokens_at(self.step) - 1)

    def _to_hold(self, request: SimulatedRequest) -> int:
        if self._holds_whole_answers:
            return self._blocks(request.prompt_tokens + request.max_tokens - 1)
        return self._blocks(request.prompt_tokens + request.generated)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _stop(self, request: SimulatedRequest, now_s: float) -> None:
        """It is to leave the batch, with its blocks."""
        request.blocks = self._held(request)
        if request.last_step >= 0:
            request.last_token_s = now_s
            self._stop_decoding(request)
            request.computed_tokens = request.prompt_tokens + request.generated - 1
        else:
            self.behind.remove(request)

    def _take_blocks(self, request: SimulatedRequest) -> None:
        """Of one that waits: it is recomputed when it runs again, but for what is still found then."""
        self.used_blocks -= request.blocks
        request.left_blocks = request.computed_tokens // self._block_tokens if self._reuses_blocks else 0
        request.gone_at = self._taken_blocks + self._total_blocks - self.used_blocks
        request.blocks = request.computed_tokens = 0
        request.preemptions += 1
        self.preemptions += 1

    def _take(self, blocks: int) -> None:
        self.used_blocks += blocks
        self._taken_blocks += blocks

    def _find_left(self, request: SimulatedRequest) -> None:
        """Free blocks are used in the order in which they became free, of a sequence the last first."""
        found = min(request.left_blocks, request.gone_at - self._taken_blocks)
        if found > 0:
            request.computed_tokens = self._block_tokens * found
        request.left_blocks = 0

    def _take_any_blocks(self, now_s: float) -> None:
        if self.let_go():  # that may be enough
            return
        last = self.members.running[-1]
        if keeping := self.members.keeping(last):
            self._take_blocks(keeping[-1])
            return
        self._stop(last, now_s)
        self.members.leave(last)
        self._take_blocks(last)

    def _pause(self, request: SimulatedRequest, now_s: float) -> None:
        self._stop(request, now_s)
        self.members.pause(request)
        self.pauses += 1

    def _shrink(self, most_running: int | None, now_s: float) -> None:
        if most_running is None or len(self.members.running) <= most_running:
            return
        self.let_go()
        while len(self.members.running) > most_running and (victim := self.members.surplus()) is not None:
            self._pause(victim, now_s)

    def _give(self, chunks: Chunks, request: SimulatedRequest, left: int) -> int:
        times = times_as_long(request.computed_tokens, self._even_context)
        count = handed_out(
            request.lacking_tokens,
            left,
            self._step_tokens,
            lambda: self._has_shorter(chunks, request),
            times,
        )
        if count > 0:
            chunks.append((request, count))
            left -= int(count * times)
        return left

    def _has_shorter(self, chunks: Chunks, request: SimulatedRequest) -> bool:
        most_tokens = part_for_short(self._step_tokens)
        served = {id(request), *(id(other) for other, _ in chunks)}
        waiting = [] if self.members.is_full else self.members.waiting
        return any(
            other.engine_tier == request.engine_tier
            and 1 < other.lacking_tokens <= most_tokens
            and id(other) not in served
            for other in (*self.behind, *waiting)
        )

    def _admit(self, chunks: Chunks, left: int, better_than: int, now_s: float) -> int:
        members, position = self.members, 0
        takers: set[Holder] | None = None
        while left > 0 and position < len(members.waiting):
            request = members.waiting[position]
            if request.engine_tier >= better_than:
                break
            if takers is None and members.is_full:
                takers = members.takers()
            if takers is not None and not takers:
                break
            if (
                request.holder not in takers
                if takers is not None
                else request.is_paused and members.is_outdone(request)
            ):
                position += 1
                continue
            if not self._make_way(request, now_s):
                takers = (members.takers() if takers is None else takers) - {request.holder}
                continue
            position = members.enter(request)
            insort(self.behind, request, key=_rank)
            self._find_left(request)
            more = max(self._to_hold(request) - request.blocks, 0)
            self._take(more)
            request.blocks += more
            left = self._give(chunks, request, left)
            if takers is not None:
                takers = members.takers()
        return left

    def _make_way(self, request: SimulatedRequest, now_s: float) -> bool:
        """Frees a slot and blocks, by what others have if that is enough; returns whether it did."""
        members = self.members
        free = self._free_blocks() - max(self._to_hold(request) - request.blocks, 0)
        keep = 0 if self._holds_whole_answers else 1  # a block for each running request, so that it can grow
        lacks_slot = members.is_full and not members.may_exceed(request)
        victims: list[SimulatedRequest] = []
        emptied: list[SimulatedRequest] = []
        keeping = members.keeping(request)
        while lacks_slot or free < keep * (len(members.running) - len(victims)):
            if self.let_go():
                return self._make_way(request, now_s)
            if keeping and not lacks_slot:
                other = keeping.pop()
            else:
                victim = members.victim_for(request, victims)
                if victim is None:
                    return False
                lacks_slot, other = False, victim
                victims.append(victim)
                if victim.engine_tier <= request.engine_tier:  # it is only paused
                    keeping.append(victim)
                    continue
            emptied.append(other)
            free += self._held(other)
        for victim in victims:
            if victim.engine_tier <= request.engine_tier:
                self._pause(victim, now_s)
            else:
                self._stop(victim, now_s)
                members.leave(victim)
        for other in emptied:
            self._take_blocks(other)
        return True
