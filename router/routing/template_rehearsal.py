"""`python -m router.routing.template_rehearsal DIRECTORY`: says what is wrong with its chat template.

A process of its own reads and renders what somebody else wrote, before a release of it is accepted: whatever
it does to this process, it does to nothing else. A template may refuse a chat, since not all know tools.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from python_backend.wire.errors import InflightError
from router.routing.chat_template import ChatTemplate, TemplateBroken, load_template
from router.routing.template_sandbox import TemplateOverrun

_MEMORY_BYTES = 4 << 30
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says what the weather is",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ASKED: dict[str, Any] = {"role": "user", "content": "What is the weather in Oslo?"}
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    ],
}
_CHATS: tuple[list[dict[str, Any]], ...] = (
    [_ASKED],
    [{"role": "system", "content": "Be brief."}, _ASKED],
    [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image"}]}],
    [_ASKED, _CALLED, {"role": "tool", "name": "weather", "tool_call_id": "a", "content": "rain"}],
    [{"role": role, "content": "words " * 100} for role in ("user", "assistant") * 20] + [_ASKED],
)


def rehearse(template: ChatTemplate) -> None:
    """Raises TemplateBroken."""
    for messages in _CHATS:
        for tools in (None, [_TOOL]):
            try:
                template.render(messages, tools)
            except InflightError as error:
                if isinstance(error.__cause__, (TemplateOverrun, RecursionError, MemoryError)):
                    why = error.__cause__ if str(error.__cause__) else type(error.__cause__).__name__
                    raise TemplateBroken(f"the chat template cannot be rendered: {why}") from error


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        template = load_template(Path(sys.argv[1]))
        if template is not None:
            rehearse(template)
    except (TemplateBroken, OSError, ValueError, MemoryError) as error:
        sys.exit(str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
