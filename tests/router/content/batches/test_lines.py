from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.batches import input_check
from router.content.batches.claims import Line
from router.content.batches.input_check import Found, LineCheck, LineSplitter

CHAT = "/v1/chat/completions"


def split(pieces: list[bytes], max_line_bytes: int = 100) -> list[Found]:
    splitter = LineSplitter(max_line_bytes)
    found = [each for piece in pieces for each in splitter.feed(piece)]
    return [*found, *splitter.end()]


@given(st.lists(st.binary(max_size=12).filter(lambda text: b"\n" not in text)), st.integers(1, 20))
def test_lines_are_found_at_their_offsets_wherever_a_file_is_cut(texts: list[bytes], size: int) -> None:
    data = b"\n".join(texts)
    found = split([data[start : start + size] for start in range(0, len(data), size)], max_line_bytes=8)
    expected = texts if texts and texts[-1] else texts[:-1]
    assert [each.number for each in found] == list(range(1, len(expected) + 1))
    for each, text in zip(found, expected, strict=True):
        assert data[each.start_bytes : each.start_bytes + len(text)] == text
        assert each.text == (text if len(text) <= 8 else None)


def check_model(name: str) -> None:
    if name != "tiny":
        raise InflightError(ErrorKind.MODEL_NOT_FOUND, f"The model '{name}' does not exist")


def request(custom_id: str = "a", body: Any = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny"} if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}


def checked(*requests: Any) -> tuple[list[Line], LineCheck]:
    check = LineCheck(CHAT, 1000, check_model)
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests]
    found = [check.check(Found(number, 0, text)) for number, text in enumerate(texts, start=1)]
    check.finish()
    return [line for line in found if line is not None], check


def test_valid_lines_are_accepted_and_empty_ones_skipped() -> None:
    taken, check = checked(request("a"), b"  \r", request("b"), b"")
    assert [(line.number, line.custom_id) for line in taken] == [(1, "a"), (3, "b")]
    assert (check.problems, check.count, check.model) == ([], 2, "tiny")


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[" * 900, "invalid_value", None),
        (b'{"body":{"a":' + b"[" * 5000, "invalid_json_line", None),
        (b"[]", "invalid_value", None),
        (b"{}", "missing_required_parameter", "custom_id"),
        (request(custom_id=7), "invalid_value", "custom_id"),  # type: ignore[arg-type]  # on purpose
        (request(""), "invalid_custom_id", "custom_id"),
        (request("a\0"), "invalid_custom_id", "custom_id"),
        (request("x" * 513), "invalid_custom_id", "custom_id"),
        (request("first"), "duplicate_custom_id", "custom_id"),
        (request(method="GET"), "invalid_method", "method"),
        (request(url="/v1/completions"), "mismatched_url", "url"),
        (request(url="/v1/files"), "mismatched_url", "url"),
        (request(body={}), "missing_required_parameter", "body.model"),
        (request(body=[]), "invalid_value", "body"),
        (request(body={"model": 1}), "invalid_value", "body.model"),
        (request(body={"model": "other"}), "mismatched_model", "body.model"),
        (request(body={"model": "tiny", "stream": True}), "invalid_value", "body.stream"),
        (request(body={"model": "tiny", "background": True}), "invalid_value", "body.background"),
    ],
)
def test_an_error_in_a_line_is_reported_with_its_number(line: Any, code: str, param: str | None) -> None:
    taken, check = checked(request("first"), line)
    assert [each.custom_id for each in taken] == ["first"]
    [problem] = check.problems
    assert (problem.code, problem.param, problem.line) == (code, param, 2)


def test_a_model_that_does_not_exist_is_reported_as_not_found() -> None:
    _, check = checked(request(body={"model": "other"}))
    assert check.problems[0].code == "model_not_found"


def test_a_line_that_is_too_long_is_a_problem_of_that_line() -> None:
    check = LineCheck(CHAT, 1000, check_model)
    assert check.check(Found(3, 0, None)) is None
    assert (check.problems[0].code, check.problems[0].line) == ("line_too_long", 3)


def test_a_file_without_requests_is_refused() -> None:
    _, check = checked(b"", b" ")
    assert [problem.code for problem in check.problems] == ["empty_file"]


def test_a_file_with_too_many_requests_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_check, "MAX_LINES", 3)
    _, check = checked(*[request(str(number)) for number in range(4)])
    assert [problem.code for problem in check.problems] == ["too_many_tasks"]
    assert check.is_hopeless


def test_checking_stops_after_a_maximum_of_errors() -> None:
    _, check = checked(*[b"{"] * input_check.MAX_ERRORS)
    assert check.is_hopeless
