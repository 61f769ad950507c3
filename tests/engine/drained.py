"""Stepping an engine until nothing is left in it."""

from __future__ import annotations

from python_backend.engine.engine import Engine
from python_backend.engine.report import FinishReason, SequenceEvent


def events_of(engine: Engine, max_steps: int = 1000) -> list[SequenceEvent]:
    """Everything the engine says until it is empty; a sequence that ends twice is an error."""
    events: list[SequenceEvent] = []
    ended: set[tuple[int, int]] = set()
    steps = 0
    while steps < max_steps:
        steps += engine.can_step  # others only wait for what is prepared elsewhere
        if not engine.has_work:
            return events
        for event in engine.step():
            name = (event.key, event.sequence_index)
            assert name not in ended, "a sequence spoke after its end"
            assert event.perf is not None or not event.is_last
            if event.is_last:
                ended.add(name)
            events.append(event)
    raise AssertionError("the engine did not come to an end")


def answers_of(engine: Engine) -> dict[tuple[int, int], tuple[list[int], FinishReason | None]]:
    """Each sequence's ids and how it ended, by key and index."""
    answers: dict[tuple[int, int], tuple[list[int], FinishReason | None]] = {}
    for event in events_of(engine):
        name = (event.key, event.sequence_index)
        ids, _ = answers.get(name, ([], None))
        answers[name] = (ids + event.token_ids, event.finish_reason)
    return answers


def drain(engine: Engine) -> dict[int, tuple[list[int], FinishReason | None]]:
    """The same, for requests of one sequence each."""
    return {key: answer for (key, _), answer in answers_of(engine).items()}
