"""The engine process: take commands, step, report; one thread, until the owner's end of the socket closes."""

from __future__ import annotations

import logging
import sys
import time
from multiprocessing.connection import Connection
from typing import Protocol

from python_backend.engine.messages import (
    Broken,
    Cancel,
    Command,
    Gauges,
    Progress,
    Ready,
    SequenceEvent,
    Start,
    Submit,
    receive_command,
    send,
)
from python_backend.engine.sequence import GenerationRequest
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters

_log = logging.getLogger("inflight.engine")


class Runtime(Protocol):
    """What can stand behind the contract: this project's torch engine, or another."""

    def describe(self) -> Ready: ...

    @property
    def has_work(self) -> bool: ...

    def add(self, key: int, request: GenerationRequest) -> None:
        """Takes a request; raises InflightError when it can never run."""

    def cancel(self, key: int) -> None:
        """Ends a sequence at the next step; an unknown key is not an error."""

    def step(self) -> list[SequenceEvent]: ...

    def abort(self, reason: str) -> list[SequenceEvent]:
        """Ends every sequence with an error, after a step that broke."""

    def gauges(self) -> Gauges: ...


def load_runtime(parameters: EngineParameters) -> Runtime:
    if parameters.inflight_runtime == "synthetic":
        from python_backend.engine.synthetic import SyntheticRuntime

        return SyntheticRuntime(parameters)
    from python_backend.engine.torch_runtime import TorchRuntime

    return TorchRuntime(parameters)


class StepLoop:
    def __init__(self, connection: Connection, runtime: Runtime, gauge_period_s: float) -> None:
        self._connection = connection
        self._runtime = runtime
        self._gauge_period_s = gauge_period_s
        self._next_gauges_s = 0.0
        self._refused: list[SequenceEvent] = []

    def run(self) -> None:
        while True:
            self._take_commands(wait=not self._runtime.has_work)
            events = self._refused + self._step()
            self._refused = []
            self._report(events)

    def _take_commands(self, wait: bool) -> None:
        while wait or self._connection.poll(0):
            self._take(receive_command(self._connection))
            wait = False

    def _take(self, command: Command) -> None:
        if isinstance(command, Submit):
            try:
                self._runtime.add(command.key, command.request)
            except InflightError as error:
                self._refused.append(SequenceEvent(command.key, [], error=error.to_text()))
        elif isinstance(command, Cancel):
            self._runtime.cancel(command.key)

    def _step(self) -> list[SequenceEvent]:
        if not self._runtime.has_work:
            return []
        try:
            return self._runtime.step()
        except Exception as error:
            _log.exception("a step failed")
            failure = InflightError(ErrorKind.ENGINE_FAILED, f"a step of the engine failed: {error}")
            return self._runtime.abort(failure.to_text())

    def _report(self, events: list[SequenceEvent]) -> None:
        now_s = time.monotonic()
        is_idle = not self._runtime.has_work
        gauges = None
        if is_idle or now_s >= self._next_gauges_s:
            gauges = self._runtime.gauges()
            self._next_gauges_s = now_s + self._gauge_period_s
        if events or gauges:
            send(self._connection, Progress(events, gauges))


def main(connection: Connection) -> None:
    start = receive_command(connection)
    if not isinstance(start, Start):
        raise TypeError(f"the first command must be Start, not {type(start).__name__}")
    try:
        runtime = load_runtime(start.parameters)
    except InflightError as error:
        send(connection, Broken(error.to_text()))
        return
    except Exception as error:
        _log.exception("the model could not be loaded")
        send(connection, Broken(InflightError(ErrorKind.ENGINE_FAILED, str(error)).to_text()))
        return
    send(connection, runtime.describe())
    StepLoop(connection, runtime, start.parameters.stats_check_period_ms / 1000).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    try:
        main(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(0)
