"""The `tensorrt_llm` model: Triton requests into the engine process, its tokens back as responses.

`execute` returns at once. One pump thread listens to the engine, coalesces and sends, and asks Triton now and
then which callers have gone. Every accepted request is in `_running` from `execute` until the
response with the final flag, and leaves it exactly once, in `_end`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from python_backend.engine.handle import EngineProcess
from python_backend.engine.messages import Gauges, Progress, Ready, SequenceEvent
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.coalescing import Coalescer, Pending
from python_backend.triton_adapter.metrics import EngineMetrics
from python_backend.triton_adapter.pacing import Pacer
from python_backend.triton_adapter.requests import GenerateCall, decode_call
from python_backend.triton_adapter.responses import ResponseBuilder
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import parse_engine_parameters

_log = logging.getLogger("inflight.tensorrt_llm")

# A question whether one caller has gone costs a round trip to Triton; so many a period are asked at most.
_CANCELLATION_CHECKS_PER_PERIOD = 64
# Young requests are left alone: each question strains Triton, and short ones end by themselves.
_MIN_AGE_TO_ASK_S = 0.25
_RESTART_PAUSE_S = 1.0
_FAILED_RESTARTS_TO_GIVE_UP = 5


@dataclass(slots=True)
class _Running:
    """One request between `execute` and its final response."""

    call: GenerateCall
    sender: pb.ResponseSender
    builder: ResponseBuilder
    unsent_ids: list[int] = field(default_factory=list)  # a caller who does not stream gets all at the end
    # Triton frees what `is_cancelled` looks at when the final response goes out, and asking after that
    # wedges the server: question and final response take turns.
    turn: threading.Lock = field(default_factory=threading.Lock)
    has_ended: bool = False
    since_s: float = field(default_factory=time.monotonic)


class TritonPythonModel:
    """What Triton's stub loads; see backends/tensorrtllm/model.py."""

    def initialize(self, args: Mapping[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s tensorrt_llm %(levelname)s %(message)s")
        self._parameters = parse_engine_parameters(pb.model_parameters(args))
        self._keys = itertools.count(1)
        self._running: dict[int, _Running] = {}
        self._closing = threading.Event()
        self._failed_restarts = 0
        self._check_period_s = self._parameters.cancellation_check_period_ms / 1000
        self._next_check_s = 0.0
        self._check_cursor = 0
        self._coalescer = Coalescer()
        self._pacer = Pacer()
        self._metrics = EngineMetrics(args["model_name"], args["model_version"])
        self._engine = EngineProcess(self._parameters)
        self._capacity = self._engine.wait_until_ready()
        self._metrics.update(self._capacity, _idle_gauges(self._capacity))
        self._pump = threading.Thread(target=self._pump_reports, name="pump", daemon=True)
        self._pump.start()

    def execute(self, requests: Sequence[pb.PbRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                call = decode_call(
                    request.request_id(), pb.arrays(request), self._parameters.exclude_input_in_output
                )
            except Exception as error:
                send_final(sender, error_response(_as_failure(error)))
                continue
            if isinstance(call, GenerateCall):
                self._accept(call, sender, set(request.requested_output_names()))
            else:
                self._cancel(call.request_id)
                send_final(sender)

    def finalize(self) -> None:
        self._closing.set()
        self._pump.join()
        self._engine.stop()
        self._pacer.close()
        self._metrics.close()

    def _accept(self, call: GenerateCall, sender: pb.ResponseSender, requested_outputs: set[str]) -> None:
        key = next(self._keys)
        builder = ResponseBuilder(self._pacer.lane, key, call, requested_outputs)
        self._running[key] = _Running(call, sender, builder)
        try:
            self._engine.submit(key, call.generation)
        except Exception as error:
            self._end(key, error_response(_as_failure(error)))

    def _end(self, key: int, response: Any) -> None:
        """Sends the final response of a request; whoever comes first ends it, the other finds it gone."""
        running = self._running.pop(key, None)
        if running is None:
            return
        with running.turn:
            running.has_ended = True
            try:
                send_final(running.sender, response)
            except Exception as error:
                _log.exception("the last response of %r could not be sent", running.call.request_id)
                with contextlib.suppress(Exception):
                    send_final(running.sender, error_response(_as_failure(error)))

    def _cancel(self, request_id: str) -> None:
        for key, running in list(self._running.items()):
            if running.call.request_id == request_id:
                self._cancel_key(key)

    def _cancel_key(self, key: int) -> None:
        try:
            self._engine.cancel(key)
        except InflightError:
            _log.info("the engine ended before sequence %d could be cancelled", key)

    # -- the pump thread ------------------------------------------------------------------------------

    def _pump_reports(self) -> None:
        while not self._closing.is_set():
            try:
                if not self._pump_once():
                    self._replace_engine()
            except Exception:
                _log.exception("the pump stumbled")
                self._closing.wait(_RESTART_PAUSE_S)

    def _pump_once(self) -> bool:
        """Waits for room downstream, hears all the engine has said, sends one response.

        In this order every response carries the newest. False when the engine has ended.
        """
        self._ask_who_has_gone()
        if self._coalescer:
            self._pacer.wait_for_room()
        try:
            while self._engine.has_report(timeout_s=0 if self._coalescer else self._check_period_s):
                report = self._engine.receive()
                if isinstance(report, Progress):
                    self._hear(report)
        except EOFError:
            return False
        if pending := self._coalescer.take():
            self._respond(pending)
        return True

    def _hear(self, report: Progress) -> None:
        for event in report.events:
            running = self._running.get(event.key)
            if running is None:
                continue
            if running.call.streaming or event.error is not None:
                self._coalescer.put(event)
                continue
            running.unsent_ids += event.token_ids
            if event.is_last:
                self._coalescer.put(SequenceEvent(event.key, running.unsent_ids, event.finish_reason))
        if report.gauges is not None:
            self._metrics.update(self._capacity, report.gauges)

    def _respond(self, pending: Pending) -> None:
        running = self._running.get(pending.key)
        if running is None:
            return
        try:
            if pending.error is not None:
                self._end(pending.key, error_response(InflightError.from_text(pending.error)))
                return
            response = running.builder.build(pending.token_ids, pending.finish_reason)
            if running.call.feeds_postprocessing:
                self._pacer.sent()
            if pending.finish_reason is not None:
                self._end(pending.key, response)
            else:
                running.sender.send(response)
        except Exception as error:
            # Its tokens are lost, so the stream must not go on as if nothing had happened.
            self._cancel_key(pending.key)
            self._end(pending.key, error_response(_as_failure(error)))

    def _replace_engine(self) -> None:
        """The engine process died: its requests fail, and another is started."""
        how = self._engine.describe_end()
        _log.error("the engine process ended (%s); %d requests fail", how, len(self._running))
        failure = InflightError(ErrorKind.ENGINE_FAILED, f"the engine process ended ({how}); try again")
        self._coalescer = Coalescer()
        for key in list(self._running):
            self._end(key, error_response(failure))
        try:
            engine = EngineProcess(self._parameters)
            self._capacity = engine.wait_until_ready()
        except Exception:
            self._failed_restarts += 1
            _log.exception("the engine could not be started again (%d in a row)", self._failed_restarts)
            if self._failed_restarts == _FAILED_RESTARTS_TO_GIVE_UP:
                os._exit(1)  # a dead stub is noticed from outside; one that never recovers is not
            self._closing.wait(_RESTART_PAUSE_S)
            return
        self._engine = engine
        self._failed_restarts = 0
        self._metrics.update(self._capacity, _idle_gauges(self._capacity))
        _log.info("the engine process was started again")

    def _ask_who_has_gone(self) -> None:
        """Asks Triton about the next few callers, once a period; between sends, never beside one."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + self._check_period_s
        grown_s = now_s - _MIN_AGE_TO_ASK_S
        keys = [key for key, running in list(self._running.items()) if running.since_s < grown_s]
        for _ in range(min(len(keys), _CANCELLATION_CHECKS_PER_PERIOD)):
            self._check_cursor += 1
            self._cancel_if_gone(keys[self._check_cursor % len(keys)])

    def _cancel_if_gone(self, key: int) -> None:
        running = self._running.get(key)
        if running is None:
            return
        with running.turn:
            is_gone = not running.has_ended and running.sender.is_cancelled()
        if is_gone:
            self._cancel_key(key)


def _idle_gauges(capacity: Ready) -> Gauges:
    return Gauges(0, 0, 0, 0, 0, 0, 0, capacity.total_blocks, 0)


def _as_failure(error: Exception) -> InflightError:
    if isinstance(error, InflightError):
        return error
    _log.error("a request failed", exc_info=error)
    return InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")


def error_response(failure: InflightError) -> Any:
    return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(failure))


def send_final(sender: pb.ResponseSender, response: Any = None) -> None:
    sender.send(response, flags=pb.utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL)
