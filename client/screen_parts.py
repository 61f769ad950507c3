"""Rich's tables, spinners and names of tasks, in which a text is a text, on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import progress, status, table
from rich.text import Text

from python_backend.wire.visible_text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def line(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)


class Table(table.Table):
    """A row of it is one row, whatever is in its cells."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*map(_cell, cells), **options)


def _cell(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return line(cell)
    if isinstance(cell, Text) and not cell.plain.isprintable():
        return Text(visible(cell.plain), style=cell.style)
    return cell


class Status(status.Status):
    """A spinner beside one line."""

    def __init__(self, text: str, console: Console) -> None:
        super().__init__(line(text), console=console)

    def __enter__(self) -> Status:
        super().__enter__()
        return self

    def show(self, text: str) -> None:
        self.update(line(text))


class Description(progress.TextColumn):
    """The name of a task, beside its bar."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False)

    def render(self, task: progress.Task) -> Text:
        return line(task.description)
