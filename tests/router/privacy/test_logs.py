from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from router.pipeline import GenerationCall
from router.privacy.logs import RedactingFormatter, set_up_logging
from tests.fakes.pipeline import Step, words
from tests.router.privacy.planted import heart_of, planted
from tests.router.running import MODEL, running_router


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """All that the process says, as it would reach the log file."""
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    set_up_logging(stream, logging.DEBUG)
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


def test_what_nobody_caught_and_warnings_are_redacted_too(written: io.StringIO) -> None:
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
    assert text.count("an error that nobody caught") == 2
    assert "do not use [redacted key]" in text
    assert secret not in text


def test_a_traceback_that_another_handler_made_is_redacted(written: io.StringIO) -> None:
    secret = planted(1)[0]
    try:
        fail(secret)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", None, sys.exc_info())
    logging.Formatter().format(record)
    assert secret in (record.exc_text or "")
    assert secret not in RedactingFormatter().format(record)


def test_the_time_of_a_line_is_left_alone() -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "done", None, None)
    line = RedactingFormatter("%(asctime)s %(message)s").format(record)
    assert "redacted" not in line


async def test_nothing_that_users_send_is_in_logs_or_metrics_whatever_goes_wrong(
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
