"""The `tensorrt_llm` model: Triton requests into the engine process, its tokens back as responses.

`execute` returns at once. One pump thread listens to the engine, coalesces and sends, and asks Triton now and
then which callers have gone. Every row of an accepted request is in `_running` from `execute` until its last
sequence has ended, and the request's final response goes out with the last of its rows.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.process.messages import Progress
from python_backend.engine.report import Ready
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.backpressure import Pacer
from python_backend.triton_adapter.caller_watch import CallerWatch
from python_backend.triton_adapter.coalescer import Coalescer, Pending
from python_backend.triton_adapter.engine_report import idle_gauges, report_of, report_response
from python_backend.triton_adapter.metrics import EngineMetrics
from python_backend.triton_adapter.request_parameters import (
    Configuration,
    Limits,
    asks_for_report,
    decode_configuration,
    decode_router,
)
from python_backend.triton_adapter.requests import GenerateCall, ModelRules, decode_call
from python_backend.triton_adapter.responses import ResponseBuilder
from python_backend.triton_adapter.router_watch import RouterWatch
from python_backend.triton_adapter.running_requests import (
    RunningRequest,
    RunningRow,
    as_failure,
    empty_response,
    error_response,
    send_final,
)
from python_backend.triton_adapter.start_watch import imported
from python_backend.wire.engine_report import CONFIGURE, DROP_ADAPTER, EngineReport
from python_backend.wire.errors import ENGINE_AWAY, ENGINE_DIED, ErrorKind, InflightError
from python_backend.wire.load_progress import loading_text
from python_backend.wire.parameters import on_server, parse_engine_parameters
from python_backend.wire.stream_mark import StreamMark

_log = logging.getLogger("inflight.tensorrt_llm")

# A request that comes in must not wait for longer than this until the pump lets go of the interpreter.
_SWITCH_S = 0.0002
_RESTART_PAUSE_S = 1.0
_FAILED_RESTARTS_TO_GIVE_UP = 5


class TritonPythonModel:
    """What Triton's stub loads; see backends/tensorrtllm/model.py."""

    def initialize(self, args: Mapping[str, str]) -> None:
        imported()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s tensorrt_llm %(levelname)s %(message)s")
        sys.setswitchinterval(_SWITCH_S)
        self._parameters = parse_engine_parameters(on_server(pb.model_parameters(args), os.environ))
        self._max_queue_size = pb.max_queue_size(args)
        self._keys = itertools.count(1)
        self._running: dict[int, RunningRow] = {}
        self._closing = threading.Event()
        self._failed_restarts = 0
        self._check_period_s = self._parameters.cancellation_check_period_ms / 1000
        self._watch = CallerWatch(self._check_period_s)
        self._routers = RouterWatch()
        self._coalescer = Coalescer()
        self._pacer = Pacer()
        self._metrics = EngineMetrics(
            args["model_name"], args["model_version"], self._parameters.static_batching
        )
        self._engine = EngineProcess(self._parameters)
        self._capacity = self._engine.wait_until_ready(_log_loading)
        self._most_limits = _limits_at_start(self._capacity)
        self._configuration = Configuration(self._most_limits)
        self._rules = ModelRules(
            decoupled=pb.is_decoupled(args),
            exclude_input=self._parameters.exclude_input_in_output,
            isolate_tenants=self._parameters.inflight_tenant_cache_isolation,
            max_sequences=self._capacity.max_batch_size,
            pool=self._parameters.inflight_pool,
        )
        self._show_idle()
        # The first request begins it: metrics that it sent while Triton was to hear that this model is loaded
        # have left Triton waiting for that word.
        self._pump = threading.Thread(target=self._pump_reports, name="pump", daemon=True)

    def execute(self, requests: Sequence[pb.PbRequest]) -> None:
        arrival_ns = time.monotonic_ns()
        if self._pump.ident is None:
            self._pump.start()
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._take(request, sender, arrival_ns)
            except Exception as error:
                send_final(sender, error_response(as_failure(error, request.request_id())))

    def finalize(self) -> None:
        self._closing.set()
        if self._pump.ident is not None:
            self._pump.join()
        self._engine.stop()
        self._pacer.close()
        self._metrics.close()

    def _take(self, request: pb.PbRequest, sender: pb.ResponseSender, arrival_ns: int) -> None:
        """Starts a request, or does at once what it asks for; what it raises is the request's only answer."""
        parameters = pb.request_parameters(request)
        if CONFIGURE in parameters:
            self._configure(decode_configuration(parameters, self._configuration, self._most_limits))
            self._acknowledge(sender)
            return
        if DROP_ADAPTER in parameters:
            self._engine.drop_adapter(str(parameters[DROP_ADAPTER]))
            self._acknowledge(sender)
            return
        if asks_for_report(parameters):
            self._routers.heard(decode_router(parameters), time.monotonic())
            send_final(sender, report_response(self._report()))
            return
        call = decode_call(request.request_id(), pb.arrays(request), parameters, self._rules)
        if isinstance(call, GenerateCall):
            self._accept(call, sender, set(request.requested_output_names()), arrival_ns)
        else:
            self._cancel_id(call.request_id)
            if self._engine.has_ended:  # for those who only ask whether it lives
                raise InflightError(ErrorKind.ENGINE_FAILED, ENGINE_AWAY)
            self._acknowledge(sender)

    def _acknowledge(self, sender: pb.ResponseSender) -> None:
        """An empty end; a model that answers once may not end without a response."""
        send_final(sender, None if self._rules.decoupled else empty_response())

    def _show_idle(self) -> None:
        """The engine has just been started, and has said nothing yet."""
        self._gauges = idle_gauges(self._capacity, self._limits)
        self._metrics.update(self._capacity, self._gauges)

    @property
    def _limits(self) -> Limits:
        return self._configuration.limits

    def _configure(self, configuration: Configuration) -> None:
        _apply(configuration, self._engine)
        self._configuration = configuration

    def _report(self) -> EngineReport:
        return report_of(self._capacity, self._gauges, self._configuration, self._parameters)

    def _accept(
        self, call: GenerateCall, sender: pb.ResponseSender, requested_outputs: set[str], arrival_ns: int
    ) -> None:
        sequences = [row.generation.num_return_sequences for row in call.rows]
        self._refuse_beyond_queue(sum(sequences))
        request = RunningRequest(call.request_id, sender, sum(sequences), call.router)
        rows = []
        for index, count in enumerate(sequences):
            # Each sequence is a stream of its own to postprocessing; the first one's number is the row's key.
            streams = [next(self._keys) for _ in range(count)]
            marks = [StreamMark(self._pacer.lane, stream) for stream in streams]
            builders = [
                ResponseBuilder(call, index, number, mark, requested_outputs)
                for number, mark in enumerate(marks)
            ]
            rows.append(RunningRow(streams[0], request, call, index, arrival_ns, builders))
        self._running.update({row.key: row for row in rows})
        for row in rows:
            try:
                self._engine.submit(row.key, row.call.generation, arrival_ns)
                if request.is_unheard:  # an earlier row has failed meanwhile
                    self._cancel_row(row)
            except Exception as error:
                self._fail(row, as_failure(error, request.request_id))

    def _refuse_beyond_queue(self, wanted: int) -> None:
        """The contract's queue limit counts here too: `execute` never waits, so Triton's queue is empty."""
        most = self._max_queue_size
        there = sum(len(row.open_sequences) for row in list(self._running.values()))
        if most and there + wanted > self._limits.max_batch_size + most:
            raise InflightError(
                ErrorKind.OVERLOADED,
                f"Maximum queue size of {most} has been reached, please try again later",
            )

    def _fail(self, row: RunningRow, failure: InflightError) -> None:
        """Ends what is left of a row with an error; whoever comes first does, the other finds it gone."""
        if self._running.pop(row.key, None) is None:
            return
        self._coalescer.drop(row.key, row.sequences)
        self._end_texts(row)
        row.request.end(len(row.open_sequences), error_response(failure))

    def _end_texts(self, failed: RunningRow) -> None:
        """Lets postprocessing forget the streams of a request that is about to get an error.

        An ensemble ends with its first error and drops what follows, so those of the other rows go as well.
        """
        if not failed.feeds_postprocessing:
            return
        for row in {failed, *self._rows_of(failed.request)}:
            for index in row.open_sequences:
                if (response := row.builders[index].build_end_of_text()) is not None:
                    with contextlib.suppress(Exception):  # it forgets idle streams by itself, later
                        row.request.send(response)
                        self._pacer.sent()

    def _rows_of(self, request: RunningRequest) -> list[RunningRow]:
        return [row for row in list(self._running.values()) if row.request is request]

    def _cancel_id(self, request_id: str) -> None:
        for row in list(self._running.values()):
            if row.request.request_id == request_id:
                self._cancel_row(row)

    def _cancel_request(self, request: RunningRequest) -> None:
        for row in self._rows_of(request):
            self._cancel_row(row)

    def _cancel_row(self, row: RunningRow) -> None:
        try:
            self._engine.cancel(row.key)
        except InflightError:
            _log.info("the engine ended before %r could be cancelled", row.request.request_id)

    # -- the pump thread ------------------------------------------------------------------------------

    def _pump_reports(self) -> None:
        while not self._closing.is_set():
            try:
                if not self._pump_once():
                    self._replace_engine()
            except Exception:
                _log.exception("the pump thread failed; retrying")
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
                # While answers grow that nobody streams, reports may come without a pause.
                if self._closing.is_set() or self._watch.is_due(time.monotonic()):
                    break
        except EOFError:
            return False
        if self._engine.end_if_hung(owes_answers=bool(self._running)):
            _log.error("the engine process hangs: none of its threads has run for seconds; it is killed")
        if pending := self._coalescer.take():
            self._respond(pending)
        return True

    def _hear(self, report: Progress) -> None:
        now_ns = time.monotonic_ns()
        for event in report.events:
            row = self._running.get(event.key)
            if row is None:
                continue
            is_first = bool(event.token_ids) and not row.has_begun
            if is_first:
                row.has_begun = True
                self._metrics.first_token(row.call.generation.tier, now_ns - row.arrival_ns)
            self._coalescer.put(event, now_ns, whole=not row.call.streaming, is_first=is_first)
        if report.gauges is not None:
            self._gauges = report.gauges
            self._metrics.update(self._capacity, report.gauges)

    def _respond(self, pending: Pending) -> None:
        row = self._running.get(pending.key)
        if row is None or pending.sequence_index not in row.open_sequences:
            return
        try:
            if pending.error is not None:
                self._end_with_error(row, pending)
                return
            builder = row.builders[pending.sequence_index]
            if (prompt := builder.build_prompt(pending)) is not None:
                self._send(row, prompt)
            response = builder.build(pending)
            self._metrics.between_tokens(row.mean_gap_s(pending))
            if pending.is_last:
                if row.feeds_postprocessing:
                    self._pacer.sent()
                self._close(row, pending)
                row.request.end(1, response)
            else:
                self._send(row, response)
        except Exception as error:
            # Its tokens are lost, so the stream must not go on as if nothing had happened.
            self._cancel_row(row)
            self._fail(row, as_failure(error, row.request.request_id))
            self._cancel_unheard(row)

    def _send(self, row: RunningRow, response: Any) -> None:
        if row.feeds_postprocessing:
            self._pacer.sent()
        row.request.send(response)

    def _close(self, row: RunningRow, pending: Pending) -> None:
        row.open_sequences.discard(pending.sequence_index)
        if not row.open_sequences:
            self._running.pop(row.key, None)
            self._metrics.row_ended(row, pending.perf)

    def _end_with_error(self, row: RunningRow, pending: Pending) -> None:
        """One sequence failed; or all of a row, if that is the first thing heard of it."""
        failure = InflightError.from_text(pending.error or "")
        if row.has_begun:
            self._end_texts(row)
            self._close(row, pending)
            row.request.end(1, error_response(failure))
        else:
            if row.sequences > 1:
                self._cancel_row(row)  # the others may still run
            self._fail(row, failure)
        self._cancel_unheard(row)

    def _cancel_unheard(self, failed: RunningRow) -> None:
        """After an error an ensemble passes nothing on, so nobody hears the other rows."""
        if failed.feeds_postprocessing:
            failed.request.is_unheard = True
            self._cancel_request(failed.request)

    def _replace_engine(self) -> None:
        """The engine process died: its requests fail, and another is started."""
        how = self._engine.describe_end()
        failing = sorted({row.request.request_id for row in list(self._running.values())})
        _log.error("the engine process ended (%s); what fails: %s", how, ", ".join(failing) or "nothing")
        failure = InflightError(ErrorKind.ENGINE_FAILED, f"{ENGINE_DIED} ({how}); try again")
        self._coalescer = Coalescer()
        for row in list(self._running.values()):
            self._fail(row, failure)
        try:
            engine = EngineProcess(self._parameters)
            self._capacity = engine.wait_until_ready(_log_loading)
            _apply(self._configuration, engine)
        except Exception:
            self._failed_restarts += 1
            _log.exception("the engine could not be started again (%d in a row)", self._failed_restarts)
            if self._failed_restarts == _FAILED_RESTARTS_TO_GIVE_UP:
                os._exit(1)  # a dead stub is noticed from outside; one that never recovers is not
            self._closing.wait(_RESTART_PAUSE_S)
            return
        self._engine = engine
        self._failed_restarts = 0
        self._show_idle()
        _log.info("the engine process was started again")

    def _ask_who_has_gone(self) -> None:
        """Between sends, never beside one, and not about callers of an ensemble.

        Triton does not pass a cancellation on to an ensemble's steps, so that the answer would always be no;
        and every question is a risk to the stop of this Triton release.
        """
        now_s = time.monotonic()
        if self._watch.is_due(now_s):
            rows = list(self._running.values())
            asked = dict.fromkeys(row.request for row in rows if not row.feeds_postprocessing)
            for request in self._watch.who_has_gone(asked, now_s):
                self._cancel_request(request)
            if gone := self._routers.gone(now_s):
                for request in dict.fromkeys(row.request for row in rows if row.request.router in gone):
                    self._cancel_request(request)


def _limits_at_start(capacity: Ready) -> Limits:
    return Limits(capacity.max_batch_size, capacity.max_step_tokens)


def _log_loading(stage: str, done: int, total: int) -> None:
    """The launcher reads it in the log and shows it."""
    _log.info(loading_text(stage, done, total))


def _apply(configuration: Configuration, engine: EngineProcess) -> None:
    limits = configuration.limits
    engine.configure(limits.max_step_tokens, limits.max_batch_size, configuration.inter_token_ms)
