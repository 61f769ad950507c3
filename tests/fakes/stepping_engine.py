"""An engine on simulated time behind a policy: steps that take what a cost says, deterministic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepCost, StepShape
from router.admission.capacity import Capacity
from router.admission.demand import Demand, QueueEntry, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.policy import Policy

COST = StepCost(base_ms=12.0, prefill_token_ms=0.12, decode_sequence_ms=0.25)


@dataclass(slots=True, eq=False)
class Job:
    """One request and what became of it; `tokens` is the length of its answer."""

    demand: Demand
    tokens: int
    completion_tokens: int = 0
    computed_tokens: int = 0
    entry: QueueEntry | None = None
    refused: Refused | None = None
    first_token_s: float | None = None
    ended_s: float | None = None

    @property
    def waited_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.demand.arrived_s

    @property
    def is_good(self) -> bool:
        """Its first token came in time."""
        return self.first_token_s is not None and self.first_token_s <= self.demand.deadline_s


@dataclass
class SteppingEngine:
    """Prompts first come first served, in chunks beside the next token of everybody else."""

    policy: Policy
    slots: int = 64
    kv_tokens: int | None = 40_000
    step_tokens: int = 512
    cost: StepCost = COST
    tells_cost: bool = True
    now_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)  # compute units of tokens and prompts by tenant
    _of_entry: dict[QueueEntry, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy.resize(
            Capacity(
                replicas=1,
                slots=self.slots,
                kv_tokens=self.kv_tokens,
                block_tokens=16,
                step_tokens=self.step_tokens,
                step=self.cost if self.tells_cost else None,
            )
        )

    def run(self, arrivals: Iterable[Job], until_s: float) -> None:
        coming = sorted(arrivals, key=lambda job: job.demand.arrived_s)
        self.jobs.extend(coming)
        coming.reverse()
        while self.now_s < until_s:
            while coming and coming[-1].demand.arrived_s <= self.now_s:
                self._offer(coming.pop())
            self._hand_on()
            if self.running:
                self._step()
            else:
                self.now_s = max(
                    self.now_s + 0.005, min(coming[-1].demand.arrived_s if coming else until_s, until_s)
                )

    def _offer(self, job: Job) -> None:
        answer = self.policy.offer(job.demand, job, self.now_s)
        if isinstance(answer, Refused):
            job.refused = answer
            return
        job.entry = answer
        self._of_entry[answer] = job
        self._hand_on()

    def _hand_on(self) -> None:
        for entry in self.policy.hand_on(self.now_s):
            job = self._of_entry.pop(entry)
            if entry.refusal is not None:
                job.refused = entry.refusal
            else:
                self.running.append(job)

    def _step(self) -> None:
        decoding = [job for job in self.running if job.completion_tokens]
        budget = self.step_tokens - len(decoding)
        kv = sum(job.demand.prompt_tokens + job.completion_tokens for job in decoding)
        chunks = 0
        first: list[Job] = []
        for job in self.running:
            if job.completion_tokens or budget <= 0:
                continue
            chunk = min(budget, job.demand.prompt_tokens - job.computed_tokens)
            job.computed_tokens += chunk
            self._serve(job, self.cost.prefill_token_ms * chunk)
            budget -= chunk
            chunks += chunk
            if job.computed_tokens >= job.demand.prompt_tokens:
                first.append(job)
        self.now_s += self.cost.step_ms(StepShape(chunks, len(decoding), kv)) / 1000
        token_ms = self.cost.base_ms / max(len(self.running), 1) + self.cost.decode_sequence_ms
        for job in decoding:
            self._serve(job, token_ms)
            job.completion_tokens += 1
        for job in first:
            job.completion_tokens = 1
            job.first_token_s = self.now_s
            assert job.entry is not None
            self.policy.first_token(job.entry, self.now_s)
        for job in [job for job in self.running if job.completion_tokens >= job.tokens]:
            assert job.entry is not None
            self.policy.end(job.entry, self.now_s)
            job.ended_s = self.now_s
        self.running = [job for job in self.running if job.ended_s is None]

    def _serve(self, job: Job, units: float) -> None:
        tenant = job.demand.tenant
        self.served[tenant] = self.served.get(tenant, 0.0) + units
