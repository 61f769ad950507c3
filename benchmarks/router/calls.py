"""`python -m benchmarks.router.calls`: Python calls and files that one streamed chat takes in the router."""

from __future__ import annotations

import asyncio
import dis
import os
import signal
import socket
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.router.contestants import Stubs, inflight_settings
from benchmarks.router.load import Target, ask_once
from benchmarks.router.pacing import max_tokens
from benchmarks.router.processes import LOAD_CORE, running
from benchmarks.stack import free_port
from router import server
from router.settings import load

if TYPE_CHECKING:
    from types import CodeType, FrameType

_ROOT = Path(__file__).resolve().parents[2]
_OURS = (f"{_ROOT}/router/", f"{_ROOT}/python_backend/")
_TOKENS = 8
_INTERVAL_MS = 40
_PAUSE_S = 0.01  # so long without a call parts what one token costs from the next
_WARM_CHATS = 20
_CHATS = 9  # undisturbed ones
_MOST_CHATS = 60
_READY_LIMIT_S = 30.0
REQUEST, FIRST, LATER, END = (
    "HTTP bytes to the gRPC frame",
    "first token to its HTTP write",
    "each later token",
    "last token and the end",
)
_GOALS = {"calls": {REQUEST: 130, LATER: 25}, "files": {REQUEST: 35}}


_RESUMED = " (resumed)"


@cache
def _start_of(code: CodeType) -> int:
    """Where a frame of this code begins: a coroutine that goes on does so behind it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            return instruction.offset
    return -1


@cache
def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


@dataclass
class Part:
    """The calls of one part of the way, by file and function; a coroutine's resumptions on their own."""

    timer: bool  # begun by none of the bytes that came
    ours: Counter[tuple[str, str]] = field(default_factory=Counter)
    libraries: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.ours.total()

    @property
    def resumptions(self) -> int:
        return sum(count for (_, name), count in self.ours.items() if name.endswith(_RESUMED))

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.ours}


class Recorder:
    """A profile function that begins a new part after each pause, and at the first answer from Triton."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._last_s = 0.0
        self._received = 0

    def event(self, frame: FrameType, kind: str, _: object) -> None:
        if kind != "call":
            return
        code = frame.f_code
        received = code.co_name == "data_received"
        self._received += received
        paused = time.perf_counter() - self._last_s > _PAUSE_S
        if paused or (received and self._received == 2):  # the first one is the request's
            self.parts.append(Part(timer=not received))
        part = self.parts[-1]
        name = _name(code) + (_RESUMED if frame.f_lasti > _start_of(code) else "")
        if code.co_filename.startswith(_OURS):
            part.ours[code.co_filename[len(str(_ROOT)) + 1 :], name] += 1
        else:
            part.libraries["/".join(Path(code.co_filename).parts[-2:]), name] += 1
        self._last_s = time.perf_counter()

    def ways(self) -> dict[str, list[Part]]:
        """By part of the way; nothing where a timer came due together with a token."""
        parts = [part for part in self.parts if not part.timer]
        if len(parts) != _TOKENS + 1:
            return {}
        request, first, *later, end = parts
        return {REQUEST: [request], FIRST: [first], LATER: later, END: [end]}


class _Client:
    """One kept connection, used from a thread of its own so that the profile has the router alone."""

    def __init__(self, target: Target) -> None:
        self._request = target.request(max_tokens(_TOKENS, _INTERVAL_MS), stream=True)
        self._warm = target.request(max_tokens(_TOKENS), stream=True)
        self._socket = socket.create_connection(("127.0.0.1", target.port), timeout=30)

    def warm_up(self) -> None:
        for _ in range(_WARM_CHATS):
            self._ask(self._warm)

    def chat(self) -> None:
        """With a pause around it: what starts and ends this thread is not counted."""
        time.sleep(2 * _PAUSE_S)
        self._ask(self._request)
        time.sleep(2 * _PAUSE_S)

    def _ask(self, request: bytes) -> None:
        self._socket.sendall(request)
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError(f"the router closed the connection: {answer!r}")
            answer += received
        if b" 200 OK" not in answer[:20] or answer.count(b'"content":"') < _TOKENS:
            raise RuntimeError(f"not a whole answer: {answer!r}")

    def close(self) -> None:
        self._socket.close()


async def record(settings_file: Path, target: Target) -> dict[str, Part]:
    """Serves as `python -m router` does, and profiles some chats."""
    serving = asyncio.create_task(server.run(load(settings_file)))
    try:
        await _until_ready(target, serving)
        client = await asyncio.to_thread(_Client, target)
        await asyncio.to_thread(client.warm_up)
        found: dict[str, list[Part]] = {}
        for _ in range(_MOST_CHATS):
            for way, parts in (await _profiled(client)).items():
                found.setdefault(way, []).extend(parts)
            if len(found.get(REQUEST, ())) == _CHATS:
                break
        client.close()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    if not found:
        raise RuntimeError("no chat was undisturbed: the machine is too busy")
    return {way: _usual(parts) for way, parts in found.items()}


def _usual(parts: list[Part]) -> Part:
    """The median: a timer that comes due in between adds calls, a process that is held up loses some."""
    return sorted(parts, key=lambda part: part.calls)[len(parts) // 2]


async def _profiled(client: _Client) -> dict[str, list[Part]]:
    recorder = Recorder()
    sys.setprofile(recorder.event)
    try:
        await asyncio.to_thread(client.chat)
    finally:
        sys.setprofile(None)
    return recorder.ways()


async def _until_ready(target: Target, serving: asyncio.Task[None]) -> None:
    deadline_s = time.monotonic() + _READY_LIMIT_S
    while problem := await asyncio.to_thread(ask_once, target):
        if serving.done() or time.monotonic() > deadline_s:
            raise RuntimeError(f"the router is not ready: {problem}")
        await asyncio.sleep(0.1)


def run() -> dict[str, Part]:
    with tempfile.TemporaryDirectory(prefix="inflight-calls-") as name:
        folder = Path(name)
        stubs, port = Stubs(0, free_port()), free_port()
        settings_file, key = inflight_settings(port, stubs, folder)
        command = [sys.executable, "-m", "benchmarks.router.triton_stub", str(stubs.triton_port)]
        with running(command, LOAD_CORE, folder / "stub.txt"):
            return uvloop.run(record(settings_file, Target(port, key)))


def report(console: Console, ways: dict[str, Part]) -> bool:
    table = Table("", "calls", "goal", "of them resumed", "files", "goal", "calls in libraries")
    met = True
    for way, part in ways.items():
        row = [way]
        for what, figure in (("calls", part.calls), ("files", len(part.files))):
            goal = _GOALS[what].get(way)
            missed = goal is not None and figure > goal
            met = met and not missed
            row += [str(figure), "" if goal is None else f"{goal} {'MISSED' if missed else 'met'}"]
        row.insert(3, str(part.resumptions))
        table.add_row(*row, str(part.libraries.total()))
    console.print(table)
    files = set().union(*(part.files for part in ways.values()))
    console.print(f"{len(files)} files all the way")
    return met


def break_down(console: Console, ways: dict[str, Part], by_function: bool) -> None:
    """Every file or function, with its calls in each part of the way."""
    rows: dict[str, list[int]] = {}
    for column, part in enumerate(ways.values()):
        for of, mark in ((part.ours, ""), (part.libraries, "library ")):
            for (file, name), count in of.items():
                label = mark + (f"{file} {name}" if by_function else file)
                rows.setdefault(label, [0] * len(ways))[column] += count
    table = Table("", *ways)
    for label, counts in sorted(rows.items(), key=lambda row: (row[0].startswith("library"), row[0])):
        table.add_row(label, *(str(count or "") for count in counts))
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.router.calls", description=__doc__)
    parser.add_argument("--by-file", action="store_true")
    parser.add_argument("--by-function", action="store_true")
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    ways = run()
    if asked.by_file or asked.by_function:
        break_down(console, ways, asked.by_function)
    return 0 if report(console, ways) else 1


if __name__ == "__main__":
    sys.exit(main())
