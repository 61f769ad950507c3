"""A team of threads that runs one compiled function together, meeting at barriers inside it."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from python_backend.engine.native.arithmetic import NOUGHT, ONE, OPTIONS

_log = logging.getLogger("inflight.engine")

# A waiting thread looks this often, for tens of microseconds, before it sleeps. Where others use its core,
# one that keeps looking has had its time when its turn comes, and all wait for it in the next meeting.
_LOOKS_BEFORE_SLEEPING = 20_000
# The counters of the barrier: threads that have come, ever, and those of them that sleep.
_ARRIVALS, _SLEEPERS = np.int64(0), np.int64(1)
FIRST_FREE = np.int64(2)

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # elsewhere the call fails, and the thread keeps looking
_FUTEX = np.int64(_NUMBERS.get(platform.machine(), -1))
_WAIT, _WAKE, _EVERYBODY = np.int64(128), np.int64(129), np.int64(2**31 - 1)  # threads of this process
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 5))


@intrinsic
def _add(context, counters, index, number):
    """counters[index] before the number was added, for one thread alone."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        data = target.make_array(counters)(target, builder, values[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [values[1]]), values[2], "seq_cst")

    return types.int64(counters, index, types.int64), generate


@njit(**OPTIONS)
def take_number(counters, index):
    return _add(counters, index, ONE)


@intrinsic
def look(context, counters, index):
    """counters[index] as the other threads left it."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        data = target.make_array(counters)(target, builder, values[0]).data
        return builder.load_atomic(builder.gep(data, [values[1]]), "seq_cst", 8)

    return types.int64(counters, index), generate


@njit(**OPTIONS)
def meet(counters, threads):
    """Returns when all threads of the team have come; its counters, the first two, are never set back."""
    if threads == 1:
        return
    mine = take_number(counters, _ARRIVALS)
    everyone = (mine // threads + 1) * threads
    if mine + 1 == everyone:
        if look(counters, _SLEEPERS):
            _syscall(_FUTEX, counters.ctypes.data, _WAKE, _EVERYBODY, NOUGHT)
        return
    for _ in range(_LOOKS_BEFORE_SLEEPING):
        if look(counters, _ARRIVALS) >= everyone:
            return
    _add(counters, _SLEEPERS, ONE)
    # It looks again after it counts as asleep, and sleeps only while the count is what it saw.
    while True:
        arrivals = look(counters, _ARRIVALS)
        if arrivals >= everyone:
            break
        _syscall(_FUTEX, counters.ctypes.data, _WAIT, arrivals & 0xFFFFFFFF, NOUGHT)
    _add(counters, _SLEEPERS, -ONE)


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
