"""POST /v1/chat/completions: the messages as the model's template knows them, and the calls they make."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.documents import expand
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.openai.bodies import ChatBody, decode_chat, generation_call, several
from router.openai.dialects import ChatDialect
from router.openai.held_exchange import HeldExchange
from router.openai.stored_chats import ChatKeeper, StoredDialect
from router.openai.tools import described, forced_schema, introduction, offered, reader_for, written_call
from router.request.aside import LARGE_BYTES
from router.request.decoding import MOST_CONTAINERS, check_containers, invalid
from router.request.fair_pool import unless_left
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.content.documents.documents import Documents
    from router.core.messages import MadeCall, Message
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.routing.chat_template import ChatTemplate
    from router.routing.checkpoint import SamplingDefaults
    from router.routing.models import Registry, ServedModel

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
_more = attrgetter("name", "tool_calls", "tool_call_id")
_NOTHING = (None, None, None)


class ChatCompletions:
    def __init__(self, models: Registry, answers: Answers, documents: Documents, keeper: ChatKeeper) -> None:
        self._models = models
        self._answers = answers
        self._documents = documents
        self._keeper = keeper

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        is_large = len(raw) > LARGE_BYTES
        body = await aside.run(record.tenant, decode_chat, raw) if is_large else decode_chat(raw)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        if body.store:
            self._keeper.check(exchange, record)
        for each in body.messages:
            if isinstance(each.content, list):  # only there can be files
                await self._answers.permits.foresee(record, model.name, 1)
                reading = expand(body.messages, record.caller, self._documents)
                messages = await unless_left(reading, exchange.on_disconnect)
                is_large = is_large or messages is not body.messages  # a few bytes may name long files
                body = msgspec.structs.replace(body, messages=messages)
                break
        if is_large:
            calls = await aside.run(record.tenant, _calls, body, record, model, model.template)
        else:
            calls = _calls(body, record, model, model.template)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = (StoredDialect if body.store else ChatDialect)(
            record.request_id, model.name, include_usage=include_usage, service_tier=body.service_tier
        )
        reader = reader_for(body) if body.tools else None
        answered = HeldExchange(exchange) if body.store else exchange
        job = TextJob(answered, record, model, calls, dialect, bool(body.stream), reader)
        await self._answers.answer(job, record, exchange.on_disconnect)
        if isinstance(dialect, StoredDialect) and isinstance(answered, HeldExchange):
            await self._keeper.keep(exchange, answered, record, body, dialect)


def _calls(
    body: ChatBody, record: Record, model: ServedModel, template: ChatTemplate
) -> list[GenerationCall]:
    knows_tools = template.knows_tools
    tools = described(offered(body)) if knows_tools and body.tools else None
    prompt = template.render(chat_messages(body, knows_tools), tools)
    return chat_calls(body, prompt, record.request_id, record.caller.organisation.id, model.defaults)


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
    made = []
    for number, call in enumerate(calls):
        place = f"{where}.tool_calls[{number}].function.arguments"
        try:
            if len(call.function.arguments) > MOST_CONTAINERS:
                check_containers(call.function.arguments.encode())
            arguments = msgspec.json.decode(call.function.arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            raise invalid(f"{place}: expected JSON", place) from None
        made.append((call, arguments))
    if not knows_tools:
        texts = [written_call(call.function.name, arguments) for call, arguments in made]
        return {**rendered, "content": "\n".join(filter(None, [rendered["content"], *texts]))}
    # Templates iterate over arguments, so that they come as an object.
    return {
        **rendered,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": arguments},
            }
            for call, arguments in made
        ],
    }


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


def chat_calls(
    body: ChatBody, prompt: str, request_id: str, tenant: str, defaults: SamplingDefaults
) -> list[GenerationCall]:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("give either max_tokens or max_completion_tokens, not both", "max_tokens")
    max_tokens = body.max_completion_tokens or body.max_tokens or MAX_NEW_TOKENS
    text, marked = unmarked(prompt) if LITERAL_MARK in prompt else (prompt, None)
    call = generation_call(
        body,
        text,
        request_id,
        tenant,
        max_tokens,
        defaults,
        marked_prompt=marked,
        add_special_tokens=False,  # the template has written them already
        guide=None if body.response_format is None and body.tool_choice is None else _guide(body),
        top_log_probs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return [call] if body.n is None else several(call, body.n)


def _guide(body: ChatBody) -> tuple[str, str] | None:
    asked, forced = body.response_format, forced_schema(body)
    if forced is not None:
        return ("json_schema", msgspec.json.encode(forced).decode())
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is None:
        return ("json", "")
    return ("json_schema", msgspec.json.encode(asked.json_schema.schema).decode())


def routes(models: Registry, answers: Answers, documents: Documents, keeper: ChatKeeper) -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            ChatCompletions(models, answers, documents, keeper),
            "Answer a conversation",
            ChatBody,
            "ChatCompletion",
            streams=True,
            asks_model=True,
            request_id_prefix="chatcmpl",
        )
    ]
