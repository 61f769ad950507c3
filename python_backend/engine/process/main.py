"""The engine process: take commands, step, report; one thread, until the owner's end of the socket closes."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

from python_backend.engine.process.interpreter import become, die_with_parent, leave_owner, start_given
from python_backend.engine.process.messages import (
    Broken,
    Cancel,
    Command,
    Configure,
    DropAdapter,
    Loading,
    Progress,
    Start,
    Submit,
    receive_command,
    send,
)
from python_backend.engine.report import EngineBroken, SequenceEvent
from python_backend.engine.runtimes.choice import choose_runtime
from python_backend.engine.runtimes.declaration import RuntimeDeclaration
from python_backend.engine.runtimes.declared import BY_NAME
from python_backend.engine.runtimes.runtime import Runtime
from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.engine")

# How long the loop listens for commands at a time while all requests wait for their guides.
_PREPARING_POLL_S = 0.002
# For how long commands are taken in between two steps, and how long a wait for one is at a time.
_INTAKE_S = 0.002
_SLICE_S = 0.001
# A request may be refused for wanting a senseless number of sequences; so many at most are told.
_MOST_REFUSALS = 1024
_LOADS_LONG_S = 120.0


class StepLoop:
    def __init__(self, connection: Connection, runtime: Runtime, gauge_period_s: float) -> None:
        self._connection = connection
        self._runtime = runtime
        self._gauge_period_s = gauge_period_s
        self._next_gauges_s = 0.0
        self._refused: list[SequenceEvent] = []
        self._is_broken = False

    def run(self) -> None:
        """Returns when the runtime broke for good, after everybody was told."""
        self._report([])  # what it holds is known before anybody asks it for something
        while not self._is_broken:
            self._take_commands()
            events = self._refused + self._step()
            self._refused = []
            self._report(events)

    def _take_commands(self) -> None:
        """All that are there, or as many as can be taken without a pause that others would notice.

        While the device is busy the first one is waited for: in slices, in case it is done sooner.
        """
        wait_s = self._patience_s()
        while not self._connection.poll(wait_s):
            if wait_s is None or (wait_s := self._spare_s()) == 0:
                return
        limit_s = time.monotonic() + _INTAKE_S
        while True:
            self._take(receive_command(self._connection))
            if time.monotonic() > limit_s or not self._connection.poll(0):
                return

    def _patience_s(self) -> float | None:
        """How long to listen for commands before the next step; None: until one comes."""
        if not self._runtime.has_work:
            return None
        return self._spare_s() if self._runtime.can_step else _PREPARING_POLL_S

    def _spare_s(self) -> float:
        return min(self._runtime.spare_s, _SLICE_S) if self._runtime.can_step else 0

    def _take(self, command: Command) -> None:
        if isinstance(command, Submit):
            try:
                self._runtime.add(command.key, command.request, command.arrival_ns)
            except InflightError as error:
                self._refuse(command, error)
            except Exception as error:
                _log.exception("a request could not be added")
                failure = InflightError(
                    ErrorKind.ENGINE_FAILED, f"the engine could not add the request: {error}"
                )
                self._refuse(command, failure)
        elif isinstance(command, Cancel):
            self._runtime.cancel(command.key)
        elif isinstance(command, Configure):
            try:
                self._runtime.configure(
                    command.max_step_tokens, command.max_batch_size, command.inter_token_ms
                )
            except InflightError as error:
                _log.warning("the new limits are invalid; the current ones stay: %s", error)
        elif isinstance(command, DropAdapter):
            self._runtime.drop_adapter(command.name)

    def _refuse(self, command: Submit, error: InflightError) -> None:
        """Each of the sequences that were asked for ends, for that is how many the owner waits for."""
        for index in range(max(1, min(command.rest.num_return_sequences, _MOST_REFUSALS))):
            self._refused.append(SequenceEvent(command.key, [], error=error.to_text(), sequence_index=index))

    def _step(self) -> list[SequenceEvent]:
        if not self._runtime.has_work:
            return []
        try:
            return self._runtime.step()
        except Exception as error:
            _log.exception("a step failed")
            self._is_broken = isinstance(error, EngineBroken)
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


def _tell_loading(connection: Connection, stage: str, done: int, total: int) -> None:
    send(connection, Loading(stage, done, total))


def chosen_runtime(start: Start, connection: Connection) -> RuntimeDeclaration:
    """Does not return where the runtime needs another Python: this process goes on in that one."""
    chosen = choose_runtime(start.parameters)
    if chosen.interpreter is not None:
        parameters = replace(start.parameters, inflight_runtime=chosen.name)
        become(chosen.interpreter, connection.fileno(), Start(parameters))
    return chosen.declaration


@contextmanager
def telling_where_it_is(period_s: float) -> Iterator[None]:
    """Logs the calls of all threads each time that so long has passed: what hangs is found by them."""
    faulthandler.dump_traceback_later(period_s, repeat=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(connection: Connection) -> int:
    """The exit code: 0 where the owner knows why, by a message; 1 where it is to start another engine."""
    given = start_given()
    start = given or receive_command(connection)
    if not isinstance(start, Start):
        raise TypeError(f"the first command must be Start, not {type(start).__name__}")
    try:
        declared = BY_NAME[given.parameters.inflight_runtime] if given else chosen_runtime(start, connection)
        with telling_where_it_is(_LOADS_LONG_S):
            runtime = declared.load(start.parameters, partial(_tell_loading, connection))
    except InflightError as error:
        send(connection, Broken(error.to_text()))
        return 0
    except Exception as error:
        _log.exception("the model could not be loaded")
        send(connection, Broken(InflightError(ErrorKind.ENGINE_FAILED, str(error)).to_text()))
        return 0
    # What was loaded stays: a collector that looked through it would hold up a step for tens of milliseconds.
    gc.collect()
    gc.freeze()
    gc.enable()
    # Nor is there anything to find among what a step makes and lets go of: several times in every step, else.
    gc.set_threshold(50_000, 20, 100)
    send(connection, runtime.describe())
    StepLoop(connection, runtime, start.parameters.stats_check_period_ms / 1000).run()
    connection.close()  # the owner need not wait for what the process does at its end
    return 1


if __name__ == "__mp_main__":  # imported by a process that a runtime has started
    die_with_parent()
if __name__ == "__main__":
    gc.disable()  # until all is loaded: next to nothing of it goes again
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    # Whatever a runtime starts must not hold the socket open, or the owner would not see this process end.
    os.set_inheritable(int(sys.argv[1]), False)
    os.register_at_fork(after_in_child=partial(leave_owner, int(sys.argv[1])))
    try:
        sys.exit(main(Connection(int(sys.argv[1]))))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(0)
