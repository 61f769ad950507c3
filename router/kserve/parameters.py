"""The parameters of a request by Triton's clients: what the model gets, and what is for the router."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.core.generation import MAX_BIASES, MOST_STOP_IDS, StopTokenIds
from router.kserve.tensors import refuse, shown
from router.request.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_PARAMETERS = 32
_MAX_MARK_CHARS = 64
_MAX_TIMEOUT_US = 3_600_000_000
_MAX_PRIORITY = 2**32 - 1
EMPTY_FINAL = "triton_enable_empty_final_response"
BINARY_OUTPUT = "binary_data_output"
LITERAL = "inflight_literal_mark"
LOGIT_BIAS = "inflight_logit_bias"
MIN_P = "inflight_min_p"
STOP_IDS = "inflight_stop_token_ids"
SHOWS_SPECIAL = "inflight_special_tokens"
SPECIAL_TOKENS = "add_special_tokens"
TIER = "inflight_tier"
PRIORITY = "priority"
TIMEOUT = "timeout"
_SAMPLING = (LOGIT_BIAS, MIN_P, STOP_IDS)
_TAKEN = (SPECIAL_TOKENS, SHOWS_SPECIAL, LITERAL, *_SAMPLING, TIER, PRIORITY, TIMEOUT, EMPTY_FINAL)
# What Triton's other parameters would do, and why they do not.
_WHY_NOT = {
    "sequence_id": "no model here keeps state between requests",
    "sequence_start": "no model here keeps state between requests",
    "sequence_end": "no model here keeps state between requests",
    "headers": "headers are not forwarded",
    "tenant": "the API key determines the tenant",
    "request_type": "the router chooses where prompts and where answers are computed",
}
_Biases = Annotated[
    dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=MAX_BIASES),
]
_biases = msgspec.json.Decoder(_Biases)
_stop_ids = msgspec.json.Decoder(StopTokenIds)

Plain = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Parameters:
    """`to_model` is what the model gets; the others are for the router.

    `timeout_s` is how long the client waits for the first token, or for an answer that has none.
    """

    to_model: dict[str, Plain]
    empty_final: bool = False
    binary_output: bool = False
    tier: Tier = Tier.STANDARD
    timeout_s: float = inf


def read_parameters(given: Mapping[str, Any]) -> Parameters:
    """Refuses the first that is unknown or wrong, by its name."""
    if len(given) > _MAX_PARAMETERS:
        raise refuse(f"there are {len(given)} parameters; allowed: up to {_MAX_PARAMETERS}")
    to_model: dict[str, Plain] = {}
    own: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TO_MODEL:
            to_model[name] = _TO_MODEL[name](name, value)
        elif name in _OWN:
            own[name] = _OWN[name](name, value)
        elif name == "request_type" and value == "context_and_generation":
            continue  # what is done anyway
        else:
            raise _unknown(name)
    return Parameters(
        to_model,
        own.get(EMPTY_FINAL, False),
        own.get(BINARY_OUTPUT, False),
        own.get(TIER, own.get(PRIORITY, Tier.STANDARD)),
        own.get(TIMEOUT, inf),
    )


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(f"parameter '{name}': allowed are true and false", name)
    return value


def _tier(name: str, value: Any) -> Tier:
    for tier in Tier:
        if tier.label == value:
            return tier
    raise refuse(f"parameter '{name}': allowed are {', '.join(tier.label for tier in Tier)}", name)


def _priority(name: str, value: Any) -> Tier:
    """Triton's numbers: 1 goes first, and 0 is the model's own choice."""
    if type(value) is not int or not 0 <= value <= _MAX_PRIORITY:
        meaning = "1 (interactive), 2 (standard), 3 and more (batch), and 0 for the default"
        raise refuse(f"parameter '{name}': allowed are {meaning}", name)
    return {0: Tier.STANDARD, 1: Tier.INTERACTIVE, 2: Tier.STANDARD}.get(value, Tier.BATCH)


def _timeout_s(name: str, value: Any) -> float:
    if type(value) is not int or not 0 <= value <= _MAX_TIMEOUT_US:
        meaning = f"1 to {_MAX_TIMEOUT_US} microseconds, and 0 for none"
        raise refuse(f"parameter '{name}': allowed are {meaning}", name)
    return value / 1e6 if value else inf


def _literal_mark(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_MARK_CHARS:
        raise refuse(f"parameter '{name}': allowed is a text of up to {_MAX_MARK_CHARS} characters", name)
    return value


def _logit_bias(name: str, value: Any) -> str:
    return _json(name, value, _biases, '{"11": -100}: up to 300 token ids with -100 to 100')


def _stop_token_ids(name: str, value: Any) -> str:
    return _json(name, value, _stop_ids, f"[2, 11]: up to {MOST_STOP_IDS} token ids")


def _json(name: str, value: Any, decoder: msgspec.json.Decoder[Any], example: str) -> str:
    """Parameters have no lists and objects, so these come as text."""
    try:
        if not isinstance(value, str):
            raise UnicodeError
        decoded = decode(decoder, value.encode())
    except (InflightError, UnicodeError):
        raise refuse(f"parameter '{name}': allowed is a JSON text such as {example}", name) from None
    return msgspec.json.encode(decoded).decode()


def _min_p(name: str, value: Any) -> str:
    """A number, or a text with one: it is sent as that."""
    try:
        share = nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        share = nan
    if not 0 <= share <= 1:
        raise refuse(f"parameter '{name}': allowed are 0 to 1", name)
    return str(share)


_TO_MODEL: dict[str, Callable[[str, Any], Plain]] = {
    SPECIAL_TOKENS: _boolean,
    LITERAL: _literal_mark,
    LOGIT_BIAS: _logit_bias,
    MIN_P: _min_p,
    STOP_IDS: _stop_token_ids,
    SHOWS_SPECIAL: _boolean,
}
_OWN: dict[str, Callable[[str, Any], Any]] = {
    EMPTY_FINAL: _boolean,
    BINARY_OUTPUT: _boolean,
    TIER: _tier,
    PRIORITY: _priority,
    TIMEOUT: _timeout_s,
}


def _unknown(name: str) -> InflightError:
    allowed = f"allowed are {', '.join(_TAKEN[:-1])} and {_TAKEN[-1]}"
    why = _WHY_NOT.get(name)
    if why is None and name.startswith(("triton_", "inflight_")):
        why = "it is reserved"
    because = f": {why}" if why else ""
    return refuse(f"parameter '{shown(name)}' is not supported{because}; {allowed}", shown(name))
