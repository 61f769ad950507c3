from __future__ import annotations

import io
import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from router.core.generation import GenerationCall
from router.core.record import Record, RequestLine, RequestLines
from router.telemetry.logs import JsonFormatter, LogFormat, RedactingFormatter, set_up_logging
from tests.fakes.pipeline import Step, words
from tests.router.running import MODEL, running_router
from tests.router.telemetry.planted import heart_of, planted


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """All that the process says, as it would reach the log file."""
    yield from _written("text")


def _written(log_format: LogFormat) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    set_up_logging(stream, logging.DEBUG, log_format)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    sys.excepthook, threading.excepthook = hooks


def fail(secret: str) -> None:
    raise ValueError(f"cannot use {secret}")


def test_messages_arguments_tracebacks_and_stacks_are_redacted(written: io.StringIO) -> None:
    log = logging.getLogger("some.library")
    for secret in planted(36):
        log.info("given %s", secret)
        log.info("given {}".format(secret), stack_info=True)  # noqa: UP032 (as a library would)
        try:
            fail(secret)
        except ValueError:
            log.exception("refused: %r", {"value": secret})
    text = written.getvalue()
    assert "Traceback" in text
    assert not [secret for secret in planted(36) if heart_of(secret) in text]


def test_uncaught_errors_and_warnings_are_redacted(written: io.StringIO) -> None:
    secret = planted(1)[0]
    try:
        fail(secret)
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    thread = threading.Thread(target=fail, args=(secret,))
    thread.start()
    thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"do not use {secret}", stacklevel=1)
    text = written.getvalue()
    assert text.count("uncaught exception") == 2
    assert "do not use [redacted key]" in text
    assert secret not in text


def test_a_traceback_cached_by_another_handler_is_redacted(written: io.StringIO) -> None:
    secret = planted(1)[0]
    try:
        fail(secret)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", None, sys.exc_info())
    logging.Formatter().format(record)
    assert secret in (record.exc_text or "")
    assert secret not in RedactingFormatter().format(record)


def test_the_timestamp_of_a_line_is_left_alone() -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "done", None, None)
    line = RedactingFormatter().format(record)
    assert "redacted" not in line


async def test_user_content_is_never_in_logs_or_metrics_whatever_goes_wrong(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = planted(200)
    for client in ("httpx", "httpcore"):
        monkeypatch.setattr(logging.getLogger(client), "disabled", True)

    def script(call: GenerationCall) -> list[Step]:
        if "fail" in call.prompt:
            return [RuntimeError(f"cannot do {call.prompt}")]
        return words("I was told ", call.prompt)

    async with running_router() as router:
        router.pipeline.script = script
        for number, secret in enumerate(secrets):
            content = f"{'fail' if number % 5 == 0 else 'say'} {secret}"
            match number % 10:
                case 1:
                    await router.http.post("/v1/chat/completions", content=content.encode())
                case 2:
                    await router.chat(messages=[{"role": secret, "content": content}])
                case 3:
                    await router.chat(model=secret)
                case 4:
                    await router.chat(tools=[{"type": "function", "function": {"name": secret}}])
                case 6:
                    await router.http.get("/v1/models/" + secret.replace("/", "_").replace("\n", "_"))
                case 7:
                    headers = {"authorization": "Bearer " + secret.replace("\n", " ")}
                    await router.http.get("/v1/models", headers=headers)
                case 8:
                    await router.complete(prompt=content, stream=True, user=secret)
                case _:
                    await router.complete(prompt=content, model=MODEL)
        shown = written.getvalue() + router.metrics.render().decode()
    assert "RuntimeError" in shown
    assert not [secret for secret in secrets if heart_of(secret) in shown]


@pytest.fixture
def objects() -> Iterator[io.StringIO]:
    """The same, one JSON object a line."""
    yield from _written("json")


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_json_log_lines_are_redacted(objects: io.StringIO) -> None:
    log, secrets = logging.getLogger("some.library"), planted(36)
    for secret in secrets:
        log.info("given %s", secret)
        try:
            fail(secret)
        except ValueError as error:
            log.exception("refused: %r", {"value": secret})
            sys.excepthook(ValueError, error, error.__traceback__)
    found = lines(objects)
    assert len(found) == 3 * len(secrets)
    assert found[0].keys() == {"time", "level", "logger", "message"}, "nothing of any request"
    assert (found[0]["level"], found[0]["logger"]) == ("INFO", "some.library")
    assert abs(datetime.fromisoformat(found[0]["time"].replace("Z", "+00:00")).timestamp() - time.time()) < 60
    assert found[1].keys() == {"time", "level", "logger", "message", "exception"}
    assert "Traceback" in found[1]["exception"]
    assert not [secret for secret in secrets if heart_of(secret) in objects.getvalue()]


def test_a_lone_surrogate_and_a_cached_traceback_still_make_one_json_line() -> None:
    secret = planted(1)[0]
    try:
        fail(secret)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "half \ud800\n", None, sys.exc_info())
    logging.Formatter().format(record)
    record.exc_info = None
    (line,) = JsonFormatter().format(record).splitlines()
    assert json.loads(line)["message"] == "half \\ud800\n"
    assert "ValueError: cannot use [redacted" in json.loads(line)["exception"]
    assert heart_of(secret) not in line


def test_requests_that_end_together_have_a_line_each_as_text_and_as_json() -> None:
    ended = RequestLines(RequestLine(Record("/v1/models", f"req-{number}"), 200, 1.0) for number in range(2))
    record = logging.LogRecord("router.app", logging.INFO, "", 0, "%s", (ended,), None)
    text = RedactingFormatter().format(record).splitlines()
    assert [line.split()[2:5] for line in text] == [["INFO", "router.app", f"req-{n}"] for n in range(2)]
    objects = [json.loads(line) for line in JsonFormatter().format(record).splitlines()]
    assert [(each["message"], each["request_id"]) for each in objects] == [
        ("request", "req-0"),
        ("request", "req-1"),
    ]


async def test_a_request_is_logged_as_one_object_with_all_its_fields(objects: io.StringIO) -> None:
    asked, answered = "what-is-asked", "what-is-answered"

    def script(call: GenerationCall) -> list[Step]:
        logging.getLogger("router.anywhere").warning("it is looked into")
        return words(answered, " and more")

    async with running_router() as router:
        router.pipeline.script = script
        tenant = await router.new_tenant()
        headers = {"authorization": f"Bearer {await router.new_key(tenant)}"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": asked}], "service_tier": "priority"}
        response = await router.http.post("/v1/chat/completions", json=body, headers=headers)
        await router.http.post("/v1/chat/completions", json=body)
        logging.getLogger("router.anywhere").warning("nobody asked")
    found = [line for line in lines(objects) if line["logger"].startswith("router.")]
    inside, request, refused, outside = (
        line for line in found if line["logger"] in ("router.app", "router.anywhere")
    )
    who = {
        "request_id": response.headers["x-request-id"],
        "route": "/v1/chat/completions",
        "tenant": tenant,
        "model": MODEL,
        "release": "1",
    }
    assert inside.items() >= {**who, "message": "it is looked into"}.items()
    assert request.items() >= who.items()
    assert (request["message"], request["status"], request["outcome"]) == ("request", 200, "finished")
    assert (request["tier"], request["finish_reason"]) == ("interactive", "stop")
    assert (request["prompt_tokens"], request["completion_tokens"], request["cached_tokens"]) == (7, 2, 0)
    stages = request["stages_ms"]
    assert stages.keys() == {"admission", "queue", "triton", "send"}
    assert sum(stages.values()) <= request["total_ms"] + 0.01
    assert 0 < request["first_token_ms"] <= request["total_ms"]
    assert (refused["status"], "tenant" in refused, "outcome" in refused) == (401, False, False)
    assert outside.keys() == {"time", "level", "logger", "message"}
    assert asked not in objects.getvalue()
    assert answered not in objects.getvalue()


FORGED = "x\n2026-01-01 00:00:00,000 INFO router forged \x1b]0;t\x07\x1b[2J\x9b\u202e\u2028\x85"


def say_everything() -> None:
    """A message, an error's traceback, and a stack, with a value that is hostile."""
    log = logging.getLogger("some.library")
    log.warning("the name %s is unknown", FORGED)
    try:
        fail(FORGED)
    except ValueError:
        log.exception("refused %s", FORGED, stack_info=True)


def test_a_value_in_a_log_neither_poses_as_a_line_nor_drives_a_terminal(written: io.StringIO) -> None:
    say_everything()
    begins = [line for line in written.getvalue().splitlines() if not line.startswith("  ")]
    assert len(begins) == 2
    assert not [line for line in begins if "some.library" not in line]
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\x85"} & set(written.getvalue())
    assert r"\x1b]0;t\x07\x1b[2J\x9b\u202e\u2028\x85" in written.getvalue()


def test_a_value_in_a_json_log_is_whole_and_drives_no_terminal(objects: io.StringIO) -> None:
    say_everything()
    said = lines(objects)
    assert len(said) == 2
    assert said[0]["message"] == f"the name {FORGED} is unknown"
    assert not {"\x1b", "\x07", "\x7f", "\x9b", "\u202e", "\u2028", "\x85"} & set(objects.getvalue())


def test_a_request_whose_names_are_hostile_has_one_line() -> None:
    """Names of models and tenants are checked where they are made; a store may come from elsewhere."""
    record = Record("/v1/chat/completions", "chat-1")
    record.model, record.model_version = FORGED, "1"
    line = logging.LogRecord("l", 20, "", 0, "%s", (RequestLines([RequestLine(record, 200, 1.0)]),), None)
    assert len(RedactingFormatter().format(line).splitlines()) == 1
    (said,) = map(json.loads, JsonFormatter().format(line).splitlines())
    assert said["model"] == FORGED
