"""What Triton's errors say of its health."""

from __future__ import annotations

import pytest

from python_backend.wire.errors import TEXT_LOST, ErrorKind
from router.core.generation import Failure
from router.grpc.status import GrpcError, StatusCode
from router.triton.failures import from_status, from_text

STOPPING = "in ensemble 'e', Server is stopping, scheduler for model has stopped accepting new requests"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("in ensemble 'e', Stub process 'eng_0_0' is not healthy.", Failure.STUB_DEAD),
        ("Request for unknown model: 'e' is not found", Failure.NOT_LOADED),
        ("Request for unknown model: 'e' has no available versions", Failure.NOT_LOADED),
        ("in ensemble 'e', Exceeds maximum queue size", Failure.OVERLOADED),
        (STOPPING, Failure.UNREACHABLE),
        ("Request timeout expired", Failure.OVERLOADED),
        ("overloaded: the engine has no room for Stub process", Failure.OVERLOADED),
        ("engine_failed: step 5 broke", Failure.ENGINE),
        (f"in ensemble 'e', engine_failed: {TEXT_LOST}", Failure.STUB_DEAD),
        ("invalid_request: 'Stub process' is no stop word", Failure.CALLER),
        ("cancelled: by the caller", Failure.CALLER),
        ("something odd", Failure.ENGINE),
    ],
)
def test_an_error_text_is_classified_by_whose_fault_it_was(text: str, failure: Failure) -> None:
    assert from_text(text, "r").failure is failure


@pytest.mark.parametrize(
    ("error", "failure", "kind"),
    [
        (
            GrpcError(StatusCode.UNAVAILABLE, "no connection to 1.2.3.4:1: Exceeds maximum queue size", True),
            Failure.UNREACHABLE,
            ErrorKind.ENGINE_FAILED,
        ),
        (GrpcError(StatusCode.UNAVAILABLE, "Socket closed"), Failure.UNREACHABLE, ErrorKind.ENGINE_FAILED),
        (
            GrpcError(StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
            Failure.OVERLOADED,
            ErrorKind.OVERLOADED,
        ),
        (
            GrpcError(StatusCode.UNAVAILABLE, "Stub process 'e_0_0' is not healthy."),
            Failure.STUB_DEAD,
            ErrorKind.OVERLOADED,
        ),
        (GrpcError(StatusCode.UNAVAILABLE, "overloaded: full"), Failure.OVERLOADED, ErrorKind.OVERLOADED),
        (GrpcError(StatusCode.CANCELLED), Failure.UNREACHABLE, ErrorKind.ENGINE_FAILED),
        (GrpcError(StatusCode.DEADLINE_EXCEEDED), Failure.OVERLOADED, ErrorKind.OVERLOADED),
        (GrpcError(StatusCode.INTERNAL, "it broke"), Failure.ENGINE, ErrorKind.INTERNAL),
        (
            GrpcError(StatusCode.NOT_FOUND, "Request for unknown model: 'e' is not found"),
            Failure.NOT_LOADED,
            ErrorKind.ENGINE_FAILED,
        ),
    ],
)
def test_a_status_code_is_classified_by_whose_fault_it_was(
    error: GrpcError, failure: Failure, kind: ErrorKind
) -> None:
    found = from_status(error, "r")
    assert (found.failure, found.kind) == (failure, kind)
