"""How slow this machine is at the moment, so that limits of time in tests hold for any machine.

A limit says how long something takes at most on an idle machine. `patience` turns it into what a test waits
here: longer in proportion where a fixed piece of work takes longer, because processors are slow or other
programs want them.
"""

from __future__ import annotations

import hashlib
import time
from functools import cache

# What `_work` takes on one core of the slowest machine that needs no patience.
_REFERENCE_S = 0.01
_LOOKS = 9


def _work() -> None:
    """Compute in the interpreter and outside of it, as tests do."""
    total = 0
    for each in range(60_000):
        total += each * each % 7
    hashlib.pbkdf2_hmac("sha256", b"pace", b"salt", 4_000)


def _measured() -> float:
    """Return how many times longer fixed work takes now than it should, 1 at least."""
    took_s = []
    for _ in range(_LOOKS):
        began_s = time.perf_counter()
        _work()
        took_s.append(time.perf_counter() - began_s)
        time.sleep(0.002)  # so that whoever else wants the processor is seen
    return max(1.0, sorted(took_s)[-2] / _REFERENCE_S)


@cache
def slowdown() -> float:
    """Return how many times longer fixed work takes than it should, 1 at least; measured once a process."""
    return _measured()


def patience(limit_s: float) -> float:
    """Return for how many seconds to wait for what takes `limit_s` at most on an idle machine."""
    return limit_s * slowdown()


def is_over(began_s: float, limit_s: float) -> bool:
    """Return whether more than `patience` has passed since `began_s` of `time.monotonic`.

    The pace is measured anew before the answer is yes: others may have begun to work since the process did.
    """
    passed_s = time.monotonic() - began_s
    return passed_s > patience(limit_s) and passed_s > limit_s * _measured()
