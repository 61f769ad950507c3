"""Runs on one stack, one after the other, as they were sent and seen: a file to hold forecasts against."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from math import inf
from pathlib import Path

import msgspec
import psutil

from benchmarks.objectives.arrivals import at_rate, capacity_per_s
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.serving import Served
from loadtest.replay.clients import send_from
from loadtest.replay.plan import InventedPrompt, PlannedRequest, plan_of
from loadtest.replay.sender import Target
from loadtest.results import RequestResult
from loadtest.traces import Trace, TracedRequest
from python_backend.costs.step_cost import StepCost
from router.core.objective import Objective
from router.routing.replica_choice import home_of, opening_of

# After the last arrival and the longest objective: long answers take a while, and are waited for.
GRACE_S = 60.0
# The engine tells its gauges every now and then.
TOLD_WITHIN_S = 2.0
_SAMPLE_EVERY_S = 0.5
# Seconds that the host of a virtual machine gave to others although this one had work, for each processor.
STOLEN = "stolen_s"
_SAMPLED = re.compile(r"^((?:inflight_engine_|nv_trt_llm_)\w+(?<!_bucket)(?:\{.*\})?) (\S+)$", re.MULTILINE)
_FIRST_TOKENS = "inflight_engine_time_to_first_token_seconds"
GENERATED = "inflight_engine_generated_tokens_total"
# Requests that come alone tell what a request takes beside its own step.
ALONE, ALONE_TOKENS = "alone", 64
TEACHES = "teaches"
_ALONE_EVERY_S, _ALONE = 0.5, 15
# Requests a second before anything is known, and then shares of what can be done; and what a crowd asks for.
_FIRST_PER_S, _TEACHING = 4.0, (1.0, 0.5, 1.0)
_CROWD = 2.0


class Part(str, Enum):
    """What a run is for; the trace of each part is another one."""

    TEACHING = "teaching"
    LOADS = "loads"
    OVERLOAD = "overload"


@dataclass(frozen=True)
class SentRun:
    """`began_s` since the session began; `cost` is what the engine had learned when it was over.

    Figures are of what arrived within the window. `homes` are the replicas that the prompts' openings belong
    to, in order of arrival.
    """

    name: str
    began_s: float
    window_s: tuple[float, float]
    results: list[RequestResult]
    part: Part = Part.TEACHING
    cost: StepCost | None = None
    homes: list[int] = field(default_factory=list)

    @property
    def requests(self) -> list[TracedRequest]:
        return [
            TracedRequest(each.at_s, each.prompt_tokens, each.asked_tokens, each.tenant, each.tier)
            for each in self.results
        ]


@dataclass
class Session:
    """`cost` is what the engine had learned of its steps when it was taught; `samples` the metrics of all."""

    engine: Engine
    objectives: dict[str, Objective]
    servers: int = 1
    cost: StepCost | None = None
    runs: list[SentRun] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)

    def capacity_per_s(self, trace: Trace, cost: StepCost) -> float:
        """Of all servers together, in requests of this mixture."""
        return self.servers * capacity_per_s(trace.requests, cost, self.engine.places, self.engine.kv_tokens)

    def samples_of(self, run: SentRun) -> list[dict[str, float]]:
        """From when it began until the next did."""
        over_s = min((each.began_s for each in self.runs if each.began_s > run.began_s), default=inf)
        return [each for each in self.samples if run.began_s <= each["at_s"] < over_s]


def keep(path: Path, session: Session) -> None:
    """Compressed where the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = msgspec.json.encode(session)
    path.write_bytes(gzip.compress(told, mtime=0) if path.suffix == ".gz" else told)


def read(path: Path) -> Session:
    told = path.read_bytes()
    return msgspec.json.decode(gzip.decompress(told) if path.suffix == ".gz" else told, type=Session)


class Recorder:
    """Sends runs to a stack and writes down what became of them."""

    def __init__(self, served: Served, session: Session, clients: int = 1) -> None:
        self.session = session
        self._served = served
        self._clients = clients
        self._begin_s = time.perf_counter()

    def send(
        self,
        name: str,
        requests: Sequence[TracedRequest],
        window_s: tuple[float, float],
        part: Part = Part.TEACHING,
    ) -> SentRun:
        served, session = self._served, self.session
        patience_s = max(each.first_token_s or 0.0 for each in session.objectives.values())
        target = Target(served.url, served.model, served.keys, gives_up_s=window_s[1] + patience_s + GRACE_S)
        began: list[float] = []
        plan = sorted(plan_of(requests), key=lambda each: each.at_s)
        sent = send_from(target, plan, self._clients, begins=began.append)
        served.wait_until_idle()
        time.sleep(TOLD_WITHIN_S)
        results = sorted(map(slim, sent.results), key=lambda each: each.at_s)
        homes = homes_of(plan, served.replica_names())
        run = SentRun(name, began[0] - self._begin_s, window_s, results, part, served.learned_cost(), homes)
        session.runs.append(run)
        return run

    def learn(self, teaching: Trace, seconds: float, crowd: Trace | None = None) -> None:
        """What steps cost, by requests that are not tried; a crowd's are many at a time."""
        cost, per_s = None, _FIRST_PER_S
        for share in _TEACHING:  # what is learned of few at a time says little of many
            requests = at_rate(teaching, share * per_s, seconds).requests
            cost = self.send(TEACHES, requests, (0.0, seconds)).cost
            if cost is None:
                raise RuntimeError("the engine has not learned its step cost")
            per_s = self.session.capacity_per_s(teaching, cost)
            if crowd:
                many = at_rate(crowd, _CROWD * self.session.capacity_per_s(crowd, cost), seconds)
                self.send("crowd", many.requests, (0.0, seconds))
                crowd = None
        self.session.cost = cost
        alone = replace(teaching.requests[0], prompt_tokens=ALONE_TOKENS, output_tokens=2)
        plan = [replace(alone, at_s=_ALONE_EVERY_S * number) for number in range(_ALONE)]
        self.send(ALONE, plan, (0.0, _ALONE_EVERY_S * _ALONE))

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """The metrics of all engines together, twice a second."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._sample, args=(is_over,))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _sample(self, is_over: threading.Event) -> None:
        while not is_over.wait(_SAMPLE_EVERY_S):
            at_s = time.perf_counter() - self._begin_s
            sums: Counter[str] = Counter()
            for text in self._served.all_triton_metrics():
                sums.update({name: float(value) for name, value in _SAMPLED.findall(text)})
            self.session.samples.append({"at_s": at_s, STOLEN: stolen_s(), **sums})


@dataclass(frozen=True)
class _Idle:
    name: str
    outstanding_tokens: int = 0
    begun: int = 0


def homes_of(plan: Sequence[PlannedRequest], names: Sequence[str]) -> list[int]:
    """Of invented prompts, which of these replicas each belongs to."""
    idle = [_Idle(name) for name in names]
    prompts = [each.prompt.token_ids() for each in plan if isinstance(each.prompt, InventedPrompt)]
    return [idle.index(home_of(idle, opening_of(each))) for each in prompts] if idle else []


def slim(result: RequestResult) -> RequestResult:
    """As it is kept: of the times between its tokens the mean."""
    between_s = result.between_tokens_s
    return replace(result, gaps_s=[] if between_s is None else [between_s], text="", request_id="")


def summed(sample: dict[str, float], family: str) -> float:
    return sum(value for name, value in sample.items() if name.startswith(family))


def counted(session: Session, run: SentRun, family: str) -> float:
    """By how much a counter of all engines rose; what a run asked for is over when the next one begins."""
    samples = session.samples_of(run)
    return summed(samples[-1], family) - summed(samples[0], family)


def stolen_s() -> float:
    stolen: float = getattr(psutil.cpu_times(), "steal", 0.0)  # Linux alone tells
    return stolen / (psutil.cpu_count() or 1)


def stolen_shares(session: Session, run: SentRun) -> list[float]:
    """Of the processors' time, five seconds after five seconds; none where it was not recorded."""
    samples = [each for each in session.samples_of(run) if STOLEN in each][:: round(5.0 / _SAMPLE_EVERY_S)]
    return [
        (after[STOLEN] - before[STOLEN]) / (after["at_s"] - before["at_s"])
        for before, after in pairwise(samples)
    ]


def overhead_s(session: Session, name: str = ALONE) -> float:
    """What requests of the lightest run of that name took beside their time in the engine; 0 without any."""
    named = [run for run in session.runs if run.name == name]
    run = min(named, key=lambda each: len(each.results), default=None)
    firsts = [each.first_token_s for each in run.results if each.first_token_s is not None] if run else []
    if run is None or not firsts or not session.samples:
        return 0.0
    sum_s, count = (counted(session, run, f"{_FIRST_TOKENS}_{each}") for each in ("sum", "count"))
    return max(0.0, sum(firsts) / len(firsts) - sum_s / count)


def answered_per_s(session: Session, trace: Trace) -> float:
    """Requests of this mixture that were answered in a second when as much came as full batches would do.

    By their tokens in the last run that taught, from when the queue had filled until no more came. (With far
    more than that, nobody has little, batches are full, and more is done.)
    """
    run = [each for each in session.runs if each.name == TEACHES][-1]
    begin_s, end_s = (run.began_s + part * run.window_s[1] for part in (1 / 3, 1))
    samples = [each for each in session.samples if begin_s <= each["at_s"] <= end_s]
    first, last = samples[0], samples[-1]
    tokens_per_s = (summed(last, GENERATED) - summed(first, GENERATED)) / (last["at_s"] - first["at_s"])
    return tokens_per_s * len(trace.requests) / sum(each.output_tokens for each in trace.requests)


def trace_of(session: Session) -> Trace:
    """All that was sent, on the session's clock."""
    requests = [replace(each, at_s=run.began_s + each.at_s) for run in session.runs for each in run.requests]
    return Trace("session", tuple(requests))
