"""Messages of a chat, with the files and tool calls in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from router.core.bounded_json import TooMuchJson, decode_text


class FileReference(msgspec.Struct, frozen=True):
    """One that was uploaded, by its id, or all of it as a base64 data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ImageReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that was uploaded, by its id; all of it, as a base64 data URL; or where it is to be fetched from.

    `detail` is without effect: how closely an image is looked at is up to the model.
    """

    url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


_IMAGES = ("image_url", "input_image", "image")


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a message's content: text, a file that becomes text, or an image."""

    type: str
    text: str | None = None
    file: FileReference | None = None
    image_url: ImageReference | str | None = None

    @property
    def image(self) -> ImageReference | None:
        if self.type not in _IMAGES:
            return None
        found = self.image_url or ImageReference()
        return ImageReference(found) if isinstance(found, str) else found


def image_part(url: str | None = None, file_id: str | None = None) -> Part:
    return Part("image_url", image_url=ImageReference(url, file_id))


Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    arguments: str


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    input: str


class MadeCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a function, or of a custom tool, which takes a text."""

    id: str
    function: CalledFunction | None = None
    type: Literal["function", "custom"] = "function"
    custom: CalledTool | None = None

    @property
    def name(self) -> str:
        called = self.custom or self.function
        return "" if called is None else called.name


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
    # What a model thought before it said this, for templates that show it again.
    reasoning_content: str | None = None
    reasoning: Any = None

    @property
    def images(self) -> list[ImageReference]:
        if not isinstance(self.content, list):
            return []
        return [image for part in self.content if (image := part.image) is not None]


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON, as the model wrote it; of a custom tool, the text that it takes."""

    id: str
    name: str
    arguments: str
    is_custom: bool = False

    @property
    def read_out(self) -> str:
        """All that somebody reads who takes it apart: what is escaped in JSON is written out too."""
        return " | ".join((self.name, self.arguments, *_strings(self.arguments)))

    @property
    def values(self) -> dict[str, Any]:
        """The arguments taken apart; where the model wrote no object, what it wrote is one of them."""
        try:
            values = decode_text(self.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError, TooMuchJson):
            values = self.arguments
        return values if isinstance(values, dict) else {"arguments": values}

    def rendered(self) -> dict[str, Any]:
        if self.is_custom:
            return {"id": self.id, "type": "custom", "custom": {"name": self.name, "input": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def _strings(encoded: str) -> list[str]:
    """Names and texts anywhere in JSON; none where it is not JSON."""
    found: list[str] = []
    try:
        open_parts: list[Any] = [decode_text(encoded)]
    except (msgspec.DecodeError, UnicodeError, RecursionError, TooMuchJson):
        return found
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            open_parts += [*part, *part.values()]
        elif isinstance(part, list):
            open_parts += part
    return found
