"""Where a family keeps its tensors, and which of the optional ones it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Where experts are, in the order of preference; `gate`, `up` and `down` name the parts of one.

    `is_sparse(i)`: whether layer i has experts at all. With `has_biases` the router and all products have
    one. `takes_turns`: a gate, its up, the next gate, and so on, in tensors that all experts share
    and that are (experts, inputs, outputs) unless they are quantised. `shared` names the expert that every
    row goes through, and is as wide as `shared_width`.
    """

    prefixes: tuple[str, ...]
    is_sparse: Callable[[int], bool]
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    router: str = "gate"
    has_biases: bool = False
    takes_turns: bool = False
    shared: str = ""
    shared_width: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of the optional tensors a family has, and where it departs from Llama's names.

    What a layer adds to the residual is multiplied by `residual_scale`, the logits by `logits_scale`.
    """

    is_tied: bool
    has_qkv_bias: bool = False
    has_attention_out_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    norms_heads_together: bool = False
    has_input_norms: bool = True
    has_output_norms: bool = False
    has_sinks: bool = False
    is_fused: bool = False
    norm_offset: float = 0.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    experts: ExpertLayout | None = None
