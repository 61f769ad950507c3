"""Whose end an error is."""

from __future__ import annotations

import pytest

from python_backend.engine.runtimes.hosted.host import Unreadable
from python_backend.engine.runtimes.trtllm.failures import failure_of, is_fatal
from python_backend.wire.errors import ErrorKind
from tests.fakes.conversation import RequestError


@pytest.mark.parametrize(
    ("message", "fatal"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("cudaErrorIllegalAddress: illegal address", True),
        ("RuntimeError: device-side assert triggered", True),
        ("cudaErrorLaunchFailure: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("CUDA error: out of memory", False),
        ("The sum of prompt length (9) should not exceed max_num_tokens (8)", False),
        ("", False),
    ],
)
def test_a_gpu_fault_is_distinguished_from_a_requests_error(message: str, fatal: bool) -> None:
    assert is_fatal(message) == fatal
    assert (failure_of(RequestError(message), RequestError) is None) == fatal


def test_every_other_error_is_mapped_to_its_own_kind() -> None:
    refused, unread = failure_of(ValueError("no"), RequestError), failure_of(Unreadable("no"), RequestError)
    assert refused is not None
    assert refused.kind is ErrorKind.INVALID_REQUEST
    assert unread is not None
    assert unread.kind is ErrorKind.ENGINE_FAILED
    assert failure_of(RuntimeError("LLM is shutting down"), RequestError) is None
