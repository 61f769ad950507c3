"""Runs one of the engine's own programs, shows how far it is, and gives back what it found."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from launcher.failure import ProcessFailed
from launcher.packaging.models.checkpoint import CheckpointError
from launcher.paths import PROJECT_ROOT
from launcher.settings import SettingsError
from launcher.tether import tethered
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import parse_engine_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from launcher.console import StackConsole

PREPARE = [sys.executable, "-m", "python_backend.engine.tasks.prepare"]
PERPLEXITY = [sys.executable, "-m", "python_backend.engine.tasks.perplexity"]
LABELS = {
    "waiting": "Waiting for another inflight that is preparing the model",
    "packing": "Packing the weights ({precision})",
    "compiling": "Compiling the kernels, once for this machine",
    "loading": "Loading the weights ({precision})",
    "measuring": "Measuring perplexity ({precision})",
}
EXIT_PARAMETER = 2
END_TIMEOUT_S = 5.0
TURN_MS = 200
LAST_LINES = 12

DEVICE, RUNTIME, PRECISION = "inflight_device", "inflight_runtime", "inflight_precision"
_WITHOUT_WEIGHTS = ("synthetic", "paced")

Event = dict[str, Any]


@dataclass(frozen=True)
class PreparedEngine:
    """`decided` are device, runtime and precision as the engine chose them on this machine."""

    decided: dict[str, str] = field(default_factory=dict)
    computes_on: str | None = None


def prepare_engine(
    command: list[str], parameters: Mapping[str, str], console: StackConsole
) -> PreparedEngine:
    """Packs weights and compiles kernels now, so that loading is quick; nothing for a runtime without any."""
    if parameters.get(RUNTIME) in _WITHOUT_WEIGHTS:
        return PreparedEngine()
    for found in run_engine_task(command, parameters, console):
        if device := found.get(DEVICE):
            decided = {key: found[key] for key in (DEVICE, RUNTIME) if key in found}
            wish = {"gpt_model_type": "V1", "gpt_model_path": "-", PRECISION: parameters.get(PRECISION, "")}
            decided[PRECISION] = found.get(PRECISION) or parse_engine_parameters(wish).on(device).precision
            return PreparedEngine(decided, found["computes_on"])
    return PreparedEngine()


def run_engine_task(
    command: list[str],
    told: Mapping[str, Any],
    console: StackConsole,
    problem: str = "The model could not be prepared",
) -> list[Event]:
    """`told` is its one argument; what it found are its lines that are not about a stage.

    It runs elsewhere: paths in `told` are absolute.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        # Its own session: Ctrl-C reaches the launcher alone, which ends it below.
        process = subprocess.Popen(
            tethered([*command, json.dumps(told)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            bufsize=0,
            cwd=PROJECT_ROOT,  # `-m` looks in the working directory first, and the user's may have others
        )
        try:
            assert process.stdout is not None
            with ExitStack() as stage, process.stdout as lines:
                found = show(lines_of(lines), console, stage)
                # While the last stage is still shown: one that failed learns of it, and is not shown as done.
                if process.wait() != 0:
                    raise failure(process.returncode, complaints, problem)
        finally:
            end(process)
    return found


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Waited for in turns: a stop signal that comes just before a read does not interrupt that."""
    waiting, rest = select.poll(), b""
    waiting.register(stream, select.POLLIN)
    while True:
        if not waiting.poll(TURN_MS):
            continue
        if not (piece := os.read(stream.fileno(), 65536)):
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def show(lines: Iterable[bytes], console: StackConsole, current: ExitStack) -> list[Event]:
    """`current` holds the stage being shown, also when the lines have ended."""
    found: list[Event] = []
    shown = ""
    for event in map(json.loads, lines):
        if "notice" in event:
            console.notice(event["notice"])
            continue
        if "stage" not in event:
            found.append(event)
            continue
        total = event.get("total")
        label = LABELS[event["stage"]].format_map(event)
        if label != shown:
            current.close()
            stage = current.enter_context(console.stage(label, total_steps=total))
            shown = label
        if total:
            stage.advance_to(event["done"])
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def failure(status: int, complaints: IO[str], problem: str) -> Exception:
    complaints.seek(0)
    lines = [line for line in complaints.read().splitlines() if line.strip()]
    if not lines or status < 0:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        return ProcessFailed(f"{problem}: its process ended with {how}", lines)
    error = InflightError.from_text(lines[-1])
    if error.kind.is_callers_fault:
        if status == EXIT_PARAMETER:
            return SettingsError(error.message)
        return CheckpointError(error.message)
    return ProcessFailed(f"{problem}: {error.message}", lines[-1 - LAST_LINES : -1])
