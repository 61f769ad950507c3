"""The engine seen from outside: a process of its own, started, fed and listened to over one socket pair.

The step loop must never share an interpreter lock with the code that sends responses, so the engine is a
child process. It ends when its owner does: its end of the socket closes, whatever killed the owner.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue

from python_backend.engine.process.messages import (
    Broken,
    Cancel,
    Command,
    Configure,
    DropAdapter,
    Loading,
    Report,
    Start,
    Submit,
    receive_report,
    send,
)
from python_backend.engine.process.stillness import Stillness, thread_marks
from python_backend.engine.report import LoadingProgress, Ready, ignore_progress
from python_backend.engine.request import GenerationRequest
from python_backend.wire.errors import ENGINE_AWAY, ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier

_STOP_GRACE_S = 5.0


def _interpreter() -> str:
    """The environment's own Python: inside Triton's stub, `sys.executable` need not be one."""
    candidate = os.path.join(sys.prefix, "bin", "python3")
    return candidate if os.access(candidate, os.X_OK) else sys.executable


class EngineProcess:
    """One running engine. Its commands may be given from any thread, `receive` is for one."""

    def __init__(self, parameters: EngineParameters) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [_interpreter(), "-m", "python_backend.engine.process.main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        self._outgoing: SimpleQueue[Command | None] = SimpleQueue()
        self._has_ended = False
        self._stillness = Stillness(partial(thread_marks, self._process.pid))
        # Whoever gives commands also hears reports: a full socket in both directions must not stop them.
        self._writer = threading.Thread(target=self._write, name="to-engine", daemon=True)
        self._writer.start()
        self._send(Start(parameters))

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, progress: LoadingProgress = ignore_progress) -> Ready:
        """Blocks while the model loads, passing on how far it is; raises the engine's reason if it cannot."""
        try:
            while isinstance(report := receive_report(self._connection), Loading):
                progress(report.stage, report.done, report.total)
        except (EOFError, OSError):
            self.stop()
            raise InflightError(
                ErrorKind.ENGINE_FAILED, f"the engine process ended while loading ({self._how_it_ended()})"
            ) from None
        if isinstance(report, Ready):
            return report
        self.stop()
        reason = report.error if isinstance(report, Broken) else f"unexpected {type(report).__name__}"
        raise InflightError.from_text(reason)

    def submit(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        self._send(Submit.of(key, request, arrival_ns))

    def cancel(self, key: int) -> None:
        self._send(Cancel(key))

    def configure(
        self,
        max_step_tokens: int | None = None,
        max_batch_size: int | None = None,
        inter_token_ms: Mapping[Tier, float | None] | None = None,
    ) -> None:
        """New limits and objectives for the steps to come; None leaves one as it is."""
        targets = None if inter_token_ms is None else dict(inter_token_ms)
        self._send(Configure(max_step_tokens, max_batch_size, targets))

    def drop_adapter(self, name: str) -> None:
        self._send(DropAdapter(name))

    def has_report(self, timeout_s: float) -> bool:
        """Whether `receive` would return at once; EOFError when the process has ended."""
        try:
            return self._connection.poll(timeout_s)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> Report:
        """The next report; EOFError when the process has ended."""
        self._stillness.interrupt()
        try:
            return receive_report(self._connection)
        except OSError as error:
            raise EOFError from error

    def end_if_hung(self, owes_answers: bool) -> bool:
        """For whoever waits for a report: kills a process that will not give one any more."""
        if not owes_answers:
            self._stillness.interrupt()
        elif self._stillness.is_hung(time.monotonic()):
            self._process.kill()
            return True
        return False

    def stop(self) -> None:
        self._has_ended = True
        self._outgoing.put(None)
        self._writer.join(_STOP_GRACE_S)
        if self._writer.is_alive():
            self._process.kill()  # it does not read; the writer gets an error and lets go
            self._writer.join()
        self._connection.close()
        try:
            self._process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def describe_end(self) -> str:
        self.stop()
        return self._how_it_ended()

    def _how_it_ended(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _send(self, message: Command) -> None:
        """Returns at once; a command to a process that ends meanwhile is lost, and `receive` tells."""
        if self._has_ended:
            raise InflightError(ErrorKind.ENGINE_FAILED, ENGINE_AWAY)
        self._outgoing.put(message)

    def _write(self) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                send(self._connection, message)
        except OSError:
            self._has_ended = True
