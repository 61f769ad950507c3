"""Several processes that share one plan, so that none of them is what is measured.

Results come back as they are there, so whoever waits can show them, and has them when it is interrupted.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from loadtest.replay.sender import SendResult, Target, Told, play
from loadtest.results import RequestResult

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from loadtest.replay.plan import PlannedRequest

_LEAD_S = 0.3
_END = None


def send_from(
    target: Target,
    plan: Sequence[PlannedRequest],
    clients: int = 1,
    told: Told | None = None,
    begins: Callable[[float], None] | None = None,
) -> SendResult:
    """Returns when all is answered, given up or, after Ctrl-C, left; Ctrl-C goes no further.

    `told` hears of each result, and `begins` of the beginning by `time.perf_counter`, in this process.
    """
    results: list[RequestResult] = []

    def tell(result: RequestResult) -> None:
        results.append(result)
        if told is not None:
            told(result)

    start_s = time.perf_counter()

    def begin(at_s: float) -> None:
        nonlocal start_s
        start_s = at_s
        if begins is not None:
            begins(at_s)

    if clients == 1:
        begin(start_s)
        is_interrupted = _play_here(target, plan, start_s, tell)
    else:
        is_interrupted = _share(target, plan, clients, tell, begin)
    return SendResult(results, time.perf_counter() - start_s, is_interrupted)


def _play_here(target: Target, plan: Sequence[PlannedRequest], start_s: float, told: Told) -> bool:
    """Whether it was interrupted; requests in flight have reported what they saw."""
    try:
        asyncio.run(play(target, plan, start_s, told))
    except KeyboardInterrupt:
        return True
    return False


def _share(
    target: Target,
    plan: Sequence[PlannedRequest],
    clients: int,
    told: Told,
    begin: Callable[[float], None],
) -> bool:
    # Not forked: what measures a stack may have threads.
    context = get_context("spawn")
    lines: list[Connection] = []
    processes: list[SpawnProcess] = []
    try:
        for number in range(clients):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_client, args=(target, plan[number::clients], theirs), daemon=True
            )
            process.start()
            theirs.close()
            lines.append(ours)
            processes.append(process)
        for line in lines:
            line.recv()  # it is there, with all that it imports
        start_at_s = time.time() + _LEAD_S
        for line in lines:
            line.send(start_at_s)
        begin(time.perf_counter() + start_at_s - time.time())
        return _hear_all(lines, told)
    finally:
        for line in lines:
            line.close()
        for process in processes:
            process.join(5)
            process.kill()


def _hear_all(lines: Sequence[Connection], told: Told) -> bool:
    open_lines, is_interrupted = list(lines), False
    while open_lines:
        try:
            for line in wait(open_lines):
                assert isinstance(line, Connection)
                _hear(line, open_lines, told)
        except KeyboardInterrupt:
            is_interrupted = True
            for line in open_lines:
                with suppress(OSError):
                    line.send("leave")
    return is_interrupted


def _hear(line: Connection, open_lines: list[Connection], told: Told) -> None:
    try:
        result = line.recv()
    except EOFError:
        result = _END
    if result is _END:
        open_lines.remove(line)
    else:
        told(result)


def _client(target: Target, plan: Sequence[PlannedRequest], line: Connection) -> None:
    """In a process of its own, which leaves an interrupt to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line.send("ready")
    start_at_s: float = line.recv()
    asyncio.run(_play_until_told(target, plan, start_at_s, line))
    line.send(_END)


async def _play_until_told(
    target: Target, plan: Sequence[PlannedRequest], start_at_s: float, line: Connection
) -> None:
    start_s = time.perf_counter() + start_at_s - time.time()
    playing = asyncio.create_task(play(target, plan, start_s, line.send))
    _when_told(line, asyncio.get_running_loop(), playing.cancel)
    with suppress(asyncio.CancelledError):
        await playing


def _when_told(line: Connection, loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Reading and writing are two directions of one pipe: a thread may wait for the one."""

    def listen() -> None:
        with suppress(EOFError, OSError, RuntimeError):
            line.recv()
            loop.call_soon_threadsafe(act)

    threading.Thread(target=listen, daemon=True).start()
