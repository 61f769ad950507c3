"""What a Triton request says beside its tensors: whose it is, how urgent, or an order to the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from python_backend.triton_adapter.inputs import invalid
from python_backend.wire.engine_report import ADAPTER, CONFIGURE, REPORT, ROUTER
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.pools import POOL_OF, REQUEST_TYPE, Part
from python_backend.wire.shared_prefix import SHARED_PREFIX
from python_backend.wire.tiers import Tier

MOST_TOP_LOG_PROBS = 20
_INTER_TOKEN = "inter_token_ms"
_MOST_INTER_TOKEN_MS = 3_600_000.0
_MOST_WEIGHT = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the engine takes into one step."""

    max_batch_size: int
    max_step_tokens: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """What control requests have set: limits, and how far apart the tokens of each tier may be."""

    limits: Limits
    inter_token_ms: Mapping[Tier, float | None] = field(default_factory=lambda: dict.fromkeys(Tier))


def decode_tier(parameters: Mapping[str, Any]) -> Tier:
    name = _text(parameters, "inflight_tier", Tier.STANDARD.name.lower())
    names = [tier.name.lower() for tier in Tier]
    if name not in names:
        raise invalid(
            "inflight_tier",
            f"the request parameter inflight_tier is {name!r}; allowed: {', '.join(names)}",
        )
    return Tier[name.upper()]


def decode_part(parameters: Mapping[str, Any], pool: str) -> Part:
    """The contract's disaggregated serving computes prompts in one place and answers in another."""
    kind = _text(parameters, REQUEST_TYPE, Part.WHOLE)
    allowed = [part.value for part in Part if POOL_OF.get(part, pool) == pool]
    if kind not in allowed:
        raise InflightError(
            ErrorKind.UNSUPPORTED,
            f"the request parameter {REQUEST_TYPE} is {kind!r}; this engine, whose inflight_pool is {pool}, "
            f"allows only {' and '.join(allowed)}",
            REQUEST_TYPE,
        )
    return Part(kind)


def decode_adapter(parameters: Mapping[str, Any]) -> str:
    """The name of the LoRA adapter to answer with; empty: none."""
    return _text(parameters, ADAPTER)


def decode_tenant(parameters: Mapping[str, Any]) -> str:
    return _text(parameters, "tenant")


def decode_weight(parameters: Mapping[str, Any]) -> float:
    """The tenant's, beside others that want the same places; 0: those are not shared by tenants."""
    wanted = parameters.get("inflight_weight", 0.0)
    if type(wanted) not in (int, float) or not 0 <= wanted <= _MOST_WEIGHT:
        raise invalid(
            "inflight_weight",
            f"the request parameter inflight_weight is {wanted!r}; allowed: 0 to {_MOST_WEIGHT:g}",
        )
    return float(wanted)


def decode_cache_salt(parameters: Mapping[str, Any], isolate_tenants: bool) -> str:
    """Requests with the same one may share cached blocks."""
    salt = _text(parameters, "inflight_cache_salt")
    tenant = _text(parameters, "tenant")
    # As JSON, so that no tenant can make up another's by what it puts into the salt.
    return json.dumps([tenant, salt]) if isolate_tenants else salt


def decode_shared_prefix(parameters: Mapping[str, Any]) -> str:
    """What the router says of the prompt's beginning; the prompt must bear it out."""
    return _text(parameters, SHARED_PREFIX)


def decode_logit_bias(parameters: Mapping[str, Any]) -> dict[int, float]:
    """What is added to the scores of some tokens, by their ids."""
    if "inflight_logit_bias" not in parameters:
        return {}
    try:
        wanted = json.loads(_text(parameters, "inflight_logit_bias"))
        bias = {int(token_id): float(value) for token_id, value in wanted.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        bias = {-1: 0.0}
    if any(token_id < 0 or not math.isfinite(value) for token_id, value in bias.items()):
        raise invalid(
            "inflight_logit_bias",
            "the request parameter inflight_logit_bias must be a JSON object of token ids and numbers, "
            'such as {"11": -100}',
        )
    return bias


def decode_min_p(parameters: Mapping[str, Any]) -> float:
    """How likely a token must be, as a share of the likeliest one's; 0: any may be drawn."""
    text = _text(parameters, "inflight_min_p", "0")
    try:
        wanted = float(text)
    except ValueError:
        wanted = math.nan
    if not 0 <= wanted <= 1:
        raise invalid(
            "inflight_min_p",
            f"the request parameter inflight_min_p is {text!r}; allowed: 0 to 1, as a string",
        )
    return wanted


def decode_stop_token_ids(parameters: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Tokens that end the answer, each a stop word of its own."""
    text = _text(parameters, "inflight_stop_token_ids", "[]")
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, list) or not all(type(each) is int and each >= 0 for each in wanted):
        raise invalid(
            "inflight_stop_token_ids",
            "the request parameter inflight_stop_token_ids must be a JSON list of token ids, such as [2, 11]",
        )
    return tuple((each,) for each in wanted)


def decode_top_log_probs(parameters: Mapping[str, Any]) -> int | None:
    """How many of the likeliest tokens are to be told beside each that comes; None: nothing at all."""
    wanted = parameters.get("inflight_top_log_probs")
    if wanted is not None and (type(wanted) is not int or not 0 <= wanted <= MOST_TOP_LOG_PROBS):
        raise invalid(
            "inflight_top_log_probs",
            f"the request parameter inflight_top_log_probs is {wanted!r}; allowed: 0 to {MOST_TOP_LOG_PROBS}",
        )
    return wanted


def decode_echo(parameters: Mapping[str, Any]) -> bool:
    """Whether a stream is to begin with the prompt."""
    return _flag(parameters, "inflight_echo")


def decode_token_ids(parameters: Mapping[str, Any]) -> bool:
    """Whether each response is to have its ids beside its text."""
    return _flag(parameters, "inflight_token_ids")


def decode_trace(parameters: Mapping[str, Any]) -> bool:
    """Whether the steps that a request is part of are to be told at its end."""
    return _flag(parameters, "inflight_trace")


def decode_router(parameters: Mapping[str, Any]) -> str:
    """Who sent it, where that is a router; its requests end with it."""
    return _text(parameters, ROUTER)


def asks_for_report(parameters: Mapping[str, Any]) -> bool:
    return _flag(parameters, REPORT)


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    wanted = parameters.get(name, False)
    if not isinstance(wanted, bool):
        raise invalid(name, f"the request parameter {name} is {wanted!r}; allowed: a boolean")
    return wanted


def decode_configuration(parameters: Mapping[str, Any], now: Configuration, most: Limits) -> Configuration:
    """What a control request asks for; what it does not name stays as it is."""
    try:
        wanted = json.loads(_text(parameters, CONFIGURE))
    except (ValueError, RecursionError):
        wanted = None
    names = (*Limits.__slots__, _INTER_TOKEN)
    if not isinstance(wanted, dict) or not wanted or not wanted.keys() <= set(names):
        raise invalid(
            CONFIGURE,
            f"the request parameter {CONFIGURE} is {parameters[CONFIGURE]!r}; "
            f"allowed: a JSON object with {', '.join(names[:-1])} or {names[-1]}",
        )
    targets = _targets(wanted.pop(_INTER_TOKEN, {}), now.inter_token_ms)
    return Configuration(_limits(wanted, now.limits, most), targets)


def _limits(wanted: dict[str, Any], now: Limits, most: Limits) -> Limits:
    for name, value in wanted.items():
        highest = getattr(most, name)
        if type(value) is not int or not 1 <= value <= highest:
            raise invalid(
                CONFIGURE,
                f"{name} is {value!r}; allowed: 1 to {highest}, the value the engine was started with",
            )
    limits = Limits(**{name: wanted.get(name, getattr(now, name)) for name in Limits.__slots__})
    if limits.max_step_tokens < limits.max_batch_size:
        raise invalid(
            CONFIGURE,
            f"max_step_tokens would be {limits.max_step_tokens} and max_batch_size {limits.max_batch_size}; "
            "every running sequence needs one token per step, so max_step_tokens must not be smaller",
        )
    return limits


def _targets(wanted: Any, now: Mapping[Tier, float | None]) -> dict[Tier, float | None]:
    tiers = {tier.label: tier for tier in Tier}
    if not isinstance(wanted, dict) or not wanted.keys() <= tiers.keys():
        names = ", ".join(tiers)
        raise invalid(CONFIGURE, f"{_INTER_TOKEN} is {wanted!r}; allowed: a JSON object with any of {names}")
    for label, value in wanted.items():
        is_number = type(value) in (int, float) and 0 < value <= _MOST_INTER_TOKEN_MS
        if value is not None and not is_number:
            raise invalid(
                CONFIGURE,
                f"{_INTER_TOKEN} of {label} is {value!r}; "
                f"allowed: above 0, up to {_MOST_INTER_TOKEN_MS:g}, or null for none",
            )
    return {tier: wanted.get(label, now[tier]) for label, tier in tiers.items()}


def _text(parameters: Mapping[str, Any], name: str, default: str = "") -> str:
    value = parameters.get(name, default)
    if not isinstance(value, str):
        raise invalid(name, f"the request parameter {name} is {value!r}; allowed: a string")
    return value
