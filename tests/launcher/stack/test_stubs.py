"""Model processes that die or are stopped under a Triton that lives on."""

from __future__ import annotations

import os
import signal
import subprocess
from io import StringIO

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from launcher.console import StackConsole
from launcher.stack.stubs import State, Stub, StubCensus, StubWatch, model_of
from tests.pace import patience

ENGINE, EMBEDDINGS, CANARY = "tensorrt_llm", "embeddings", "smol.2.tensorrt_llm"
DEAD = Stub("", State.DEAD)
FAULT = "its tensorrt_llm model has not been loaded again"


def alive(model: str = ENGINE) -> Stub:
    return Stub(model)


def stopped(model: str = ENGINE) -> Stub:
    return Stub(model, State.STOPPED)


class Watched:
    """A watch over stubs that are given to it; a second passes with each look."""

    def __init__(self, is_loaded: bool = True, of: str = "") -> None:
        self._output = StringIO()
        console = Console(file=self._output, highlight=False, width=200)
        self.watch = StubWatch(
            StackConsole(console, console), {ENGINE}, lambda model: is_loaded, of, grace_s=25
        )
        self._now_s = 0.0

    @property
    def said(self) -> list[str]:
        return self._output.getvalue().splitlines()

    def look(self, stubs: dict[int, Stub], times: int = 1) -> str | None:
        fault = None
        for _ in range(times):
            self._now_s += 1
            fault = fault or self.watch.judge(stubs, self._now_s)
        return fault


def test_a_dead_stub_is_reported_once_and_is_a_fault_if_its_model_is_not_reloaded() -> None:
    watched = Watched()
    watched.look({1: alive()})
    assert watched.look({1: DEAD}, times=25) is None
    assert watched.look({1: DEAD}) == FAULT
    assert watched.said == ["The tensorrt_llm model died; the router loads it again."]


def test_a_dead_stub_whose_model_has_a_new_process_is_recovered() -> None:
    watched = Watched(of=" of Triton-1")
    watched.look({1: alive()})
    watched.look({1: DEAD}, times=3)
    assert watched.look({1: DEAD, 2: alive()}, times=100) is None
    assert watched.said == [
        "The tensorrt_llm model of Triton-1 died; the router loads it again.",
        "The tensorrt_llm model of Triton-1 is back.",
    ]


def test_a_stub_that_dies_again_is_another_death() -> None:
    watched = Watched()
    watched.look({1: alive()})
    watched.look({1: DEAD}, times=3)
    watched.look({1: DEAD, 2: alive()}, times=100)
    assert watched.look({1: DEAD, 2: DEAD}, times=30) == FAULT


def test_a_stub_replaced_between_two_looks_is_still_reported() -> None:
    watched = Watched()
    watched.look({1: alive()})
    assert watched.look({1: DEAD, 2: alive()}, times=100) is None
    assert watched.said == [
        "The tensorrt_llm model died; the router loads it again.",
        "The tensorrt_llm model is back.",
    ]


def test_a_stub_that_triton_replaces_itself_is_not_reported() -> None:
    watched = Watched()
    watched.look({1: alive()})
    watched.look({1: DEAD, 2: alive()})
    watched.look({2: alive()}, times=30)
    assert watched.said == []


def test_a_stub_that_triton_reaps_between_two_looks_as_another_took_its_place_is_back() -> None:
    watched = Watched()
    watched.look({1: alive()})
    watched.look({1: DEAD}, times=3)
    watched.look({2: alive()}, times=3)
    assert watched.said == [
        "The tensorrt_llm model died; the router loads it again.",
        "The tensorrt_llm model is back.",
    ]


def test_another_instance_from_before_does_not_count_as_recovery() -> None:
    watched = Watched()
    watched.look({1: alive(), 2: alive()})
    assert watched.look({1: DEAD, 2: alive()}, times=30) == FAULT


def test_a_stub_that_triton_reaps_was_ended_by_triton() -> None:
    watched = Watched()
    watched.look({1: alive()})
    watched.look({1: DEAD})
    assert watched.look({}, times=30) is None
    assert watched.said == []


def test_a_dead_stub_of_an_unloaded_model_is_no_fault() -> None:
    watched = Watched(is_loaded=False)
    watched.look({1: alive()})
    assert watched.look({1: DEAD}, times=60) is None


@pytest.mark.parametrize("model", [CANARY, EMBEDDINGS])
def test_a_release_that_stays_dead_does_not_restart_triton(model: str) -> None:
    watched = Watched()
    watched.look({1: alive(), 2: alive(model)})
    assert watched.look({1: alive(), 2: DEAD}, times=60) is None
    assert watched.look({1: alive(), 2: DEAD, 3: alive(model)}, times=2) is None
    assert watched.said == [
        f"The {model} model died; the router loads it again.",
        f"The {model} model is back.",
    ]


def test_a_dead_stub_never_seen_alive_belongs_to_a_model_that_did_not_load() -> None:
    watched = Watched()
    watched.look({1: alive()})
    assert watched.look({1: alive(), 2: DEAD}, times=60) is None
    assert watched.said == []


def test_a_stopped_stub_is_a_fault_unless_it_continues() -> None:
    watched = Watched()
    watched.look({1: alive()})
    assert watched.look({1: stopped()}, times=20) is None
    watched.look({1: alive()})
    assert watched.said == [
        "The tensorrt_llm model was stopped; the router loads it again.",
        "The tensorrt_llm model is back.",
    ]
    assert watched.look({1: stopped()}, times=30) == FAULT


def test_a_stopped_stub_that_was_replaced_is_killed_and_stays_recovered() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # the kernel stops it when it gets to it
        watched = Watched()
        watched.look({process.pid: alive()})
        watched.look({process.pid: stopped()}, times=3)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        watched.look({process.pid: stopped(), 2: alive()})
        assert process.wait(timeout=patience(30)) == -9
        assert watched.look({process.pid: DEAD, 2: alive()}, times=60) is None
        assert watched.said[1:] == ["The tensorrt_llm model is back."]


STUBS = st.dictionaries(
    st.integers(1, 6), st.sampled_from([alive(), stopped(), DEAD, alive(CANARY), stopped(CANARY)]), max_size=6
)


@settings(deadline=None)
@given(st.lists(STUBS, max_size=40))
def test_only_stopped_stubs_with_a_living_sibling_are_killed(
    looks: list[dict[int, Stub]],
) -> None:
    census = StubCensus(grace_s=5)
    fallen_for = dict.fromkeys(range(1, 7), 0)
    for now_s, stubs in enumerate(looks):
        found = census.take(stubs, float(now_s))
        for pid in fallen_for:
            is_fallen = pid in stubs and stubs[pid].state is not State.ALIVE
            fallen_for[pid] = fallen_for[pid] + 1 if is_fallen else 0
        for pid in found.to_kill:
            assert stubs[pid].state is State.STOPPED
        if found.lost:
            assert max(fallen_for.values()) > 5
        assert "" not in found.lost
        assert "" not in found.back


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (["stub", "/run/ab/model_repository/embeddings/1/model.py", "region"], "embeddings"),
        (["stub", "/data/releases/repository/smol.2.tensorrt_llm/2/model.py", "region"], CANARY),
        (["stub", "model.py"], ""),
        (["stub"], ""),
        ([], ""),
    ],
)
def test_a_stubs_model_is_read_from_its_command_line(command: list[str], model: str) -> None:
    assert model_of(command) == model
