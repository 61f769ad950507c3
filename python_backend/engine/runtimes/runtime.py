"""The interface of a runtime: what the engine process asks of whatever generates the answers.

The process's one thread calls it, in a loop: commands first (`add`, `cancel`, `configure`), then `step` while
there is work. Each runtime has a module or a folder here, with a `load_...` that takes the model's parameters
and returns it loaded; `choice` says which one a model gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from python_backend.engine.report import Gauges, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.wire.tiers import Tier


class Runtime(Protocol):
    """Every sequence of an added request ends exactly once, in the events of `step` or of `abort`."""

    def describe(self) -> Ready:
        """What the loaded model can hold."""

    @property
    def has_work(self) -> bool:
        """Whether anything is left to do or to tell; without work the process waits for the next command."""

    @property
    def can_step(self) -> bool:
        """False while all work waits for something that is prepared elsewhere, such as a guide."""

    @property
    def spare_s(self) -> float:
        """How long `step` may wait for further commands at no cost to those that run; 0 where it may not."""

    def add(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        """Takes a request; raises InflightError when it can never run."""

    def cancel(self, key: int) -> None:
        """Ends a request at the next step; an unknown key is not an error."""

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None,
    ) -> None:
        """Sets new limits and objectives; None leaves one as it is. Raises InflightError for invalid ones."""

    def drop_adapter(self, name: str) -> None:
        """Its memory may be given back as soon as nobody has it; an unknown name is not an error."""

    def step(self) -> list[SequenceEvent]:
        """Advances the work by one step, or waits a few milliseconds for results.

        Raises EngineBroken when no further step is possible.
        """

    def abort(self, reason: str) -> list[SequenceEvent]:
        """Ends every sequence with an error, after a step that raised."""

    def gauges(self) -> Gauges:
        """The runtime at this moment; asked for a few times a second."""
