"""What a body asks of the engine, call by call."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from router.core.generation import GenerationCall
from router.request.decoding import invalid

if TYPE_CHECKING:
    from router.openai.bodies import Options
    from router.routing.checkpoint import SamplingDefaults

# OpenAI's tiers that are not the engine's default.
_TIERS: dict[str | None, str] = {"flex": "batch", "priority": "interactive"}
# Below this, logits divided by the temperature leave the range of 32-bit floats.
_GREEDY_BELOW = 1e-4


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
        tier=_TIERS.get(body.service_tier),
        **more,
    )
