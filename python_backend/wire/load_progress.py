"""How far a starting engine is, as a line of Triton's log: written by the model, read by the launcher."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"\bINFO loading: (?P<stage>.+): (?P<done>\d+) of (?P<total>\d+)$")


class LoadingStage(NamedTuple):
    """One stage in progress; a total of 0 says that it cannot be measured."""

    stage: str
    done: int
    total: int


def loading_text(stage: str, done: int, total: int) -> str:
    """To be logged as information."""
    return f"loading: {stage}: {done} of {total}"


def read_loading(line: str) -> LoadingStage | None:
    found = _LINE.search(line)
    return LoadingStage(found["stage"], int(found["done"]), int(found["total"])) if found else None
