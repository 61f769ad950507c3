"""The engine process seen from outside, while it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from python_backend.engine.process import handle
from python_backend.engine.process.handle import EngineProcess
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import EngineParameters

# In the place of `python -m python_backend.engine.process.main FD`.
STAND_IN = """#!{python}
import sys
from multiprocessing.connection import Connection
sys.path.insert(0, {root!r})
from python_backend.engine.process.messages import *
connection = Connection(int(sys.argv[3]))
receive_command(connection)
for message in ({messages}):
    send(connection, message)
"""
READY = "Ready(100, 10, 10, 8, 64)"


def start(monkeypatch: pytest.MonkeyPatch, directory: Path, *messages: str) -> EngineProcess:
    program = directory / "engine"
    root = str(Path(__file__).parents[3])
    said = "".join(f"{message}, " for message in messages)
    program.write_text(STAND_IN.format(python=sys.executable, root=root, messages=said))
    program.chmod(0o755)
    monkeypatch.setattr(handle, "_interpreter", lambda: str(program))
    return EngineProcess(EngineParameters("V1", ""))


def test_the_progress_of_a_start_is_passed_on_until_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[tuple[str, int, int]] = []
    steps = ["Loading('loading weights', 1, 2)", "Loading('measuring memory', 0, 0)"]
    engine = start(monkeypatch, tmp_path, *steps, READY)
    ready = engine.wait_until_ready(lambda *loading: heard.append(loading))
    engine.stop()
    assert heard == [("loading weights", 1, 2), ("measuring memory", 0, 0)]
    assert ready.max_step_tokens == 64


def test_a_start_needs_no_progress_listener(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = start(monkeypatch, tmp_path, "Loading('loading weights', 1, 2)", READY)
    assert engine.wait_until_ready().max_batch_size == 8
    engine.stop()


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (["Loading('loading weights', 1, 2)", "Broken('unsupported: it does not fit')"], "it does not fit"),
        (["Loading('loading weights', 1, 2)"], "ended while loading"),
        (["Progress([])"], "unexpected Progress"),
    ],
)
def test_a_start_that_breaks_off_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: list[str], reason: str
) -> None:
    engine = start(monkeypatch, tmp_path, *messages)
    with pytest.raises(InflightError, match=reason):
        engine.wait_until_ready()
