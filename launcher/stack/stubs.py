"""The model processes (stubs) of a Triton: which of them live, and when a dead one is the Triton's fault."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from launcher.console import StackConsole

STUB_NAME = "triton_python_backend_stub"
# The router loads a model again within seconds; twice that long, and it is not going to.
GRACE_S = 25.0
LOOK_PERIOD_S = 1.0
# One that Triton has stopped itself is dead for a moment too, before it is collected.
BELIEVE_AFTER_S = 1.0


class State(Enum):
    ALIVE = "is alive"
    STOPPED = "was stopped"
    DEAD = "died"


@dataclass(frozen=True)
class Stub:
    """`model` is empty for the dead, of whom it cannot be known any more."""

    model: str
    state: State = State.ALIVE


@dataclass
class FailedStub:
    """A stub that is dead or stopped; `older` are those that were there before it fell.

    It is settled when there is nothing more to say about it.
    """

    model: str
    since_s: float
    older: frozenset[int]
    is_told: bool = False
    is_replaced: bool = False
    is_settled: bool = False


@dataclass
class Findings:
    fallen: list[tuple[str, State]] = field(default_factory=list)
    back: list[str] = field(default_factory=list)
    to_kill: list[int] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)


class StubCensus:
    """Decides from what is seen at each look. Which processes a model has is remembered from its lifetime.

    A Triton whose stub dies lives on, calls itself ready, and keeps the dead one for as long as it runs. What
    mends it is a load that gives its model new stubs; from then on the old one does not matter, and one that
    is only stopped is killed, or it would hold its memory for ever.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._models: dict[int, str] = {}
        self._casualties: dict[int, FailedStub] = {}

    def take(self, stubs: Mapping[int, Stub], now_s: float) -> Findings:
        found = Findings()
        before, known = frozenset(self._models), self._models
        self._models = {pid: stub.model or known.get(pid, "") for pid, stub in stubs.items()}
        fallen = {pid for pid, stub in stubs.items() if stub.state is not State.ALIVE}
        for pid in self._casualties.keys() - fallen:
            casualty = self._casualties.pop(pid)
            # It was only stopped, and goes on, or Triton has collected it after its model was loaded again.
            is_mended = pid in stubs or self._has_newer(casualty, stubs)
            if is_mended and casualty.is_told and not casualty.is_settled:
                found.back.append(casualty.model)
        for pid in fallen:
            model = self._models[pid]
            # Whose it was is not known of one that never lived for long: of a model that did not load.
            new = FailedStub(model, now_s, before, is_settled=not model)
            casualty = self._casualties.setdefault(pid, new)
            casualty.is_replaced |= self._has_newer(casualty, stubs)
            if now_s - casualty.since_s >= BELIEVE_AFTER_S:
                self._report(pid, casualty, stubs[pid].state, now_s, found)
        return found

    def settle(self, model: str) -> None:
        """Nothing more is expected of this model's fallen stubs."""
        for casualty in self._casualties.values():
            casualty.is_settled |= casualty.model == model

    def _report(self, pid: int, casualty: FailedStub, state: State, now_s: float, found: Findings) -> None:
        if casualty.is_replaced and state is State.STOPPED:
            found.to_kill.append(pid)
        if casualty.is_settled:
            return
        if not casualty.is_told:
            casualty.is_told = True
            found.fallen.append((casualty.model, state))
        if casualty.is_replaced:
            casualty.is_settled = True
            found.back.append(casualty.model)
        elif now_s - casualty.since_s >= self._grace_s:
            found.lost.add(casualty.model)

    def _has_newer(self, casualty: FailedStub, stubs: Mapping[int, Stub]) -> bool:
        return any(
            stub.model == casualty.model and stub.state is State.ALIVE and pid not in casualty.older
            for pid, stub in stubs.items()
        )


class StubWatch:
    """Looks after the stubs of one Triton, and says what happens to them.

    `needed` are the models that a stack brings itself: one that stays dead makes its Triton broken. Those of
    releases are the router's alone, so that a canary that keeps dying takes nothing else along.
    """

    def __init__(
        self,
        console: StackConsole,
        needed: Set[str],
        is_loaded: Callable[[str], bool],
        of: str = "",
        grace_s: float = GRACE_S,
    ) -> None:
        self._console = console
        self._needed = needed
        self._is_loaded = is_loaded
        self._of = of
        self._grace_s = grace_s
        self._census = StubCensus(grace_s)
        self._next_look_s = 0.0

    def begin(self, triton_pid: int, now_s: float) -> None:
        """A Triton has become ready: whoever dies from now on has been seen alive."""
        self._census = StubCensus(self._grace_s)
        self._census.take(stubs_of(triton_pid), now_s)

    def find_fault(self, triton_pid: int, now_s: float) -> str | None:
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + LOOK_PERIOD_S
        return self.judge(stubs_of(triton_pid), now_s)

    def judge(self, stubs: Mapping[int, Stub], now_s: float) -> str | None:
        found = self._census.take(stubs, now_s)
        for model, state in dict(found.fallen).items():
            self._console.problem(f"The {model} model{self._of} {state.value}; the router loads it again.")
        for model in dict.fromkeys(found.back):
            self._console.say(f"The {model} model{self._of} is back.")
        for pid in found.to_kill:
            with suppress(psutil.Error):
                psutil.Process(pid).kill()
        for model in self._needed & found.lost:
            if self._is_loaded(model):
                return f"its {model} model has not been loaded again"
            self._census.settle(model)
        return None


def has_fallen(triton_pid: int) -> bool:
    """Whether it has dead or stopped stubs, for which it would wait for ever."""
    return any(stub.state is not State.ALIVE for stub in stubs_of(triton_pid).values())


def stubs_of(triton_pid: int) -> dict[int, Stub]:
    found: dict[int, Stub] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(triton_pid).children():
            with suppress(psutil.Error):
                if STUB_NAME.startswith(process.name()):
                    found[process.pid] = _look_at(process)
    return found


def _look_at(process: psutil.Process) -> Stub:
    status = process.status()
    if status == psutil.STATUS_ZOMBIE:
        return Stub("", State.DEAD)
    state = State.STOPPED if status == psutil.STATUS_STOPPED else State.ALIVE
    return Stub(model_of(process.cmdline()), state)


def model_of(command: Sequence[str]) -> str:
    """A stub is told to run REPOSITORY/MODEL/VERSION/model.py, also where a backend's own file is meant."""
    parts = command[1].split("/") if len(command) > 1 else []
    return parts[-3] if len(parts) >= 3 else ""
