from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from router.content.files import model
from router.content.files.model import read_form
from tests.tiers import examples

CONTENT_TYPE = "multipart/form-data; boundary=abc"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return (
        f'--abc\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    )


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--abc--\r\n"


# Bytes of which boundaries are made, so that some look like the beginning of one.
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--ab", b"\r\n--ab", b"x", b"\r\n--"]), max_size=30),
    st.integers(1, 40),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(75))
def test_a_file_is_found_whole_wherever_the_form_is_cut(
    content: list[bytes], chunk_bytes: int, file_first: bool
) -> None:
    data = b"".join(content)
    parts = [part("file", data, "a.jsonl"), part("purpose", b"batch")]
    body = form(*(parts if file_first else parts[::-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_READ_BYTES", chunk_bytes)
        found = read_form(io.BytesIO(body), CONTENT_TYPE)
    assert found.fields == {"purpose": "batch"}
    assert found.filename == "a.jsonl"
    assert body[found.start_bytes : found.start_bytes + found.size_bytes] == data


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the form is incomplete"),
        (b"nonsense", "not a valid form"),
        (part("file", b"x", "a"), "the form is incomplete"),
        (form(part("purpose", b"batch")), "Missing required parameter: file"),
        (form(part("file", b"x", "a"), part("file", b"y", "b")), "expected one file, got several"),
        (form(part("colour", b"red")), "Unrecognized request argument supplied: colour"),
        (form(part("\x07", b"red")), "Unrecognized request argument supplied: a part of the form"),
        (form(b"--abc\r\n\r\nred\r\n"), "Unrecognized request argument supplied"),
        (form(part("purpose", b"x" * 5000)), "purpose: longer than 4096 bytes"),
        (form(*[part("purpose", b"x")] * 17), "more than 16 parts"),
    ],
)
def test_a_malformed_form_is_refused_with_a_reason(body: bytes, message: str) -> None:
    with pytest.raises(InflightError, match=message) as refused:
        read_form(io.BytesIO(body), CONTENT_TYPE)
    assert refused.value.kind.http_status == 400


def test_a_form_without_a_boundary_is_refused() -> None:
    with pytest.raises(InflightError, match="needs a boundary"):
        read_form(io.BytesIO(b""), "multipart/form-data")


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=examples(75))
def test_no_form_body_causes_more_than_a_bad_request(body: bytes) -> None:
    with pytest.raises(InflightError) as refused:
        read_form(io.BytesIO(b"--abc\r\n" + body + b"\r\n--abc-"), CONTENT_TYPE)
    assert refused.value.kind.http_status == 400
