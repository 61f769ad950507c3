"""Parameters of a request: those that mean something here, and a clear no to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.core.generation import MAX_BIASES
from router.kserve.tensors import refuse, shown
from router.request.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_PARAMETERS = 32
EMPTY_FINAL = "triton_enable_empty_final_response"
LOGIT_BIAS = "inflight_logit_bias"
SPECIAL_TOKENS = "add_special_tokens"
TIER = "inflight_tier"
# What Triton's own parameters would do, and why they do not.
_WHY_NOT = {
    "sequence_id": "no model here keeps state between requests",
    "sequence_start": "no model here keeps state between requests",
    "sequence_end": "no model here keeps state between requests",
    "priority": "inflight_tier says who goes first",
    "timeout": "cancel the request instead, which stops the engine",
    "headers": "headers are not passed on",
    "tenant": "the key tells whose request it is",
}
_Biases = Annotated[
    dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=MAX_BIASES),
]
_biases = msgspec.json.Decoder(_Biases)

Plain = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Parameters:
    """`to_model` is what the model gets; the others are for the router."""

    to_model: dict[str, Plain]
    empty_final: bool = False
    binary_output: bool = False
    tier: Tier = Tier.STANDARD


def read_parameters(given: Mapping[str, Any]) -> Parameters:
    if len(given) > _MAX_PARAMETERS:
        raise refuse(f"there are {len(given)} parameters; allowed: up to {_MAX_PARAMETERS}")
    to_model: dict[str, Plain] = {}
    tier = Tier.STANDARD
    own = {EMPTY_FINAL: False, "binary_data_output": False}
    for name, value in given.items():
        if name in own:
            own[name] = _boolean(name, value)
        elif name == SPECIAL_TOKENS:
            to_model[name] = _boolean(name, value)
        elif name == LOGIT_BIAS:
            to_model[name] = _logit_bias(value)
        elif name == TIER:
            tier = _tier(value)
        elif name == "request_type" and value == "context_and_generation":
            continue  # what is done anyway
        else:
            raise _unknown(name)
    return Parameters(to_model, own[EMPTY_FINAL], own["binary_data_output"], tier)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(f"parameter '{name}': allowed are true and false", name)
    return value


def _tier(value: Any) -> Tier:
    for tier in Tier:
        if tier.label == value:
            return tier
    raise refuse(f"parameter '{TIER}': allowed are {', '.join(tier.label for tier in Tier)}", TIER)


def _logit_bias(value: Any) -> str:
    example = 'a JSON text such as {"11": -100}: up to 300 token ids with -100 to 100'
    if not isinstance(value, str):
        raise refuse(f"parameter '{LOGIT_BIAS}': allowed is {example}", LOGIT_BIAS)
    try:
        biases = decode(_biases, value.encode())
    except (InflightError, UnicodeError):
        raise refuse(f"parameter '{LOGIT_BIAS}': allowed is {example}", LOGIT_BIAS) from None
    return msgspec.json.encode(biases).decode()


def _unknown(name: str) -> InflightError:
    allowed = f"allowed are {SPECIAL_TOKENS}, {TIER}, {LOGIT_BIAS} and {EMPTY_FINAL}"
    why = _WHY_NOT.get(name)
    if why is None and name.startswith(("triton_", "inflight_")):
        why = "it is reserved"
    because = f": {why}" if why else ""
    return refuse(f"parameter '{shown(name)}' is not taken{because}; {allowed}", shown(name))
