"""Shows what a starting engine says in Triton's log about how far it is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from python_backend.wire.load_progress import LoadingStage, read_loading

if TYPE_CHECKING:
    from types import TracebackType

    from launcher.console import StackConsole
    from launcher.stack.processes import ChildProcess


class LoadingView:
    """A context in which one label is shown, and in its place each stage that the log names, when it does."""

    def __init__(self, console: StackConsole, label: str) -> None:
        self._console = console
        self._label = label
        self._shown = ExitStack()
        self._stage = ""
        self._lines_read = 0

    def __enter__(self) -> LoadingView:
        self._shown.enter_context(self._console.stage(self._label))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A stage that failed learns of it, and is not shown as done.
        self._shown.__exit__(kind, error, trace)

    def read(self, child: ChildProcess) -> None:
        lines = child.log_lines()
        if len(lines) < self._lines_read:  # it was started again
            self._lines_read = 0
        for line in lines[self._lines_read :]:
            if loading := read_loading(line):
                self.show(loading)
        self._lines_read = len(lines)

    def show(self, loading: LoadingStage) -> None:
        if loading.stage != self._stage:
            self._shown.close()
            label = loading.stage[:1].upper() + loading.stage[1:]
            self._bar = self._shown.enter_context(
                self._console.stage(label, total_steps=loading.total or None)
            )
            self._stage = loading.stage
        if loading.total:
            self._bar.advance_to(loading.done)
