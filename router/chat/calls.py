"""What a chat or a plain prompt asks of the engine, call by call, and what reads a chat's answers."""

from __future__ import annotations

import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from router.chat.guides import chat_demand
from router.chat.prompt import chat_prompt
from router.chat.tools import harmony_reader_for, reader_for
from router.core.answer_reader import THINK, THINK_END
from router.core.generation import LITERAL_MARK, MAX_NEW_TOKENS, GenerationCall, unmarked
from router.core.harmony import ASSISTANT, FINAL
from router.request.decoding import invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.chat.bodies import ChatBody, Options
    from router.core.record import Record
    from router.request.choice import AnswerReader
    from router.routing.chat_template import ChatTemplate
    from router.routing.checkpoint import SamplingDefaults
    from router.routing.models import ServedModel

# OpenAI's tiers that are not the engine's default.
_TIERS: dict[str | None, str] = {"flex": "batch", "priority": "interactive"}
# Below this, logits divided by the temperature leave the range of 32-bit floats.
_GREEDY_BELOW = 1e-4
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
    body: ChatBody, record: Record, model: ServedModel, template: ChatTemplate
) -> list[GenerationCall]:
    """The calls of a chat whose prompt the model's template writes."""
    prompt, tenant = chat_prompt(body, template), record.caller.organisation.id
    return chat_calls(body, prompt, record.request_id, tenant, model.defaults, template)


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
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
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
