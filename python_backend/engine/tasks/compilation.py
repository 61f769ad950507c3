"""The step compiled by processes of its own, while whoever needs it does something else."""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import suppress
from typing import TYPE_CHECKING

from python_backend.engine.tasks.task import tell

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from python_backend.engine.models.decoder import DecoderShape

_PROCESSES = 2


class Compilation:
    """Begins at once, unless the step is kept; `wait` tells that it compiles where it still does.

    The parts of the step are shared out to processes. What fails is tried again later.
    """

    def __init__(self, shape: DecoderShape, serves_adapters: bool = False) -> None:
        from python_backend.engine.native.blank_model import load_kept

        self._processes: list[SpawnProcess] = []
        if load_kept(shape, int(serves_adapters)):
            return
        context = multiprocessing.get_context("spawn")
        self._news, tells = context.Pipe(duplex=False)
        for first in range(_PROCESSES):
            told = (shape, int(serves_adapters), first, tells)
            self._processes.append(context.Process(target=_compile, args=told, daemon=True))
            self._processes[-1].start()
        tells.close()

    def wait(self) -> None:
        if not self._processes:
            return
        with suppress(EOFError):
            self._news.recv()
            if any(each.is_alive() for each in self._processes):
                tell(stage="compiling")
        for process in self._processes:
            process.join()
        self._news.close()


def _compile(shape: DecoderShape, adapters: int, first: int, tells: Connection) -> None:
    gc.disable()  # nothing here lasts
    from python_backend.engine.native.blank_model import compile_for
    from python_backend.engine.native.model import PARTS

    def tell_once() -> None:
        if not tells.closed:
            tells.send("compiling")
            tells.close()

    compile_for(shape, adapters, tell_once, PARTS[first::_PROCESSES])
