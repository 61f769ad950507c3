"""Output for a person at a terminal: whatever a value holds, it is letters there.

Names, reasons and messages come from tenants, from files of others and from other machines. None of them is
markup (`[red]`, `:bomb:`), and none of them reaches the terminal as a command (ESC, bidirectional controls).
What is printed goes through this module and `client.screen_parts`, which a test checks.
"""

from __future__ import annotations

import builtins
import sys
from typing import IO, TYPE_CHECKING, Any

import typer
from rich import console
from rich.segment import Segment
from rich.text import Text

from python_backend.wire.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

_CONTROLS = [code for code in (*range(32), *range(127, 160)) if code not in (9, 10)]
_DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_TAKEN_OUT = dict.fromkeys((*_CONTROLS, *_DIRECTIONS))


def visible_lines(text: str) -> str:
    """Return a text of several lines, which stay, with escapes for everything else that cannot be seen."""
    return visible(text, also_kept="\n\t")


def spoken(text: str) -> str:
    """Return a model's words without what drives a terminal; languages need some of what cannot be seen."""
    return text.translate(_TAKEN_OUT)


def speak(text: str) -> None:
    """Print a piece of an answer as it comes; a file or another program gets it as it is."""
    builtins.print(spoken(text) if sys.stdout.isatty() else text, end="", flush=True)


def print(*values: object, end: str = "\n", file: IO[str] | None = None, flush: bool = False) -> None:
    """Stands in for Python's own."""
    builtins.print(*(visible_lines(str(each)) for each in values), end=end, file=file, flush=flush)


def confirm(question: str) -> None:
    """Go on if the answer is yes, end the command otherwise."""
    typer.confirm(visible(question), abort=True)


class Console(console.Console):
    """Rich's, for which a text is a text; styles are those of `style=` and of `Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return what a string looks like: where it is measured and where it is drawn."""
        return super().render_str(visible_lines(text), **{**options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible_lines(segment.text), segment.style)
