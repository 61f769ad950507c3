"""What one Triton request is between `execute` and its final response: rows, each with its sequences.

Each sequence ends once, and the final flag goes out with the last of them. Whoever takes a row out of the
table of running rows is the one to end it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from python_backend.triton_adapter import pb
from python_backend.triton_adapter.coalescer import Pending
from python_backend.triton_adapter.requests import GenerateCall
from python_backend.triton_adapter.responses import ResponseBuilder
from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.tensorrt_llm")


class RunningRequest:
    """One Triton request; `open_sequences` counts those of all its rows that have not ended."""

    def __init__(
        self, request_id: str, sender: pb.ResponseSender, open_sequences: int, router: str = ""
    ) -> None:
        self.request_id = request_id
        self.router = router
        self.since_s = time.monotonic()
        self.is_unheard = False  # an ensemble has dropped it after an error
        self._sender = sender
        self._open_sequences = open_sequences
        # Triton frees what `is_cancelled` looks at when the final response goes out, and asking after that
        # wedges the server: question and final response take turns.
        self._turn = threading.Lock()

    def send(self, response: Any) -> None:
        self._sender.send(response)

    def end(self, sequences: int, response: Any) -> None:
        """Sends the last response of so many sequences, with the final flag when no other is left."""
        with self._turn:
            self._open_sequences -= sequences
            try:
                self._send_last(response)
            except Exception as error:
                _log.exception("the last response of %r could not be sent", self.request_id)
                with contextlib.suppress(Exception):
                    self._send_last(error_response(as_failure(error, self.request_id)))

    def is_caller_gone(self) -> bool:
        with self._turn:
            return self._open_sequences > 0 and self._sender.is_cancelled()

    def _send_last(self, response: Any) -> None:
        if self._open_sequences > 0:
            self._sender.send(response)
        else:
            send_final(self._sender, response)


class RunningRow:
    """One row in the engine, under the row's key."""

    def __init__(
        self,
        key: int,
        request: RunningRequest,
        call: GenerateCall,
        index: int,
        arrival_ns: int,
        builders: list[ResponseBuilder],
    ) -> None:
        self.key = key
        self.request = request
        self.call = call.rows[index]
        self.feeds_postprocessing = call.feeds_postprocessing
        self.arrival_ns = arrival_ns
        self.builders = builders
        self.open_sequences = set(range(len(builders)))
        self.has_begun = False
        self._newest_ns = [0] * len(builders)

    @property
    def sequences(self) -> int:
        return len(self.builders)

    @property
    def output_tokens(self) -> int:
        return sum(builder.output_tokens for builder in self.builders)

    def mean_gap_s(self, pending: Pending) -> float | None:
        """Mean time from token to token up to the newest of a response; None where there is no gap yet."""
        gaps, before_ns = len(pending.token_ids), self._newest_ns[pending.sequence_index]
        if gaps == 0:
            return None
        if before_ns == 0:
            gaps, before_ns = gaps - 1, pending.oldest_ns
        self._newest_ns[pending.sequence_index] = pending.newest_ns
        return (pending.newest_ns - before_ns) / gaps / 1e9 if gaps else None


def as_failure(error: Exception, request_id: str) -> InflightError:
    if isinstance(error, InflightError):
        return error
    _log.error("%r failed", request_id, exc_info=error)
    return InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")


def error_response(failure: InflightError) -> Any:
    return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(failure))


def empty_response() -> Any:
    return pb.utils().InferenceResponse(output_tensors=[])


def send_final(sender: pb.ResponseSender, response: Any = None) -> None:
    sender.send(response, flags=pb.utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL)
