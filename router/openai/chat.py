"""POST /v1/chat/completions: the prompt a chat becomes, the calls it makes, and what reads the answer."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.documents import expand
from router.core.answer_reader import THINK, THINK_END
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.openai.bodies import ChatBody, decode_chat
from router.openai.calls import generation_call, several
from router.openai.chat_messages import chat_messages
from router.openai.dialects import ChatDialect
from router.openai.guides import chat_demand
from router.openai.held_exchange import HeldExchange
from router.openai.stored_chats import ChatKeeper, StoredDialect
from router.openai.tools import described, offered, reader_for
from router.request.aside import LARGE_BYTES
from router.request.decoding import invalid
from router.request.fair_pool import unless_left
from router.request.routes import Route
from router.request.text import TextJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.content.documents.documents import Documents
    from router.core.answer_reader import AnswerReader
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.routing.chat_template import ChatTemplate
    from router.routing.checkpoint import SamplingDefaults
    from router.routing.models import Registry, ServedModel

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
        options = body.stream_options
        dialect = (StoredDialect if body.store else ChatDialect)(
            record.request_id,
            model.name,
            include_usage=options is not None and bool(options.include_usage),
            service_tier=body.service_tier,
        )
        may_be_read = body.tools or model.template.thinks
        reader = chat_reader(body, calls[0], model.template) if may_be_read else None
        answered = HeldExchange(exchange) if body.store else exchange
        job = TextJob(answered, record, model, calls, dialect, bool(body.stream), reader)
        if options is not None and options.continuous_usage_stats:
            dialect.running = job.choices
        await self._answers.answer(job, record, exchange.on_disconnect)
        if isinstance(dialect, StoredDialect) and isinstance(answered, HeldExchange):
            await self._keeper.keep(exchange, answered, record, body, dialect)


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
