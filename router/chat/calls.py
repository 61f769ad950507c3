"""What a chat asks of the engine: the prompt that its model's template writes, and the calls with it."""

from __future__ import annotations

from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.guides import chat_demand
from router.chat.tools import (
    described,
    harmony_reader_for,
    introduction,
    offered,
    reader_for,
    shown_result,
    with_calls,
)
from router.core.answer_reader import THINK, THINK_END
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.core.harmony import ASSISTANT, FINAL, in_channels
from router.request.decoding import invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.chat.bodies import ChatBody, Options
    from router.core.images import Image
    from router.core.messages import Message
    from router.core.record import Record
    from router.request.choice import AnswerReader
    from router.routing.chat_template import ChatTemplate
    from router.routing.checkpoint import SamplingDefaults
    from router.routing.models import ServedModel

# OpenAI's tiers that are not the engine's default.
_TIERS: dict[str | None, str] = {"flex": "batch", "priority": "interactive"}
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


def templated_calls(
    body: ChatBody,
    record: Record,
    model: ServedModel,
    template: ChatTemplate,
    images: tuple[Image, ...] = (),
) -> list[GenerationCall]:
    """The calls of a chat whose prompt the model's template writes."""
    prompt, tenant = chat_prompt(body, template), record.caller.organisation.id
    calls = chat_calls(body, prompt, record.request_id, tenant, model.defaults, template)
    return showing(calls, images, model) if images else calls


def showing(
    calls: Sequence[GenerationCall], images: tuple[Image, ...], model: ServedModel
) -> list[GenerationCall]:
    """The calls with their images, for which the prompt has as many places."""
    tokens = len(images) * (model.vision.image_tokens if model.vision else 0)
    return [msgspec.structs.replace(each, images=images, image_tokens=tokens) for each in calls]


def chat_prompt(body: ChatBody, template: ChatTemplate) -> str:
    """The prompt, marks and all."""
    knows_tools = template.knows_tools
    tools = described(offered(body)) if knows_tools and body.tools else None
    messages = chat_messages(body, knows_tools)
    if template.speaks_harmony:
        messages = [in_channels(message) for message in messages]
    if _how_rendered(body) == _AS_USUAL:
        return template.render(messages, tools)
    return template.render(messages, tools, **rendering(body, template))


def rendering(body: ChatBody, template: ChatTemplate) -> dict[str, Any]:
    """What a body says of how the template is to be rendered."""
    if body.continue_final_message:
        if body.add_generation_prompt:
            text = (
                "continue_final_message: not allowed with add_generation_prompt, which begins a new message"
            )
            raise invalid(text, "continue_final_message")
        if body.messages[-1].role != "assistant":
            text = "continue_final_message: the last message has to be the assistant's"
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
    """The messages as chat templates know them: a role they were written for, content that they can read.

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
        raise invalid(f"{where}.tool_calls: only allowed with the role assistant", f"{where}.tool_calls")
    if (role == "tool") != (message.tool_call_id is not None):
        raise invalid(f"{where}.tool_call_id: only allowed with the role tool", f"{where}.tool_call_id")
    has_calls = bool(message.tool_calls)
    content = "" if message.content is None and has_calls else _content(message, index)
    rendered: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    thought = message.reasoning_content or message.reasoning
    if isinstance(thought, str) and role == "assistant":
        rendered["reasoning_content"] = thought
    if role == "tool":
        return shown_result(rendered, message.tool_call_id, knows_tools)
    return with_calls(rendered, message.tool_calls, where, knows_tools) if message.tool_calls else rendered


def _content(message: Message, index: int) -> str | list[dict[str, str]]:
    """One string; with images, in parts, as templates of models that see take it."""
    where = f"messages[{index}].content"
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise invalid(f"{where}: expected a string or a list of text parts", where)
    texts, parts = [], []
    for position, part in enumerate(message.content):
        if part.image is not None:
            parts.append({"type": "image"})
            continue
        if part.type != "text":
            kind = part.type if part.type.isidentifier() and len(part.type) < 32 else "other"
            message_text = (
                f"{where}[{position}]: {kind} parts are not supported; allowed: text, image_url, file"
            )
            raise InflightError(ErrorKind.UNSUPPORTED, message_text, f"{where}[{position}].type")
        if part.text is None:
            raise invalid(f"{where}[{position}].text: expected a string", f"{where}[{position}].text")
        texts.append(part.text)
        parts.append({"type": "text", "text": part.text})
    return "\n".join(texts) if len(texts) == len(parts) else parts


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
    in_channels = template is not None and template.speaks_harmony
    if demand is not None:
        prompt += _speaking(prompt, in_channels)  # what must follow a rule is said, not thought
    text, marked = unmarked(prompt) if LITERAL_MARK in prompt else (prompt, None)
    shows_special = body.skip_special_tokens is False or (
        bool(body.tools) and template is not None and template.call_format.is_special
    )
    shows_special = shows_special or (in_channels and demand is None)
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


def _speaking(prompt: str, in_channels: bool) -> str:
    """What must come behind a prompt for its answer to be all text."""
    if in_channels:
        return FINAL if prompt.endswith(ASSISTANT) else ""
    return f"\n{THINK_END}\n\n" if ends_in_thought(prompt) else ""


def ends_in_thought(prompt: str) -> bool:
    return prompt[-64:].rstrip().endswith(THINK)


def chat_reader(
    body: ChatBody, call: GenerationCall, template: ChatTemplate
) -> Callable[[], AnswerReader] | None:
    """What reads thoughts and calls out of the answers; None where there can be neither."""
    if template.speaks_harmony and call.guide is None:
        return harmony_reader_for(body)
    thinks: bool | None = None
    if template.thinks and call.guide is None:
        thinks = ends_in_thought(call.prompt)
    return None if thinks is None and not body.tools else reader_for(body, template.call_format, thinks)


def several(call: GenerationCall, count: int | None) -> list[GenerationCall]:
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


def generation_call(
    body: Options,
    prompt: str,
    request_id: str,
    tenant: str,
    max_tokens: int,
    defaults: SamplingDefaults,
    **more: Any,
) -> GenerationCall:
    """What a body asks of the engine; where it is silent, as the checkpoint says."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    greedy = temperature < _GREEDY_BELOW
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens: {min_tokens} is more than the {max_tokens} allowed", "min_tokens")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if body.seed is None:  # one that is made again under its id has the same
        seed = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big") >> 1
    else:
        seed = body.seed % 2**64
    return GenerationCall(
        request_id=request_id,
        prompt=prompt,
        tenant=tenant,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        temperature=1.0 if greedy else temperature,
        top_k=1 if greedy else defaults.top_k if body.top_k is None else max(body.top_k, 0),
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_tokens=min_tokens,
        repetition_penalty=body.repetition_penalty or defaults.repetition_penalty,  # it is never 0
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or None,
        min_p=body.min_p or None,
        stop_token_ids=tuple(body.stop_token_ids) if body.stop_token_ids else None,
        returns_token_ids=body.return_token_ids or None,
        tier=_TIERS.get(body.service_tier),
        **more,
    )
