"""A simulated engine's batch: which requests run, which wait, and the cache blocks they hold.

The rules are those of the engine's scheduler and block pool: by rank, decodes first, prompts under the budget
that they leave, better tiers preempt worse ones, and when the cache is full the last in rank is preempted.
There is no prefix cache.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from simulator.request import SimulatedRequest

_rank = attrgetter("rank")
_WORSE_THAN_ALL = max(Tier) + 1

Chunks = list[tuple["SimulatedRequest", int]]


class Batch:
    """`step` counts decoding steps: it alone tells how far each decoding request is.

    An ended request keeps its slot and its blocks until `let_go`.
    """

    def __init__(self, total_blocks: int, block_tokens: int, holds_whole_answers: bool) -> None:
        self.running: list[SimulatedRequest] = []  # these three by rank
        self.waiting: list[SimulatedRequest] = []
        self.behind: list[SimulatedRequest] = []  # of the running ones, those whose prompt is not computed
        self.step = 0
        self.preemptions = 0
        self.used_blocks = 0
        self.present = [0 for _ in Tier]
        self.decoding = [0 for _ in Tier]
        self.decoding_kv_tokens = 0
        self._total_blocks = total_blocks
        self._block_tokens = block_tokens
        self._holds_whole_answers = holds_whole_answers
        # How many decoding requests fill a block at the same step.
        self._phases = [0] * block_tokens
        self._max_batch_size = 1
        self._ended: list[SimulatedRequest] = []

    def add(self, request: SimulatedRequest) -> None:
        self.present[request.engine_tier] += 1
        insort(self.waiting, request, key=_rank)

    def may_join(self, request: SimulatedRequest) -> bool:
        """Whether a new plan could admit it."""
        if self.waiting and self.waiting[0].rank < request.rank:
            return False
        if self.running and self.running[-1].engine_tier > request.engine_tier:
            return True
        return len(self.running) < self._max_batch_size

    def plan(self, max_batch_size: int, max_step_tokens: int, now_s: float) -> Chunks:
        """Admits requests, and divides the step's prompt tokens; decoding requests get one token each."""
        self._max_batch_size = max_batch_size
        if not self._holds_whole_answers:
            while self.running and self._free_blocks() < 0:
                self._preempt_last(now_s)
        chunks: Chunks = []
        if not self.behind and not self.waiting:
            return chunks
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
            self.used_blocks += self._growth(steps)
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
        del self.running[bisect_left(self.running, request.rank, key=_rank)]

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

    def _preempt_last(self, now_s: float) -> None:
        if self.let_go():  # that may be enough
            return
        request = self.running[-1]
        request.blocks = self._held(request)
        if request.last_step >= 0:
            request.last_token_s = now_s
            self._stop_decoding(request)
        else:
            self.behind.remove(request)
        self._take_out(request)
        request.computed_tokens = 0
        request.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, request, key=_rank)

    def _give(self, chunks: Chunks, request: SimulatedRequest, left: int) -> int:
        count = min(request.lacking_tokens, left)
        if count > 0:
            chunks.append((request, count))
            left -= count
        return left

    def _admit(self, chunks: Chunks, left: int, better_than: int, now_s: float) -> int:
        while self.waiting and left > 0 and self.waiting[0].engine_tier < better_than:
            request = self.waiting[0]
            if not self._make_way(request, now_s):
                break
            self.waiting.remove(request)
            insort(self.running, request, key=_rank)
            insort(self.behind, request, key=_rank)
            request.blocks = self._to_hold(request)
            self.used_blocks += request.blocks
            left = self._give(chunks, request, left)
        return left

    def _make_way(self, request: SimulatedRequest, now_s: float) -> bool:
        """Frees a slot and blocks, by preempting worse tiers if that is enough; returns whether it did."""
        running, victims = len(self.running), 0
        free = self._free_blocks() - self._to_hold(request)
        keep = 0 if self._holds_whole_answers else 1  # a block for each running request, so that it can grow
        while (running >= self._max_batch_size and not victims) or free < keep * (running - victims):
            if victims == running or self.running[-1 - victims].engine_tier <= request.engine_tier:
                return False
            free += self._held(self.running[-1 - victims])
            victims += 1
        if victims and self.let_go():
            return self._make_way(request, now_s)
        for _ in range(victims):
            self._preempt_last(now_s)
        return True
