"""A team of threads that runs one compiled function together, meeting at barriers inside it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from python_backend.engine.native.arithmetic import OPTIONS

_log = logging.getLogger("inflight.engine")

# While others work, a waiting thread looks this often before it offers its core to the rest of the machine.
_LOOKS_BEFORE_YIELDING = 2000

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def take_number(context, counters, index):
    """counters[index] before it was raised by one, for one thread alone."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        data = target.make_array(counters)(target, builder, values[0]).data
        pointer = builder.gep(data, [values[1]])
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(counters, index), generate


@intrinsic
def look(context, counters, index):
    """counters[index] as the other threads left it."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        data = target.make_array(counters)(target, builder, values[0]).data
        return builder.load_atomic(builder.gep(data, [values[1]]), "acquire", 8)

    return types.int64(counters, index), generate


@njit(**OPTIONS)
def meet(counters, threads):
    """Returns when all threads of the team have come; counters[0] counts arrivals and is never set back."""
    if threads == 1:
        return
    mine = take_number(counters, 0)
    everyone = (mine // threads + 1) * threads
    looks = 0
    while look(counters, 0) < everyone:
        looks += 1
        if looks > _LOOKS_BEFORE_YIELDING:
            _sched_yield()


class Team:
    """`run` calls work(number, *arguments) on every thread at once; the last thing `work` does is to meet."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._queues: list[SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None]] = []
        for number in range(1, threads):
            queue: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
            self._queues.append(queue)
            threading.Thread(
                target=self._serve, args=(queue, number), name=f"kernels-{number}", daemon=True
            ).start()

    def run(self, work: Callable[..., Any], *arguments: Any) -> None:
        for queue in self._queues:
            queue.put((work, arguments))
        if self._queues:
            _work_or_die(work, 0, arguments)
        else:
            work(0, *arguments)

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)

    @staticmethod
    def _serve(queue: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None], number: int) -> None:
        while (task := queue.get()) is not None:
            work, arguments = task
            _work_or_die(work, number, arguments)


def _work_or_die(work: Callable[..., Any], number: int, arguments: tuple[Any, ...]) -> None:
    """The others wait in compiled code for whoever does not come: only the process's end frees them."""
    try:
        work(number, *arguments)
    except Exception:
        _log.exception("thread %d of the kernels failed; the process ends", number)
        os._exit(1)
