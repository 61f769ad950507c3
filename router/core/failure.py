"""How a request to Triton can fail: what that says of the replica it was sent to."""

from __future__ import annotations

from enum import Enum


class Failure(Enum):
    """What a request that failed says of its replica."""

    UNREACHABLE = "Triton cannot be reached"
    STUB_DEAD = "a process of the model died"
    NOT_LOADED = "the model is not loaded"
    ENGINE = "the engine failed"  # its answer to this request; another replica would say the same
    OVERLOADED = "too much to do"
    CALLER = "the request cannot be served"
    CUT = "given up"  # by us, because the replica is known to be down
