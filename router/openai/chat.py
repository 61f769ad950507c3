"""POST /v1/chat/completions: the messages as the model's template knows them, and the calls they make."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.documents import expand
from router.core.answer_reader import CUSTOM_INPUT, THINK, THINK_END
from router.core.call_formats import written_call
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.openai.bodies import ChatBody, decode_chat
from router.openai.calls import generation_call, several
from router.openai.dialects import ChatDialect
from router.openai.guides import chat_demand
from router.openai.tools import described, introduction, offered, reader_for
from router.request.aside import LARGE_BYTES
from router.request.decoding import MOST_CONTAINERS, check_containers, invalid
from router.request.fair_pool import unless_left
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.content.documents.documents import Documents
    from router.core.answer_reader import AnswerReader
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
_more = attrgetter("name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_NOTHING = (None,) * 5
_how_rendered = attrgetter(
    "reasoning_effort", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"
)
_AS_USUAL = (None,) * 4
_demands = attrgetter(
    "response_format",
    "tool_choice",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_NOTHING_DEMANDED = (None,) * 7


class ChatCompletions:
    def __init__(self, models: Registry, answers: Answers, documents: Documents) -> None:
        self._models = models
        self._answers = answers
        self._documents = documents

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside = exchange.request.body, self._answers.aside
        is_large = len(raw) > LARGE_BYTES
        body = await aside.run(record.tenant, decode_chat, raw) if is_large else decode_chat(raw)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        for each in body.messages:
            if isinstance(each.content, list):  # only there can be files
                await self._answers.permits.foresee(record, model.name, 1)
                reading = expand(body.messages, record.caller, self._documents)
                messages = await unless_left(reading, exchange.on_disconnect)
                body = msgspec.structs.replace(body, messages=messages)
                break
        if is_large:
            calls = await aside.run(record.tenant, _calls, body, record, model, model.template)
        else:
            calls = _calls(body, record, model, model.template)
        options = body.stream_options
        dialect = ChatDialect(
            record.request_id,
            model.name,
            include_usage=options is not None and bool(options.include_usage),
            service_tier=body.service_tier,
        )
        reader = chat_reader(body, calls[0], model.template)
        job = TextJob(exchange, record, model, calls, dialect, bool(body.stream), reader)
        if options is not None and options.continuous_usage_stats:
            dialect.running = job.choices
        await self._answers.answer(job, record, exchange.on_disconnect)


def _calls(
    body: ChatBody, record: Record, model: ServedModel, template: ChatTemplate
) -> list[GenerationCall]:
    prompt = chat_prompt(body, template)
    return chat_calls(
        body, prompt, record.request_id, record.caller.organisation.id, model.defaults, template
    )


def chat_prompt(body: ChatBody, template: ChatTemplate) -> str:
    """The prompt, marks and all."""
    knows_tools = template.knows_tools
    tools = described(offered(body)) if knows_tools and body.tools else None
    messages = chat_messages(body, knows_tools)
    if _how_rendered(body) == _AS_USUAL:
        return template.render(messages, tools)
    return template.render(messages, tools, **rendering(body, template))


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


def chat_calls(
    body: ChatBody,
    prompt: str,
    request_id: str,
    tenant: str,
    defaults: SamplingDefaults,
    template: ChatTemplate | None = None,
) -> list[GenerationCall]:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("give either max_tokens or max_completion_tokens, not both", "max_tokens")
    max_tokens = body.max_completion_tokens or body.max_tokens or MAX_NEW_TOKENS
    demand = chat_demand(body) if _demands(body) != _NOTHING_DEMANDED else None
    if demand is not None and ends_in_thought(prompt):
        prompt += f"\n{THINK_END}\n\n"  # what must follow a rule is said, not thought
    text, marked = unmarked(prompt) if LITERAL_MARK in prompt else (prompt, None)
    shows_special = body.skip_special_tokens is False or (
        bool(body.tools) and template is not None and template.call_format.is_special
    )
    call = generation_call(
        body,
        text,
        request_id,
        tenant,
        max_tokens,
        defaults,
        marked_prompt=marked,
        add_special_tokens=False,  # the template has written them already
        guide=None if demand is None else (demand.kind, demand.text),
        guide_field=None if demand is None else demand.field,
        shows_special_tokens=shows_special or None,
        top_log_probs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return [call] if body.n is None else several(call, body.n)


def ends_in_thought(prompt: str) -> bool:
    return prompt[-64:].rstrip().endswith(THINK)


def chat_reader(
    body: ChatBody, call: GenerationCall, template: ChatTemplate
) -> Callable[[], AnswerReader] | None:
    """What reads thoughts and calls out of the answers; None where there can be neither."""
    thinks: bool | None = None
    if template.thinks and call.guide is None:
        thinks = ends_in_thought(call.prompt)
    return None if thinks is None and not body.tools else reader_for(body, template.call_format, thinks)


def routes(models: Registry, answers: Answers, documents: Documents) -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            ChatCompletions(models, answers, documents),
            "Answer a conversation",
            ChatBody,
            "ChatCompletion",
            streams=True,
            asks_model=True,
            request_id_prefix="chatcmpl",
        )
    ]
