from __future__ import annotations

import contextlib

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from router.grpc.frames import ConnectionFailure
from router.grpc.headers import read_block
from router.grpc.sender import RequestHeaders, literal, timeout_field, timeout_text
from router.grpc.status import GrpcError, StatusCode

VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=400)


def decoded(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


def test_a_request_says_what_grpc_demands_and_nothing_of_the_client() -> None:
    assert decoded(RequestHeaders("triton:8001")["/s/M"] + timeout_field(2)) == {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "triton:8001",
        ":path": "/s/M",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "inflight-router",
        "grpc-timeout": "2000m",
    }


def test_metadata_rides_with_every_request() -> None:
    headers = RequestHeaders("triton:8001", {"triton-grpc-protocol-x": "secret"})
    assert decoded(headers["/s/M"])["triton-grpc-protocol-x"] == "secret"
    assert decoded(headers["/s/M"]) == decoded(headers["/s/M"])


@settings(deadline=None)
@given(VISIBLE, VISIBLE)
def test_a_literal_field_decodes_to_what_went_in(name: str, value: str) -> None:
    assert decoded(literal(name, value)) == {name: value}


@settings(deadline=None)
@given(st.floats(min_value=-1, max_value=1e12, allow_nan=False))
def test_a_timeout_has_at_most_eight_digits_and_is_never_shorter_than_asked(timeout_s: float) -> None:
    text = timeout_text(timeout_s)
    assert 1 <= len(text[:-1]) <= 8
    told_s = int(text[:-1]) * {"m": 1e-3, "S": 1.0}[text[-1]]
    assert told_s > 0
    assert told_s >= min(timeout_s, 99_999_999) * (1 - 1e-9)


def outcome(**fields: str) -> GrpcError | None:
    return read_block(
        b"".join(literal(name.replace("_", "-"), value) for name, value in fields.items())
    ).outcome()


def test_trailers_name_the_status_and_a_percent_encoded_message() -> None:
    assert outcome(grpc_status="0") is None
    error = outcome(grpc_status="5", grpc_message="no %22m%C3%B6del%22 50%")
    assert error is not None
    assert (error.code, error.details) == (StatusCode.NOT_FOUND, 'no "mödel" 50%')


def test_an_unknown_status_code_is_reported_as_unknown() -> None:
    for status in ("17", "-1", "4711"):
        error = outcome(grpc_status=status)
        assert error is not None
        assert error.code is StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("503", StatusCode.UNAVAILABLE),
        ("404", StatusCode.UNIMPLEMENTED),
        ("401", StatusCode.UNAUTHENTICATED),
        ("418", StatusCode.UNKNOWN),
    ],
)
def test_an_answer_that_is_not_grpc_is_named_by_its_http_status(status: str, code: StatusCode) -> None:
    error = read_block(literal(":status", status) + literal("content-type", "text/html")).outcome()
    assert error is not None
    assert error.code is code


def test_an_answer_of_another_content_type_is_refused() -> None:
    refusal = read_block(literal(":status", "200") + literal("content-type", "text/html")).refusal()
    assert refusal is not None
    assert "not gRPC" in refusal.details


def test_blocks_of_any_encoder_without_a_table_are_read() -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    fields = [(":status", "200"), ("content-type", "application/grpc+proto"), ("grpc-status", "0")]
    for huffman in (True, False):
        headers = read_block(encoder.encode(fields, huffman=huffman))
        assert (headers.http_status, headers.is_grpc, headers.grpc_status) == (200, True, 0)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_header_block_does_more_than_end_the_connection(block: bytes) -> None:
    with contextlib.suppress(ConnectionFailure):
        read_block(block)


def test_cached_header_blocks_are_bounded() -> None:
    from router.grpc import headers

    for number in range(2000):
        outcome(grpc_status="2", grpc_message=f"text {number}")
    assert len(headers._known) <= 512
