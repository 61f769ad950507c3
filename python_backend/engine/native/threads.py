"""A team of threads that runs one compiled function together, meeting at barriers inside it."""

from __future__ import annotations

import logging
import os
import platform
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from python_backend.engine.native.addresses import emit_call, flattened
from python_backend.engine.native.arithmetic import NOUGHT, ONE, OPTIONS, STEP_OPTIONS

_log = logging.getLogger("inflight.engine")

_MACHINE = platform.machine()
# A waiting thread looks this often, for tens of microseconds, before it sleeps. Where others use its core,
# one that keeps looking has had its time when its turn comes, and all wait for it in the next meeting. On x86
# it pauses between two looks: without that, as many would be over in a few microseconds.
_LOOKS_BEFORE_SLEEPING = 1_000 if _MACHINE == "x86_64" else 20_000
# The first counter of the barrier: threads that have come, ever. Behind it, as behind each that is waited
# for, are those that sleep until it changes.
_ARRIVALS = np.int64(0)
FIRST_FREE = np.int64(2)
# What a team shares: runs that were begun, ever; then where the work lies, and what it is told.
_RUNS, _WORK, _TOLD = np.int64(0), np.int64(2), np.int64(3)

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # elsewhere the call fails, and the thread keeps looking
_FUTEX = np.int64(_NUMBERS.get(_MACHINE, -1))
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


@intrinsic
def _pause(context):
    """Leaves the core to its other half for a moment, where the processor knows how."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        if _MACHINE == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return target.get_dummy_value()

    return types.void(), generate


@njit(**OPTIONS)
def _wait_for(counters, index, least):
    """Returns when the counter is at least so high."""
    for _ in range(_LOOKS_BEFORE_SLEEPING):
        if look(counters, index) >= least:
            return
        _pause()
    _add(counters, index + ONE, ONE)
    # It looks again after it counts as asleep, and sleeps only while the count is what it saw.
    while True:
        count = look(counters, index)
        if count >= least:
            break
        _syscall(_FUTEX, counters.ctypes.data + 8 * index, _WAIT, count & 0xFFFFFFFF, NOUGHT)
    _add(counters, index + ONE, -ONE)


@njit(**OPTIONS)
def _wake(counters, index):
    if look(counters, index + ONE):
        _syscall(_FUTEX, counters.ctypes.data + 8 * index, _WAKE, _EVERYBODY, NOUGHT)


@njit(**OPTIONS)
def meet(counters, threads):
    """Returns when all threads of the team have come; its counters, the first two, are never set back."""
    if threads == 1:
        return
    mine = take_number(counters, _ARRIVALS)
    everyone = (mine // threads + 1) * threads
    if mine + 1 == everyone:
        _wake(counters, _ARRIVALS)
    else:
        _wait_for(counters, _ARRIVALS, everyone)


@intrinsic
def _tell(context, work, told, team):
    """Leaves on this stack what the others are to call, and with what; they find it through the team."""

    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        each = [values[0], *flattened(target, builder, list(told), values[1])]
        left = cgutils.alloca_once(builder, ir.LiteralStructType([value.type for value in each]))
        for index, value in enumerate(each):
            builder.store(value, cgutils.gep_inbounds(builder, left, 0, index))
        follow = ir.Function(builder.module, _FOLLOW, builder.module.get_unique_name("follow"))
        follow.linkage = "internal"
        # There is nothing in it to optimise, and to find that out takes long.
        follow.attributes.add("optnone")
        follow.attributes.add("noinline")
        inside = ir.IRBuilder(follow.append_basic_block())
        found = inside.inttoptr(follow.args[1], left.type)
        address, *rest = (inside.load(cgutils.gep_inbounds(inside, found, 0, i)) for i in range(len(each)))
        emit_call(target, inside, address, [types.int64, *told], [follow.args[0], *rest])
        inside.ret_void()
        data = target.make_array(team)(target, builder, values[2]).data
        for place, told_there in ((_WORK, follow), (_TOLD, left)):
            address = builder.ptrtoint(told_there, ir.IntType(64))
            builder.store(address, cgutils.gep(builder, data, int(place)))
        return target.get_dummy_value()

    return types.void(work, told, team), generate


_FOLLOW = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2)


@intrinsic
def _call(context, work, number, told):
    def generate(target: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        builder.call(builder.inttoptr(values[0], _FOLLOW.as_pointer()), values[1:])
        return target.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@njit(**OPTIONS)
def _do_as_told(number, team):
    _call(team[_WORK], number, team[_TOLD])


@njit(cache=True, **STEP_OPTIONS)
def _begin(team):
    _add(team, _RUNS, ONE)
    _wake(team, _RUNS)


@njit(cache=True, **STEP_OPTIONS)
def lead(work, told, team):
    """work(number, *told) on every thread of the team, by its address; the last thing it does is to meet."""
    _tell(work, told, team)
    _begin(team)
    _do_as_told(NOUGHT, team)


@njit(cache=True, **STEP_OPTIONS)
def _follow(number, team):
    """Whatever the team is led to, until there is no work."""
    run = ONE
    while True:
        _wait_for(team, _RUNS, run)
        if team[_WORK] == 0:
            return
        _do_as_told(number, team)
        run += ONE


class Team:
    """Threads that wait for work in compiled code: to begin, none of them needs Python's lock."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._shared = np.zeros(4, np.int64)
        for number in range(1, threads):
            threading.Thread(
                target=_follow_or_die, args=(number, self._shared), name=f"kernels-{number}", daemon=True
            ).start()

    def run(self, work: int, told: tuple[Any, ...]) -> None:
        """What lies at an address, compiled for a number and what is told, on every thread at once."""
        lead(work, told, self._shared)

    def signature(self, told: tuple[Any, ...]) -> tuple[Any, ...]:
        """The types that `lead` is compiled for."""
        return types.int64, typeof(told), typeof(self._shared)

    def close(self) -> None:
        self._shared[_WORK] = 0
        _begin(self._shared)


def _follow_or_die(number: int, team: NDArray[np.int64]) -> None:
    """The others wait in compiled code for whoever does not come: only the process's end frees them."""
    try:
        _follow(number, team)
    except Exception:
        _log.exception("thread %d of the kernels failed; the process ends", number)
        os._exit(1)
