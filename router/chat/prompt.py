"""The prompt of a chat: its messages as the model's template knows them, and how the template is rendered."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.tools import described, introduction, offered
from router.core.answer_reader import CUSTOM_INPUT
from router.core.call_formats import written_call
from router.request.decoding import MOST_CONTAINERS, check_containers, invalid

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody
    from router.core.messages import MadeCall, Message
    from router.routing.chat_template import ChatTemplate

_IMAGES = ("image_url", "input_image", "image")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# As most messages are: a text, and none of these.
_PLAIN_ROLES = frozenset(_ROLES) - {"tool"}
_more = attrgetter("name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_NOTHING = (None,) * 5

_how_rendered = attrgetter(
    "reasoning_effort", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"
)
_AS_USUAL = (None,) * 4


def chat_prompt(body: ChatBody, template: ChatTemplate) -> str:
    """The prompt, marks and all."""
    knows_tools = template.knows_tools
    tools = described(offered(body)) if knows_tools and body.tools else None
    messages = chat_messages(body, knows_tools)
    if template.speaks_harmony:
        messages = [_in_channels(message) for message in messages]
    if _how_rendered(body) == _AS_USUAL:
        return template.render(messages, tools)
    return template.render(messages, tools, **rendering(body, template))


def _in_channels(message: dict[str, Any]) -> dict[str, Any]:
    """Thoughts under the name that harmony's template has for them; with a call it takes one text alone."""
    if "reasoning_content" not in message:
        return message
    message = dict(message)
    thought = message.pop("reasoning_content")
    if "tool_calls" in message:
        thought, message["content"] = "\n\n".join(filter(None, [thought, message["content"]])), ""
    return {**message, "thinking": thought}


def rendering(body: ChatBody, template: ChatTemplate) -> dict[str, Any]:
    """What a body says of how the template is to be rendered."""
    if body.continue_final_message:
        if body.add_generation_prompt:
            text = "continue_final_message: goes without add_generation_prompt, which begins a new message"
            raise invalid(text, "continue_final_message")
        if body.messages[-1].role != "assistant":
            text = "continue_final_message: the last message is not the assistant's"
            raise invalid(text, "continue_final_message")
    variables, effort = dict(body.chat_template_kwargs or {}), body.reasoning_effort
    if effort is not None and template.knows("reasoning_effort"):
        variables.setdefault("reasoning_effort", effort)
    if effort is not None and template.knows("enable_thinking"):
        variables.setdefault("enable_thinking", effort != "none")
    return {
        "variables": variables,
        "begins_answer": body.add_generation_prompt is not False and not body.continue_final_message,
        "continues": bool(body.continue_final_message),
    }


def chat_messages(body: ChatBody, knows_tools: bool = True) -> list[dict[str, Any]]:
    """The messages as chat templates know them: a role they were written for, content as one string.

    For a template that does not know tools, those there are, calls and their results become text.
    """
    rendered = []
    for index, message in enumerate(body.messages):
        if message.role in _PLAIN_ROLES and isinstance(message.content, str) and _more(message) == _NOTHING:
            rendered.append({"role": _ROLES[message.role], "content": message.content})
        else:
            rendered.append(_message(message, index, knows_tools))
    if not knows_tools and body.tools and (tools := offered(body)):
        text = introduction(tools)
        if rendered[0]["role"] == "system":
            rendered[0]["content"] = f"{rendered[0]['content']}\n\n{text}"
        else:
            rendered.insert(0, {"role": "system", "content": text})
    return rendered


def _message(message: Message, index: int, knows_tools: bool) -> dict[str, Any]:
    where = f"messages[{index}]"
    role = _ROLES.get(message.role)
    if role is None:
        allowed = ", ".join(_ROLES)
        raise invalid(f"{where}.role: expected one of {allowed}", f"{where}.role")
    if message.tool_calls and role != "assistant":
        raise invalid(f"{where}.tool_calls: only an assistant makes calls", f"{where}.tool_calls")
    if (role == "tool") != (message.tool_call_id is not None):
        raise invalid(
            f"{where}.tool_call_id: goes with the role tool, and with no other", f"{where}.tool_call_id"
        )
    has_calls = bool(message.tool_calls)
    content = "" if message.content is None and has_calls else _content(message, index)
    rendered: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    thought = message.reasoning_content or message.reasoning
    if isinstance(thought, str) and role == "assistant":
        rendered["reasoning_content"] = thought
    if role == "tool":
        return _result(rendered, message.tool_call_id, knows_tools)
    return _with_calls(rendered, message.tool_calls, where, knows_tools) if message.tool_calls else rendered


def _result(rendered: dict[str, Any], call_id: str | None, knows_tools: bool) -> dict[str, Any]:
    if knows_tools:
        return {**rendered, "tool_call_id": call_id}
    return {"role": "user", "content": f"<tool_response>\n{rendered['content']}\n</tool_response>"}


def _with_calls(
    rendered: dict[str, Any], calls: Sequence[MadeCall], where: str, knows_tools: bool
) -> dict[str, Any]:
    made = [_made(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    if not knows_tools:
        texts = [written_call(name, arguments) for _, name, arguments in made]
        return {**rendered, "content": "\n".join(filter(None, [rendered["content"], *texts]))}
    # Templates iterate over arguments, so that they come as an object.
    return {
        **rendered,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in made
        ],
    }


def _made(call: MadeCall, where: str) -> tuple[str, str, Any]:
    """Id, name and arguments, as of a function."""
    if call.type == "custom" and call.custom is not None:
        return call.id, call.custom.name, {CUSTOM_INPUT: call.custom.input}
    if call.function is None or call.type != "function":
        raise invalid(f"Missing required parameter: {where}.{call.type}", f"{where}.{call.type}")
    place, arguments = f"{where}.function.arguments", call.function.arguments
    try:
        if len(arguments) > MOST_CONTAINERS:
            check_containers(arguments.encode())
        return call.id, call.function.name, msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise invalid(f"{place}: expected JSON", place) from None


def _content(message: Message, index: int) -> str:
    where = f"messages[{index}].content"
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise invalid(f"{where}: expected a string or a list of text parts", where)
    texts = []
    for position, part in enumerate(message.content):
        if part.type in _IMAGES:
            message_text = f"{where}[{position}]: no vision model is loaded: this one reads text, not images"
            raise InflightError(ErrorKind.UNSUPPORTED, message_text, f"{where}[{position}].type")
        if part.type != "text":
            kind = part.type if part.type.isidentifier() and len(part.type) < 32 else "other"
            message_text = f"{where}[{position}]: this model reads text only, not {kind} parts"
            raise InflightError(ErrorKind.UNSUPPORTED, message_text, f"{where}[{position}].type")
        if part.text is None:
            raise invalid(f"{where}[{position}].text: expected a string", f"{where}[{position}].text")
        texts.append(part.text)
    return "\n".join(texts)
