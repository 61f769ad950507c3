"""The step compiled before there are weights for it, by a model that has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba.core import event
from numba.core.dispatcher import Dispatcher

from python_backend.engine.models.decoder import DecoderShape
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.model import PARTS, NativeModel
from python_backend.engine.native.weights import blank_arrays


class _Begun(event.Listener):
    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_start(self, event: Any) -> None:
        self._tell()

    def on_end(self, event: Any) -> None: ...


class _NotKept(Exception):
    pass


def compile_for(
    shape: DecoderShape, adapters: int, tell: Callable[[], None], parts: Sequence[Dispatcher] = PARTS
) -> None:
    """`tell` is called whenever something is compiled indeed, and not found as it was kept."""
    model = NativeModel(shape, blank_arrays(), Format.FP32, 1, 1, 1, 1, adapters, adapters)
    with event.install_listener("numba:compile", _Begun(tell)):
        model.compile(parts)


def load_kept(shape: DecoderShape, adapters: int) -> bool:
    """Whether the step was compiled before; then it is loaded now."""

    def give_up() -> None:
        raise _NotKept

    try:
        compile_for(shape, adapters, give_up)
    except _NotKept:
        return False
    return True
