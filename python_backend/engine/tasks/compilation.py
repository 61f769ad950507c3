"""The step compiled by a process of its own, while whoever needs it does something else."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from typing import TYPE_CHECKING

from python_backend.engine.tasks.task import tell

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from python_backend.engine.models.decoder import DecoderShape


class Compilation:
    """Begins at once, unless the step is kept; `wait` tells that it compiles where it still does.

    What fails is tried again later.
    """

    def __init__(self, shape: DecoderShape, serves_adapters: bool = False) -> None:
        from python_backend.engine.native.blank_model import load_kept

        self._process: SpawnProcess | None = None
        if load_kept(shape, int(serves_adapters)):
            return
        context = multiprocessing.get_context("spawn")
        self._news, tells = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_compile, args=(shape, int(serves_adapters), tells), daemon=True
        )
        self._process.start()
        tells.close()

    def wait(self) -> None:
        if self._process is None:
            return
        with suppress(EOFError):
            self._news.recv()
            if self._process.is_alive():
                tell(stage="compiling")
        self._process.join()
        self._news.close()


def _compile(shape: DecoderShape, adapters: int, tells: Connection) -> None:
    from python_backend.engine.native.blank_model import compile_for

    def tell_once() -> None:
        if not tells.closed:
            tells.send("compiling")
            tells.close()

    compile_for(shape, adapters, tell_once)
