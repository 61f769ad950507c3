"""Which of Triton's processes keep the bytecode of what they import.

Triton takes a `__pycache__` inside a model repository for a broken model, so that its models' own files leave
none. What they import lies elsewhere, and compiling it anew takes half of a start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_NOT_WRITTEN = "PYTHONDONTWRITEBYTECODE"
_KEPT = "INFLIGHT_KEEP_BYTECODE"


def variables(base: Mapping[str, str]) -> dict[str, str]:
    """What a server's environment has beside `base`, whose owner may want no bytecode at all."""
    return {_NOT_WRITTEN: "1"} | ({} if base.get(_NOT_WRITTEN) else {_KEPT: "1"})


def keep() -> None:
    """From here on, and in processes that are started from here; unless the server was told otherwise."""
    if os.environ.pop(_KEPT, None):
        os.environ.pop(_NOT_WRITTEN, None)
        sys.dont_write_bytecode = False
