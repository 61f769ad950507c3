"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.chat.bodies import OPTIONS_NEUTRAL, Options, check_options, refuse_unsupported
from router.chat.calls import generation_call, several
from router.chat.guides import demand_of
from router.core.actions import Action
from router.core.generation import MAX_NEW_TOKENS, GenerationCall
from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.dialects import CompletionDialect, TokenIds
from router.request.answer import Answers
from router.request.aside import LARGE_BYTES
from router.request.decoding import decode, invalid
from router.request.errors import too_long
from router.request.routes import Route
from router.request.text import TextJob
from router.routing.checkpoint import SamplingDefaults
from router.routing.models import Registry

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_PROMPTS = 64
_LARGEST_ID = 2**31 - 1


class CompletionBody(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prompt: str | list[Any]
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_NEW_TOKENS)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    suffix: Any = None


# Values that ask for what the router does anyway.
COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {**OPTIONS_NEUTRAL, "suffix": ("",)}
_decoder = msgspec.json.Decoder(CompletionBody)


def decode_completion(body: bytes) -> CompletionBody:
    decoded = decode(_decoder, body, has_numbers=True)
    refuse_unsupported(decoded, COMPLETION_NEUTRAL, "")
    check_options(decoded)
    if decoded.max_tokens == 0 and not decoded.echo:
        raise invalid("max_tokens: 0 is only allowed with echo, which returns only the prompt", "max_tokens")
    return decoded


class Completions:
    def __init__(self, models: Registry, answers: Answers) -> None:
        self._models = models
        self._answers = answers

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        raw, aside, tenant = exchange.request.body, self._answers.aside, record.tenant
        is_large = len(raw) > LARGE_BYTES
        body = await aside.run(tenant, decode_completion, raw) if is_large else decode_completion(raw)
        record.user = body.user or record.user
        model = self._models.find(body.model, record)
        asked = (body, record.request_id, tenant, model.defaults)
        calls = await aside.run(tenant, completion_calls, *asked) if is_large else completion_calls(*asked)
        for call in calls:
            # The engine would say so too, after all of them had been sent.
            if call.prompt_ids is not None and len(call.prompt_ids) > model.context_tokens:
                raise too_long(model.context_tokens, len(call.prompt_ids))
        options = body.stream_options
        dialect = CompletionDialect(
            record.request_id,
            model.name,
            record.began_s,
            include_usage=options is not None and bool(options.include_usage),
            service_tier=body.service_tier,
        )
        job = TextJob(exchange, record, model, calls, dialect, bool(body.stream))
        if options is not None and options.continuous_usage_stats:
            dialect.running = job.choices
        if body.return_token_ids:
            dialect.token_ids = TokenIds(job.choices)
        await self._answers.answer(job, record, exchange.on_disconnect)


def completion_calls(
    body: CompletionBody, request_id: str, tenant: str, defaults: SamplingDefaults
) -> list[GenerationCall]:
    prompts = _prompts(body.prompt)
    is_scoring = body.max_tokens == 0
    max_tokens = 1 if is_scoring else body.max_tokens or COMPLETION_TOKENS
    demand = demand_of(body)
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    if len(prompts) * (body.n or 1) > MAX_PROMPTS:
        raise invalid(f"n: at most {MAX_PROMPTS} answers to all prompts together", "n")

    def call_of(prompt: str | tuple[int, ...], call_id: str) -> GenerationCall:
        text, prompt_ids = (prompt, None) if isinstance(prompt, str) else ("", prompt)
        return generation_call(
            body,
            text,
            call_id,
            tenant,
            max_tokens,
            defaults,
            prompt_ids=prompt_ids,
            add_special_tokens=body.add_special_tokens is not False,
            guide=None if demand is None else (demand.kind, demand.text),
            guide_field=None if demand is None else demand.field,
            shows_special_tokens=True if body.skip_special_tokens is False else None,
            echo=bool(body.echo),
            is_scoring=is_scoring,
            top_log_probs=body.logprobs,
        )

    return [
        choice
        for prompt, each in zip(prompts, ids, strict=True)
        for choice in several(call_of(prompt, each), body.n)
    ]


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


def routes(models: Registry, answers: Answers) -> list[Route]:
    return [
        Route("POST", "/v1/completions", Completions(models, answers), "Continue a text, or several",
              CompletionBody, "Completion", streams=True, request_id_prefix="cmpl", asks_model=True,
              action=Action.INFERENCE_RUN)
    ]  # fmt: skip
