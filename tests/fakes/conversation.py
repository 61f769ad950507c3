"""What a package tells, by hand: a test says it, and sees what was asked and what was aborted."""

from __future__ import annotations

from typing import Any

from python_backend.engine.runtimes.hosted.conversation import Conversation, Told
from python_backend.engine.runtimes.hosted.host import Asked
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import News


class RequestError(RuntimeError):
    """As the real package has it."""


class Named:
    """Any of the package's values: it keeps what it was made of."""

    def __init__(self, *parts: Any, **arguments: Any) -> None:
        self.parts = parts
        self.arguments = arguments


class KvCacheRetentionConfig(Named):
    TokenRangeRetentionConfig = Named


class LlmApi:
    RequestError = RequestError
    SamplingParams = Named
    GuidedDecodingParams = Named
    KvCacheRetentionConfig = KvCacheRetentionConfig


class HandConversation(Conversation):
    """Nothing runs behind it."""

    def __init__(self) -> None:
        self.iterations = Iterations()
        self.asked: list[Asked] = []
        self.aborted: list[Asked] = []
        self.dropped_adapters: list[str] = []
        self._pending: list[Told] = []

    def ask(self, arguments: dict[str, Any]) -> Asked:
        self.asked.append(Asked(arguments))
        return self.asked[-1]

    def abort(self, asked: Asked) -> None:
        self.aborted.append(asked)

    def drop_adapter(self, name: str) -> None:
        self.dropped_adapters.append(name)

    def hear(self, patience_s: float) -> list[Told]:
        told, self._pending = self._pending, []
        return told

    def say(self, number: int, *token_ids: int, ends: str | None = None, **more: Any) -> None:
        """Of the sequence that was asked for as the `number`th."""
        news = News(list(token_ids), finish_reason=ends, is_last=ends is not None, **more)
        self._pending.append(Told(self.asked[number], news))

    def fail(self, number: int, error: Exception) -> None:
        self._pending.append(Told(self.asked[number], News(is_last=True), error))
