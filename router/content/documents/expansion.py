"""Files in the messages of a chat, put into the messages as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from router.core.messages import FileReference, Message, Part

if TYPE_CHECKING:
    from router.content.documents.documents import Documents
    from router.core.tenant import Caller


async def expand(messages: list[Message], caller: Caller, documents: Documents) -> list[Message]:
    """The same list where there is no file in it."""
    files = sum(_files(message) for message in messages)
    if not files:
        return messages
    documents.check_count(files, "messages")
    return [await _expanded(message, index, caller, documents) for index, message in enumerate(messages)]


def _files(message: Message) -> int:
    return sum(part.type == "file" for part in message.content) if isinstance(message.content, list) else 0


async def _expanded(message: Message, index: int, caller: Caller, documents: Documents) -> Message:
    if not isinstance(message.content, list):
        return message
    parts = []
    for position, part in enumerate(message.content):
        if part.type == "file":
            where = f"messages[{index}].content[{position}].file"
            document = await documents.read(part.file or FileReference(), caller, where)
            part = Part("text", document.rendered())
        parts.append(part)
    return msgspec.structs.replace(message, content=parts)
