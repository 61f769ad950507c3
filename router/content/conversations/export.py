"""A whole conversation to take away: for programs, and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.content.conversations.conversation_store import Conversation
    from router.content.conversations.items import Item

_TITLE = "title"


def as_json(conversation: Conversation, items: Sequence[Item]) -> dict[str, Any]:
    shown = [item.shown for item in items]
    return {**conversation.rendered(), "object": "conversation.export", "items": shown}


def as_markdown(conversation: Conversation, items: Sequence[Item]) -> str:
    title = " ".join(conversation.metadata.get(_TITLE, conversation.id).split())
    return "\n\n".join([f"# {title}", *map(_section, items)]) + "\n"


def _section(item: Item) -> str:
    if item.makes is not None:
        return f"## assistant calls {item.shown['name']}\n\n{_fenced(item.shown['arguments'])}"
    if item.answers is not None:
        return f"## result\n\n{_fenced(item.text)}"
    return f"## {item.shown['role']}\n\n{item.text}"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
