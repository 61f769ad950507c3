"""What the engine says in Triton's log while it starts is shown, stage by stage."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.stack.loading_view import LoadingView
from launcher.stack.processes import ChildProcess
from python_backend.wire.load_progress import LoadingStage, loading_text

if TYPE_CHECKING:
    from pathlib import Path

LOG = f"""I1104 10:00:00.0 1 server.cc:1] starting
2026-11-04 10:00:01,000 tensorrt_llm INFO {loading_text("loading weights", 0, 2)}
2026-11-04 10:00:02,000 tensorrt_llm INFO {loading_text("loading weights", 2, 2)}
2026-11-04 10:00:03,000 tensorrt_llm INFO {loading_text("measuring memory", 0, 0)}
"""


def recorded(terminal: bool = False) -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, force_terminal=terminal, highlight=False, width=100)
    return StackConsole(console, console), output


def child_that_wrote(text: str, log_path: Path) -> ChildProcess:
    child = ChildProcess([sys.executable, "-c", f"print({text!r})"], {}, log_path)
    child.start()
    while child.running:
        subprocess.run(["sleep", "0.02"], check=True)
    return child


def starts(output: StringIO) -> list[str]:
    return [line for line in output.getvalue().splitlines() if line.endswith("...")]


def test_each_stage_in_the_log_is_shown_once_after_the_label(tmp_path: Path) -> None:
    console, output = recorded()
    child = child_that_wrote(LOG, tmp_path / "triton.log")
    with LoadingView(console, "Loading the model") as view:
        view.read(child)
        view.read(child)
    assert starts(output) == ["Loading the model ...", "Loading weights ...", "Measuring memory ..."]
    assert [line.rpartition(":")[0] for line in output.getvalue().splitlines() if line.endswith(" s")] == [
        "Loading the model",
        "Loading weights",
        "Measuring memory",
    ]


def test_a_part_that_is_started_again_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    console, output = recorded()
    log = tmp_path / "triton.log"
    with LoadingView(console, "Loading the model") as view:
        view.read(child_that_wrote(LOG, log))
        view.read(child_that_wrote("crashed", log))
        view.read(child_that_wrote(LOG.replace("measuring memory", "reading poems"), log))
    assert starts(output)[-1] == "Reading poems ..."


def test_a_failed_stage_is_not_shown_as_done() -> None:
    console, output = recorded()

    def load() -> None:
        with LoadingView(console, "Loading the model") as view:
            view.show(LoadingStage("loading weights", 1, 2))
            view.show(LoadingStage("measuring memory", 0, 0))
            raise ValueError("the weights are made of cheese")

    with pytest.raises(ValueError, match="cheese"):
        load()
    assert "Loading weights: " in output.getvalue()
    assert "Measuring memory: " not in output.getvalue()


def test_a_log_without_stages_leaves_the_label(tmp_path: Path) -> None:
    console, output = recorded()
    with LoadingView(console, "Starting the router") as view:
        view.read(child_that_wrote("loading: it is late", tmp_path / "router.log"))
    assert starts(output) == ["Starting the router ..."]


def test_on_a_terminal_a_countable_stage_has_a_bar() -> None:
    console, output = recorded(terminal=True)
    with LoadingView(console, "Loading the model") as view:
        for done in range(13):
            view.show(LoadingStage("capturing graphs", done, 35))
    assert "Capturing graphs" in output.getvalue()
    assert "12/35" in output.getvalue()
