"""Prompts and answers computed apart: what an engine is there for, and which part of a request it is sent."""

from __future__ import annotations

from enum import Enum

# The values of `inflight_pool`. One of BOTH computes prompts and answers, and passes nothing on.
BOTH, PREFILL, DECODE = "both", "prefill", "decode"
POOLS = (BOTH, PREFILL, DECODE)
# The environment's word where `inflight_pool` is not set: a server's, as its GPUs are.
POOL_VARIABLE = "INFLIGHT_POOL"

# The request parameter that says the part, and the tensor that takes what was computed from one to the other.
REQUEST_TYPE = "request_type"
CONTEXT_PARAMS = "context_phase_params"


class Part(str, Enum):
    """Of a request, by the contract's words for `request_type`."""

    WHOLE = "context_and_generation"
    CONTEXT = "context_only"
    GENERATION = "generation_only"


# Who does which part; the whole is done by everybody.
POOL_OF = {Part.CONTEXT: PREFILL, Part.GENERATION: DECODE}
