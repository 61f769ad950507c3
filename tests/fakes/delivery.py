"""Stands in for the way back to one of Triton's clients."""

from __future__ import annotations

from router.kserve.answers import Answer


class FakeDelivery:
    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.errors: list[Exception] = []

    async def take(self, answer: Answer) -> None:
        self.answers.append(answer)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
