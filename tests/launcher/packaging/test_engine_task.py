"""The engine's programs as the launcher runs them: shown at work, ended with it, believed if they refuse."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.failure import ProcessFailed
from launcher.packaging.engine_task import PREPARE as OWN_PREPARE
from launcher.packaging.engine_task import lines_of, run_engine_task
from launcher.packaging.models.checkpoint import CheckpointError
from launcher.settings import SettingsError
from launcher.stack.stop_signals import StopSignals
from tests.waiting import wait_until

PREPARE = [sys.executable, str(Path(__file__).parents[1] / "stand_ins" / "prepare.py")]


def recorded(terminal: bool = False) -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, force_terminal=terminal, highlight=False, width=100)
    return StackConsole(console, console), output


def test_each_stage_is_shown_once_and_findings_are_returned() -> None:
    console, output = recorded()
    assert run_engine_task(PREPARE, {"gpt_model_path": "x"}, console) == [
        {"inflight_device": "cpu", "computes_on": "the CPU, int8"},
        {"told": {"gpt_model_path": "x"}},
    ]
    assert [line for line in output.getvalue().splitlines() if line.endswith("...")] == [
        "Packing the weights (int8) ...",
        "Compiling the kernels, once for this machine ...",
    ]
    assert "Compiling the kernels, once for this machine: " in output.getvalue()


def test_a_notice_is_a_line_of_its_own() -> None:
    console, output = recorded()
    run_engine_task(PREPARE, {}, console)
    assert "Computing on the CPU: there is a GPU, but it is made of cheese" in output.getvalue().splitlines()


def test_a_measurable_stage_has_a_progress_bar() -> None:
    console, output = recorded(terminal=True)
    run_engine_task(PREPARE, {}, console)
    assert "100%" in output.getvalue()
    assert "bytes" not in output.getvalue()


def test_a_refusal_is_shown_as_a_sentence_without_its_kind() -> None:
    console, output = recorded()
    with pytest.raises(CheckpointError, match=r"^this model is a poem, which this engine does not know$"):
        run_engine_task(PREPARE, {"inflight_precision": "fp32"}, console)
    assert "Packing the weights (fp32): " in output.getvalue()
    assert "Compiling the kernels, once for this machine: " not in output.getvalue(), "it was not done"


def test_a_refused_parameter_is_a_refused_setting() -> None:
    console, _ = recorded()
    with pytest.raises(SettingsError, match=r"^parameter inflight_precision is 'bf16'; allowed: int8$"):
        run_engine_task(PREPARE, {"inflight_precision": "bf16"}, console)


def test_a_package_in_the_working_directory_does_not_shadow_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python_backend").mkdir()
    (tmp_path / "python_backend" / "__init__.py").write_text("raise ImportError('not ours')")
    monkeypatch.chdir(tmp_path)
    console, _ = recorded()
    with pytest.raises(SettingsError, match="parameter gpt_model_path is ''; allowed: it must be set"):
        run_engine_task(OWN_PREPARE, {}, console)


def test_a_killed_engine_program_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPARE_DIES", "1")
    console, _ = recorded()
    with pytest.raises(ProcessFailed, match=r"could not be prepared: .* ended with signal 9"):
        run_engine_task(PREPARE, {}, console)


def test_a_crash_is_reported_with_its_last_lines() -> None:
    program = "import sys; sys.stderr.write('Traceback\\nKeyError\\nengine_failed: it broke\\n'); sys.exit(1)"
    console, _ = recorded()
    with pytest.raises(ProcessFailed, match="could not be prepared: it broke") as failed:
        run_engine_task([sys.executable, "-c", program], {}, console)
    assert failed.value.lines == ["Traceback", "KeyError"]


def test_the_failure_has_the_callers_name_for_it() -> None:
    program = "import sys; sys.exit('engine_failed: it broke')"
    console, _ = recorded()
    with pytest.raises(ProcessFailed, match=r"^The poem could not be read: it broke$"):
        run_engine_task([sys.executable, "-c", program], {}, console, "The poem could not be read")


def test_lines_are_put_together_from_the_pieces_that_come() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        lines = lines_of(stream)
        os.write(writing, b'{"one": 1}\n{"tw')
        assert next(lines) == b'{"one": 1}'
        threading.Timer(0.3, os.write, (writing, b'o": 2}\n')).start()  # longer than one turn
        assert next(lines) == b'{"two": 2}'
        os.close(writing)
        assert [*lines] == []


def command_of(child: psutil.Process) -> str:
    """Nothing for one that has just ended."""
    try:
        return " ".join(child.cmdline())
    except psutil.Error:
        return ""


def test_a_stop_signal_ends_the_engine_program() -> None:
    console, output = recorded()

    def interrupt() -> None:
        with suppress(AssertionError):
            wait_until(lambda: "Compiling" in output.getvalue())
        os.kill(os.getpid(), signal.SIGTERM)

    signals, interrupting = StopSignals(), threading.Thread(target=interrupt)
    with signals.handled(), signals.interrupting():
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            run_engine_task(PREPARE, {"inflight_precision": "int4"}, console)
    interrupting.join()
    assert [name for name in map(command_of, psutil.Process().children()) if "prepare.py" in name] == []
