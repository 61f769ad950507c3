"""Messages of a chat, with the files and calls in them, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class FileReference(msgspec.Struct, frozen=True):
    """One that was uploaded, by its id, or all of it as a base64 data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content; only text is understood, and files that become text."""

    type: str
    text: str | None = None
    file: FileReference | None = None


Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    arguments: str


class MadeCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
