"""`inflight chat` and `inflight ask`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from client.http import DEFAULT_URL, InflightClient, NotListening, RequestFailed, TextStream
from client.terminal import Console, print, speak
from python_backend.wire.visible_text import visible

URL_VARIABLE = "INFLIGHT_URL"
_HELP = (
    "Ctrl-C stops an answer, Ctrl-D or /exit leaves. /reset clears the conversation, /system TEXT changes "
    "the instructions."
)

UrlOption = Annotated[str, typer.Option(metavar="URL", help="The router's address.", envvar=URL_VARIABLE)]
ModelOption = Annotated[str | None, typer.Option(help="The model. [default: the first one served]")]
MaxTokensOption = Annotated[int | None, typer.Option(help="The most tokens an answer may have.", min=1)]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        help="0 always picks the likeliest token, 1 samples as the model was trained.", min=0, max=2
    ),
]
SystemOption = Annotated[str | None, typer.Option(help="Instructions for the model.")]
KeyOption = Annotated[str | None, typer.Option(help="An API key.", envvar="INFLIGHT_API_KEY")]


def ask(
    question: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    system: SystemOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
) -> None:
    """Ask one question and print the answer as it comes."""
    conversation = Conversation(system)
    conversation.say(sys.stdin.read().strip() if question == "-" else question)
    options = _options(max_tokens, temperature)
    with InflightClient(url, api_key, model) as client:
        try:
            with client.stream_chat(conversation.messages, **options) as stream:
                _print_answer(stream)
        except RequestFailed as failure:
            _complain(failure)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print()
            raise typer.Exit(130) from None


def chat(
    system: SystemOption = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
) -> None:
    """Talk with a model."""
    with InflightClient(url, api_key, model) as client:
        try:
            name = client.model({})
        except RequestFailed as failure:
            _complain(failure)
            raise typer.Exit(1) from None
        beginning = Text.assemble((visible(name), "bold"), f" at {visible(url)}\n", (_HELP, "dim"))
        Console(stderr=True).print(beginning)
        _load_line_editing()
        talk(client, Conversation(system), _options(max_tokens, temperature), _read_line)


class Conversation:
    """What has been said so far."""

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        instructions = [{"role": "system", "content": self._system}] if self._system else []
        return [*instructions, *self._turns]

    def say(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        self._turns.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forgets what was said last, because it got no answer."""
        self._turns.pop()

    def instruct(self, system: str) -> None:
        self._system = system

    def reset(self) -> None:
        self._turns.clear()


def talk(
    client: InflightClient,
    conversation: Conversation,
    options: dict[str, Any],
    read_line: Callable[[], str | None],
) -> None:
    """Reads a line, answers it, until there are no more lines."""
    while (line := read_line()) is not None:
        command, _, rest = line.partition(" ")
        if command == "/exit":
            return
        if command == "/reset":
            conversation.reset()
        elif command == "/system":
            conversation.instruct(rest.strip())
        elif line.startswith("/"):
            print(_HELP, file=sys.stderr)
        elif line:
            _answer(client, conversation, options, line)


def _answer(client: InflightClient, conversation: Conversation, options: dict[str, Any], line: str) -> None:
    conversation.say(line)
    try:
        with client.stream_chat(conversation.messages, **options) as stream:
            conversation.answered(_print_answer(stream, interruptible=True))
    except RequestFailed as failure:
        conversation.take_back()
        _complain(failure)
    except KeyboardInterrupt:  # before the first word
        conversation.take_back()
        print()


def _print_answer(stream: TextStream, *, interruptible: bool = False) -> str:
    """Prints text as it comes and returns all of it, or what there was when Ctrl-C cut it short."""
    texts: list[str] = []
    try:
        for text in stream:
            texts.append(text)
            speak(text)
    except KeyboardInterrupt:
        if not (interruptible and texts):
            raise
    print()
    return "".join(texts)


def _options(max_tokens: int | None, temperature: float | None) -> dict[str, Any]:
    given = {"max_tokens": max_tokens, "temperature": temperature}
    return {name: value for name, value in given.items() if value is not None}


def _complain(failure: RequestFailed) -> None:
    print(f"error: {failure.message}", file=sys.stderr)
    if isinstance(failure, NotListening):
        print(f"start it with make serve, or name its address with --url or {URL_VARIABLE}", file=sys.stderr)


def _read_line() -> str | None:
    """The next line; None at the end of input. Ctrl-C only clears the line."""
    while True:
        try:
            return input("> ").strip()
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return None


def _load_line_editing() -> None:
    if os.isatty(0):
        try:
            import readline  # noqa: F401 (importing it gives `input` history and cursor keys)
        except ImportError:
            return
