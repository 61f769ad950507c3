"""The ports of a package that schedules and computes by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import News
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import InflightError


class Unreadable(Exception):
    """What it told of one sequence is not as it was published."""


@dataclass(slots=True)
class Asked:
    """One sequence that the package computes; `handle` is what it gave for it."""

    arguments: dict[str, Any]
    handle: Any = None
    is_aborted: bool = False


class Host(Protocol):
    """The package, as the event loop of a `Conversation` speaks with it."""

    title: str

    def follow(self, asked: Asked) -> AsyncIterator[News]:
        """Begins and tells what comes, up to the end or an error."""

    async def abort(self, asked: Asked) -> None:
        """Hastens the end of one that has begun."""

    async def listen(self, iterations: Iterations, period_s: float) -> None:
        """Notes what the package tells of its iterations, until it is cancelled."""

    async def drop_adapter(self, name: str) -> None:
        """Gives its memory back; none of those that run has it. An unknown name is not an error."""

    async def failure(self) -> str | None:
        """Why it cannot go on, if it says so when it is asked."""


class Translator(Protocol):
    """Requests of the contract in the package's own words."""

    title: str

    def refuse(self, request: GenerationRequest) -> None:
        """Raises InflightError that names what the package does not do."""

    def arguments(self, sequence: Sequence) -> dict[str, Any]:
        """What the package is asked with."""

    def failure_of(self, error: Exception) -> InflightError | None:
        """What the sequence ends with; None where the package itself broke."""
