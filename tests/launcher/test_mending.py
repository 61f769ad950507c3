"""A model that died is loaded again by itself, and one that does not stay up is left alone."""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.mending import ModelMender
from launcher.restart_policy import RestartPolicy
from launcher.triton import StubWatch, model_of

EMBEDDINGS = "embeddings"


class Mended:
    """A mender whose model can be told to refuse; `now_s` goes on by a second at each look."""

    def __init__(self, refusal: str = "") -> None:
        self.loads = 0
        self._refusal = refusal
        self._output = StringIO()
        console = Console(file=self._output, highlight=False, width=200)
        self.mender = ModelMender(EMBEDDINGS, self._load, StackConsole(console, console))
        self.watch = StubWatch(grace_s=3, menders={EMBEDDINGS: self.mender})
        self._now_s = 0.0

    @property
    def said(self) -> str:
        return self._output.getvalue()

    def look(self, stubs: dict[int, str | None], times: int = 1) -> str | None:
        fault = None
        for _ in range(times):
            self._now_s += 1
            fault = self.watch.judge(stubs, self._now_s)
            for thread in threading.enumerate():
                if thread.name == f"mend {EMBEDDINGS}":
                    thread.join()
        return fault

    def _load(self) -> None:
        self.loads += 1
        if self._refusal:
            raise OSError(self._refusal)


def test_its_dead_process_is_no_fault_and_is_replaced_once() -> None:
    mended = Mended()
    mended.look({1: EMBEDDINGS, 2: "tensorrt_llm"})
    assert mended.look({1: None, 2: "tensorrt_llm"}, times=30) is None
    assert mended.loads == 1
    assert "The embeddings model died; loading it again in 0.5 s." in mended.said
    assert "The embeddings model is back." in mended.said
    assert mended.look({3: EMBEDDINGS, 2: None}, times=5) == "one of its model processes died"
    assert mended.loads == 1, "of the other one"


def test_a_dead_process_that_was_never_seen_alive_may_be_anybodys() -> None:
    assert Mended().look({1: None}, times=5) == "one of its model processes died"


def test_one_that_keeps_dying_is_given_up_and_nothing_else_is_touched() -> None:
    mended = Mended()
    for pid in range(1, 10):
        mended.look({pid: EMBEDDINGS})
        assert mended.look({pid: None}, times=40) is None
    assert mended.loads == RestartPolicy().chances
    assert "does not stay up: it is left out until the next start" in mended.said


def test_one_that_cannot_be_loaded_is_told_and_left_alone() -> None:
    mended = Mended(refusal="the weights are made of cheese")
    mended.look({1: EMBEDDINGS})
    assert mended.look({1: None}, times=30) is None
    assert mended.loads == 1
    assert "it cannot be loaded again: the weights are made of cheese" in mended.said
    assert "is back" not in mended.said


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (["stub", "/run/ab/model_repository/embeddings/1/model.py", "region"], "embeddings"),
        (["stub", "model.py"], ""),
        (["stub"], ""),
        ([], ""),
    ],
)
def test_a_stub_tells_its_model_by_its_command(command: list[str], model: str) -> None:
    assert model_of(command) == model
