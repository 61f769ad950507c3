"""Prompts and answers computed apart: what an engine is there for, and which part of a request it is sent."""

from __future__ import annotations

from enum import Enum

# The values of `inflight_pool`. One of BOTH computes prompts and answers, and passes nothing on.
BOTH, PREFILL, DECODE = "both", "prefill", "decode"
POOLS = (BOTH, PREFILL, DECODE)
# What is a server's and not a model's, as GPUs are: the environment's word where a parameter is not set.
POOL_VARIABLE = "INFLIGHT_POOL"
OF_SERVER = {"inflight_pool": POOL_VARIABLE, "inflight_kv_folder": "INFLIGHT_KV_FOLDER"}

# The request parameter that says the part, and the tensor that takes what was computed from one to the other.
REQUEST_TYPE = "request_type"
CONTEXT_PARAMS = "context_phase_params"
# The same among the ensemble's outputs: none of its tensors may be an input and an output.
OUT_CONTEXT_PARAMS = "out_context_phase_params"


class Part(str, Enum):
    """Of a request, by the contract's words for `request_type`."""

    WHOLE = "context_and_generation"
    CONTEXT = "context_only"
    GENERATION = "generation_only"


# Who does which part; the whole is done by everybody.
POOL_OF = {Part.CONTEXT: PREFILL, Part.GENERATION: DECODE}
