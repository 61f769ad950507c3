"""Turns checked bodies into calls to the engine."""

from __future__ import annotations

import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.openai.tools import forced_schema, introduction, offered, written_call
from router.request.decoding import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.messages import MadeCall, Message
    from router.openai.bodies import ChatBody, CompletionBody, Options
    from router.routing.checkpoint import SamplingDefaults

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_PROMPTS = 64
# OpenAI's tiers that are not the engine's default.
_TIERS: dict[str | None, str] = {"flex": "batch", "priority": "interactive"}
_IMAGES = ("image_url", "input_image", "image")
_LARGEST_ID = 2**31 - 1
# Below this, logits divided by the temperature leave the range of 32-bit floats.
_GREEDY_BELOW = 1e-4
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
    call = _call(
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
    return [call] if body.n is None else _choices(call, body.n)


def completion_calls(
    body: CompletionBody, request_id: str, tenant: str, defaults: SamplingDefaults
) -> list[GenerationCall]:
    prompts = _prompts(body.prompt)
    max_tokens = body.max_tokens or COMPLETION_TOKENS
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    if len(prompts) * (body.n or 1) > MAX_PROMPTS:
        raise invalid(f"n: at most {MAX_PROMPTS} answers to all prompts together", "n")

    def call_of(prompt: str | tuple[int, ...], call_id: str) -> GenerationCall:
        text, prompt_ids = (prompt, None) if isinstance(prompt, str) else ("", prompt)
        return _call(
            body,
            text,
            call_id,
            tenant,
            max_tokens,
            defaults,
            prompt_ids=prompt_ids,
            echo=bool(body.echo),
            top_log_probs=body.logprobs,
        )

    return [
        choice
        for prompt, each in zip(prompts, ids, strict=True)
        for choice in _choices(call_of(prompt, each), body.n)
    ]


def _choices(call: GenerationCall, count: int | None) -> list[GenerationCall]:
    """As many answers to one prompt; the first is the one that would come alone."""
    others = (
        msgspec.structs.replace(
            call,
            request_id=f"{call.request_id}.{index}",
            seed=(call.seed + index) % 2**64,
            shares_prompt=True,
        )
        for index in range(1, count or 1)
    )
    return [call, *others]


def _guide(body: ChatBody) -> tuple[str, str] | None:
    asked, forced = body.response_format, forced_schema(body)
    if forced is not None:
        return ("json_schema", msgspec.json.encode(forced).decode())
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is None:
        return ("json", "")
    return ("json_schema", msgspec.json.encode(asked.json_schema.schema).decode())


def _prompts(prompt: str | list[Any]) -> Sequence[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(type(each) is int for each in prompt):
        return [_ids(prompt, "prompt")]
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise invalid(f"prompt: expected 1 to {MAX_PROMPTS} prompts", "prompt")
    if all(isinstance(each, str) for each in prompt):
        return prompt
    if all(isinstance(each, list) for each in prompt):
        return [_ids(each, f"prompt[{index}]") for index, each in enumerate(prompt)]
    raise invalid("prompt: expected a string, a list of strings, token ids or a list of such", "prompt")


def _ids(prompt: list[Any], where: str) -> tuple[int, ...]:
    """The engine knows how many tokens there are, and refuses others."""
    if not prompt or not all(type(each) is int and 0 <= each <= _LARGEST_ID for each in prompt):
        raise invalid(f"{where}: expected one or more token ids", "prompt")
    return tuple(prompt)


def _call(
    body: Options,
    prompt: str,
    request_id: str,
    tenant: str,
    max_tokens: int,
    defaults: SamplingDefaults,
    **more: Any,
) -> GenerationCall:
    temperature = defaults.temperature if body.temperature is None else body.temperature
    greedy = temperature < _GREEDY_BELOW
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens: {min_tokens} is more than the {max_tokens} allowed", "min_tokens")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    return GenerationCall(
        request_id=request_id,
        prompt=prompt,
        tenant=tenant,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        temperature=1.0 if greedy else temperature,
        top_k=1 if greedy else defaults.top_k if body.top_k is None else body.top_k,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_tokens=min_tokens,
        repetition_penalty=body.repetition_penalty or defaults.repetition_penalty,  # it is never 0
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or None,
        tier=_TIERS.get(body.service_tier),
        **more,
    )
