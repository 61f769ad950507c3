"""What an error of Triton's says of the server, and what of it a client may know."""

from __future__ import annotations

import logging

from python_backend.wire.errors import ENGINE_AWAY, ENGINE_DIED, TEXT_LOST, ErrorKind, InflightError
from router.core.generation import Failure
from router.grpc.status import GrpcError, StatusCode

log = logging.getLogger(__name__)

UNAVAILABLE = "the model cannot answer at the moment"
# Triton's own words, in small letters.
_PHRASES = {
    "exceeds maximum queue size": Failure.OVERLOADED,
    "request timeout expired": Failure.OVERLOADED,
    "stub process": Failure.STUB_DEAD,
    "unknown model": Failure.NOT_LOADED,
    "has no available versions": Failure.NOT_LOADED,
    "is not available": Failure.NOT_LOADED,
    "is not ready": Failure.NOT_LOADED,
    "server is stopping": Failure.UNREACHABLE,
}
_BEGINNINGS = {
    ENGINE_DIED: Failure.ENGINE_DIED,
    ENGINE_AWAY: Failure.ENGINE_AWAY,
    TEXT_LOST: Failure.STUB_DEAD,
}
_BY_KIND = {ErrorKind.MODEL_NOT_FOUND: Failure.NOT_LOADED, ErrorKind.CANCELLED: Failure.CALLER}


class TritonError(InflightError):
    """An InflightError that tells what its replica is worth; `said` is not for clients.

    A request that was not `sent` costs its replica nothing, and cannot be what that died of.
    """

    def __init__(
        self, kind: ErrorKind, message: str, failure: Failure, said: str = "", sent: bool = True
    ) -> None:
        super().__init__(kind, message)
        self.failure = failure
        self.said = said or message
        self.sent = sent


def cut_error() -> TritonError:
    """For a request that is given up because its replica will not answer."""
    return TritonError(ErrorKind.ENGINE_FAILED, UNAVAILABLE, Failure.CUT)


def from_status(error: GrpcError, request_id: str) -> TritonError:
    text = error.details or error.code.name
    if error.code is StatusCode.DEADLINE_EXCEEDED:
        return TritonError(ErrorKind.OVERLOADED, "the model did not answer in time", Failure.OVERLOADED)
    # A server that is stopped ends its calls with one of both, whichever comes first. Nobody here cancels a
    # call and then asks what became of it.
    is_going = error.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
    if is_going and (error.lost or not _is_answer(text)):
        log.warning("%s: Triton is not available: %s", request_id, text)
        return TritonError(ErrorKind.ENGINE_FAILED, UNAVAILABLE, Failure.UNREACHABLE, sent=error.sent)
    return from_text(text, request_id)


def from_text(text: str, request_id: str) -> TritonError:
    """What a client may know of Triton's error; names of stubs, regions and paths stay in the log."""
    error = InflightError.from_text(text)
    if error.kind.is_callers_fault and error.kind is not ErrorKind.MODEL_NOT_FOUND:
        return TritonError(error.kind, error.message, Failure.CALLER)
    log.warning("%s: Triton answered: %s", request_id, text)
    # The router names only models it serves, so one that Triton does not know is not loaded.
    kind = ErrorKind.ENGINE_FAILED if error.kind is ErrorKind.MODEL_NOT_FOUND else error.kind
    return TritonError(kind, UNAVAILABLE, _failure(error, text), error.message)


def _failure(error: InflightError, text: str) -> Failure:
    if error.kind in _BY_KIND:
        return _BY_KIND[error.kind]
    if error.message != text:  # the engine's words, whatever they quote
        return Failure.OVERLOADED if error.kind is ErrorKind.OVERLOADED else _engines_failure(error.message)
    return _find_phrase(text) or Failure.ENGINE


def _engines_failure(message: str) -> Failure:
    found = (failure for beginning, failure in _BEGINNINGS.items() if message.startswith(beginning))
    return next(found, Failure.ENGINE)


def _is_answer(text: str) -> bool:
    """Whether Triton or the model said so, and nobody on the way there."""
    return InflightError.from_text(text).message != text or _find_phrase(text) is not None


def _find_phrase(text: str) -> Failure | None:
    lowered = text.lower()
    return next((failure for phrase, failure in _PHRASES.items() if phrase in lowered), None)
