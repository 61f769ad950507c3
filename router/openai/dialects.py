"""How an answer is written: as a chat completion or as a plain one, whole or in chunks."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from router.http import sse
from router.openai.log_probs import chat_log_probs, completion_log_probs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.core.messages import ToolCall
    from router.openai.log_probs import Logged
    from router.request.choice import TokenLog

_NO_DETAILS = {
    "audio_tokens": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}
_encode = msgspec.json.Encoder().encode
FINGERPRINT = f"inflight-{version('inflight')}"


class Ended(Protocol):
    """A choice that has come to its end."""

    index: int
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    log: TokenLog | None
    reasoning_tokens: int

    @property
    def thoughts(self) -> str: ...
    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...


class Identified(Protocol):
    """A choice that knows the ids of its tokens."""

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...
    def take_token_ids(self) -> list[int]: ...


class TokenIds:
    """The ids of an answer's tokens, as vLLM tells them: each once, the prompt's before all others."""

    def __init__(self, choices: Callable[[], Sequence[Identified]]) -> None:
        self._choices = choices
        self._prompts_told: set[int] = set()

    def prompt(self, index: int) -> Sequence[int]:
        """Nothing where they were told, or are not known yet."""
        found = () if index in self._prompts_told else self._choices()[index].prompt_token_ids
        if found:
            self._prompts_told.add(index)
        return found

    def answer(self, index: int) -> list[int]:
        return self._choices()[index].take_token_ids()


class Dialect:
    """Everything but the text is rendered once per request, so that a chunk costs one JSON string."""

    whole_object = ""
    chunk_object = ""
    headers = sse.HEADERS
    silence = sse.COMMENT

    def __init__(
        self,
        request_id: str,
        model: str,
        created_s: float,
        *,
        include_usage: bool = False,
        service_tier: str | None = None,
    ) -> None:
        self._whole_head: dict[str, Any] = {
            "id": request_id,
            "object": self.whole_object,
            "created": int(created_s),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }
        if service_tier is not None:  # the one that was asked for
            self._whole_head["service_tier"] = "default" if service_tier == "auto" else service_tier
        self._include_usage = include_usage
        # Who is asked for the usage so far, where each chunk is to have it.
        self.running: Callable[[], Sequence[Ended]] | None = None
        # And who for the ids of tokens.
        self.token_ids: TokenIds | None = None
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def text_event(self, index: int, text: str) -> bytes:
        if self.running is not None or self.token_ids is not None:
            return self._chunk(self._text_choice(index, text))
        before, after = self._frames.get(index) or self._frame(index)
        encoded = _encode(text)
        return b"%b%b%b" % (before, encoded if encoded.isascii() else sse.one_line(encoded), after)

    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes:
        """As `text_event`, with the log probabilities of the tokens whose text has left."""
        return self._chunk(self._with_log(self._text_choice(index, text), log))

    def thought_event(self, index: int, text: str) -> bytes:
        return self._chunk(_choice(index, delta={"reasoning_content": text}))

    def call_event(self, index: int, number: int, call: ToolCall) -> bytes:
        """The choice's call of this number, whole."""
        return self._chunk(_choice(index, delta={"tool_calls": [{"index": number, **call.rendered()}]}))

    def opening(self, choices: int) -> bytes:
        """What comes before the first text."""
        return b""

    def closing(self, choices: Sequence[Ended]) -> bytes:
        """What comes after the last text: the reasons, the usage if asked for, and the end mark."""
        events = [self._chunk(self._with_log(self._end_choice(choice), choice.log)) for choice in choices]
        if self._include_usage:
            events.append(self._event(choices=[], usage=usage(choices)))
        return b"".join([*events, sse.DONE])

    def whole(self, choices: Sequence[Ended], texts: Sequence[str]) -> bytes:
        rendered = [
            self._with_log(self._whole_choice(choice, text), choice.log, is_whole=True)
            for choice, text in zip(choices, texts, strict=True)
        ]
        more = {} if self.token_ids is None else self._told_ids(rendered, self.token_ids)
        value = {**self._whole_head, "choices": rendered, "usage": usage(choices), **more}
        return msgspec.json.encode(value)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        more = {} if self.token_ids is None else self._told_ids([choice], self.token_ids)
        if self._include_usage:
            more["usage"] = None if self.running is None else usage(self.running())
        return self._event(choices=[choice], **more)

    def _told_ids(self, rendered: Sequence[dict[str, Any]], ids: TokenIds) -> dict[str, Any]:
        """Adds to each choice the ids of its tokens that are new; returns what the answer itself has."""
        for choice in rendered:
            choice["token_ids"] = ids.answer(choice["index"])
        return {}

    def _event(self, **more: Any) -> bytes:
        return sse.event({**self._whole_head, "object": self.chunk_object, **more})

    def _with_log(
        self, choice: dict[str, Any], log: TokenLog | None, is_whole: bool = False
    ) -> dict[str, Any]:
        tokens = [] if log is None else log.take()
        if tokens or (is_whole and log is not None):
            choice["logprobs"] = self._log_probs(tokens)
        return choice

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        mark = "\x00text\x00"
        before, _, after = self._chunk(self._text_choice(index, mark)).partition(msgspec.json.encode(mark))
        self._frames[index] = (before, after)
        return before, after

    def _text_choice(self, index: int, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _end_choice(self, choice: Ended) -> dict[str, Any]:
        raise NotImplementedError

    def _whole_choice(self, choice: Ended, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _log_probs(self, tokens: Logged) -> dict[str, Any]:
        raise NotImplementedError


class ChatDialect(Dialect):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choices: int) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(_choice(index, delta=delta)) for index in range(choices))

    def _text_choice(self, index: int, text: str) -> dict[str, Any]:
        return _choice(index, delta={"content": text})

    def _end_choice(self, choice: Ended) -> dict[str, Any]:
        return _choice(choice.index, choice.finish_reason, delta={})

    def _whole_choice(self, choice: Ended, text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.thoughts:
            message["reasoning_content"] = choice.thoughts
        if choice.tool_calls:
            message["content"] = text.strip() or None
            message["tool_calls"] = [call.rendered() for call in choice.tool_calls]
        return _choice(choice.index, choice.finish_reason, message=message)

    def _log_probs(self, tokens: Logged) -> dict[str, Any]:
        return chat_log_probs(tokens)

    def _told_ids(self, rendered: Sequence[dict[str, Any]], ids: TokenIds) -> dict[str, Any]:
        super()._told_ids(rendered, ids)
        prompt = ids.prompt(0)  # all of its choices have the same
        return {"prompt_token_ids": prompt} if prompt else {}


class CompletionDialect(Dialect):
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _text_choice(self, index: int, text: str) -> dict[str, Any]:
        return _choice(index, text=text)

    def _end_choice(self, choice: Ended) -> dict[str, Any]:
        return _choice(choice.index, choice.finish_reason, text="")

    def _whole_choice(self, choice: Ended, text: str) -> dict[str, Any]:
        return _choice(choice.index, choice.finish_reason, text=text)

    def _log_probs(self, tokens: Logged) -> dict[str, Any]:
        return completion_log_probs(tokens)

    def _told_ids(self, rendered: Sequence[dict[str, Any]], ids: TokenIds) -> dict[str, Any]:
        super()._told_ids(rendered, ids)
        for choice in rendered:
            if prompt := ids.prompt(choice["index"]):
                choice["prompt_token_ids"] = prompt
        return {}


def _choice(index: int, finish_reason: str | None = None, **content: Any) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}


def usage(choices: Sequence[Ended]) -> dict[str, Any]:
    prompt = completion = cached = reasoning = 0
    for choice in choices:
        reasoning += choice.reasoning_tokens
        prompt += choice.prompt_tokens
        completion += choice.completion_tokens
        cached += choice.cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, **_NO_DETAILS},
    }
