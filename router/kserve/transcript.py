"""What was asked and answered in texts, for the operator's prompt log where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.core.record import Record
    from router.kserve.answers import Answer
    from router.kserve.offers import Asked
    from router.telemetry.prompt_log import PromptLog


class Transcript:
    """Hears what leaves, by row and sequence; does nothing without a log."""

    def __init__(self, log: PromptLog | None, record: Record, asked: Asked) -> None:
        prompts = asked.values.get("text_input")
        self._log = None if prompts is None else log
        self._record = record
        self._prompts = [] if prompts is None else prompts.elements
        self._heard: dict[tuple[int, int], list[str]] = {}

    def hear(self, answer: Answer) -> None:
        if self._log is not None:
            pieces = self._heard.setdefault((answer.row, answer.sequence), [])
            for output in answer.outputs:
                if output.name == "text_output":
                    pieces += output.elements()

    def write(self) -> None:
        if self._log is not None:
            answers = ["".join(self._heard[place]) for place in sorted(self._heard)]
            self._log.write(self._record, [prompt.decode() for prompt in self._prompts], answers)
