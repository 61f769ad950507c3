from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner, Result

from client import cli
from client.cli import Conversation, ask, chat, talk
from client.http import InflightClient, TextStream
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from tests.fakes.pipeline import words
from tests.router.running import MODEL, RunningRouter
from tests.waiting import wait_until

NOBODY = "http://127.0.0.1:1"


def run(*arguments: str, stdin: str = "", url: str = NOBODY) -> Result:
    app = typer.Typer()
    app.command()(ask)
    app.command()(chat)
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"INFLIGHT_URL": url})


def test_ask_prints_the_answer(router: RunningRouter) -> None:
    result = run("ask", "hi", url=router.url)
    assert (result.exit_code, result.stdout) == (0, "Hello world\n")


def test_ask_passes_its_options_to_the_router(router: RunningRouter) -> None:
    result = run(
        "ask", "hi", "--system", "be brief", "--max-tokens", "9", "--temperature", "0.5", "--model", MODEL,
        "--url", router.url,
    )  # fmt: skip
    assert result.exit_code == 0
    call = router.pipeline.calls[0]
    assert call.prompt == "<system>be brief</system><user>hi</user><assistant>"
    assert (call.max_tokens, call.temperature) == (9, 0.5)


def test_ask_reads_standard_input(router: RunningRouter) -> None:
    assert run("ask", "-", stdin="from a file\n", url=router.url).exit_code == 0
    assert router.pipeline.calls[0].prompt == "<user>from a file</user><assistant>"


@pytest.mark.parametrize("command", [["ask", "hi"], ["chat"]])
def test_a_missing_server_is_reported_with_what_to_do(command: list[str]) -> None:
    result = run(*command)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "nothing is listening at http://127.0.0.1:1" in result.stderr
    assert "make serve" in result.stderr


def test_a_refusal_is_reported_on_standard_error(router: RunningRouter) -> None:
    result = run("ask", "hi", "--model", "other", url=router.url)
    assert result.exit_code == 1
    assert "error: The model 'other' does not exist" in result.stderr


def test_chat_remembers_resets_and_accepts_instructions(router: RunningRouter) -> None:
    lines = ["one", "two", "/reset", "/system be brief", "", "/nonsense", "three", "/exit", "never"]
    result = run("chat", stdin="\n".join(lines), url=router.url)
    assert result.exit_code == 0
    assert [call.prompt for call in router.pipeline.calls] == [
        "<user>one</user><assistant>",
        "<user>one</user><assistant>Hello world</assistant><user>two</user><assistant>",
        "<system>be brief</system><user>three</user><assistant>",
    ]
    assert "/system TEXT" in result.stderr


def test_chat_ends_with_its_input(router: RunningRouter) -> None:
    assert run("chat", stdin="", url=router.url).exit_code == 0


def test_a_failed_question_is_forgotten(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: (
        [InflightError(ErrorKind.OVERLOADED, "busy")] if "bad" in call.prompt else words("fine")
    )
    result = run("chat", stdin="bad\ngood\n", url=router.url)
    assert "error: busy" in result.stderr
    assert router.pipeline.calls[1].prompt == "<user>good</user><assistant>"


class Interrupted(TextStream):
    """Ctrl-C after so many pieces."""

    after = 1

    def __iter__(self) -> Iterator[str]:
        for number, text in enumerate(super().__iter__()):
            if number == self.after:
                raise KeyboardInterrupt
            yield text


@pytest.mark.parametrize(
    ("after", "second_prompt"),
    [
        (1, "<user>one</user><assistant>Hello</assistant><user>two</user><assistant>"),
        (0, "<user>two</user><assistant>"),
    ],
)
def test_ctrl_c_stops_the_answer_and_not_the_chat(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, after: int, second_prompt: str
) -> None:
    router.pipeline.script = lambda call: [Delta("Hello", 1, 1), Delta(" there", 1, 1), None]
    monkeypatch.setattr(Interrupted, "after", after)
    monkeypatch.setattr("client.http.TextStream", Interrupted)
    lines = iter(["one", "two", None])
    with InflightClient(router.url) as client:
        talk(client, Conversation(), {}, lambda: next(lines))
    assert router.pipeline.calls[1].prompt == second_prompt
    wait_until(lambda: all(generation.stopped for generation in router.pipeline.generations))


def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    presses: Iterator[str | BaseException] = iter([KeyboardInterrupt(), "hello ", EOFError()])

    def press(prompt: str) -> str:
        key = next(presses)
        if isinstance(key, BaseException):
            raise key
        return key

    monkeypatch.setattr("builtins.input", press)
    assert cli._read_line() == "hello"
    assert cli._read_line() is None


def test_a_model_cannot_drive_the_terminal(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router.pipeline.script = lambda call: words("\x1b[2Jred\x9b\x07\r", "\tok\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with InflightClient(router.url) as client:
        cli._print_answer(client.stream_chat("x"))
    assert capsys.readouterr().out == "[2Jred\tok\n\n"
