"""What a runtime declares of itself: its name, what it can do, what is missing here, how it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from python_backend.engine.host.device import Gpu
from python_backend.engine.report import LoadingProgress
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.runtime import Runtime
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.runtime_environments import RuntimeEnvironment, Version


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do; a request for what is False here is refused by that name."""

    architectures: str
    formats: tuple[str, ...]
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    kv_precisions: tuple[str, ...] = ("auto",)
    quantized_checkpoints: bool = False
    several_gpus: bool = False
    adapters: bool = False
    images: bool = False
    prefill_and_decode_apart: bool = False
    guides: bool = True
    log_probs: bool = True
    context_logits: bool = True
    generation_logits: bool = True
    bad_words_of_several_tokens: bool = True
    top_p_decay: bool = True
    retention: bool = True
    tiers: str = "the scheduler's own"
    tenants_weights: bool = False
    shared_prefixes: bool = False
    live_step_budget: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What can be told of a model without its weights; `is_known` is False where there is none.

    `unreadable` says what of its quantisation our own engine does not read.
    """

    is_known: bool = False
    format: str = ""
    architectures: tuple[str, ...] = ()
    quantization: str | None = None
    unreadable: str | None = None
    sees_images: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides: runtimes by name that have a Python here, the GPUs that the driver shows, the model."""

    environments: Mapping[str, RuntimeEnvironment] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    model: ModelFacts = field(default_factory=ModelFacts)


Missing = Callable[[EngineParameters, Facts], str | None]
Load = Callable[[EngineParameters, LoadingProgress], Runtime]


@dataclass(frozen=True, slots=True)
class RuntimeDeclaration:
    """`name` is a value of `inflight_runtime`; `missing` says what keeps it from computing this model here.

    Without an `oldest` version it is part of this program. `install` is what brings it.
    """

    name: str
    title: str
    capabilities: Capabilities
    missing: Missing
    load: Load
    oldest: Version | None = None
    install: str = ""


def refuse_undone(
    request: GenerationRequest, capabilities: Capabilities, title: str, can_guide: bool = True
) -> None:
    """Raises InflightError for the first thing in the request that the runtime does not do."""
    can, sampling = capabilities, request.sampling
    longest = max(map(len, request.bad_sequences), default=1)
    wants_log_probs = request.returns_log_probs or request.top_log_probs is not None
    decay = sampling.top_p_decay if sampling.decays_top_p and not sampling.is_greedy else 1
    undone: list[tuple[bool, str, Any, str]] = [
        (longest > 1 and not can.bad_words_of_several_tokens, "bad_words_list", f"a word of {longest} tokens",
         "words of one token"),
        (decay != 1 and not can.top_p_decay, "runtime_top_p_decay", decay, "1"),
        (request.returns_context_logits and not can.context_logits, "return_context_logits", True, "False"),
        (request.returns_generation_logits and not can.generation_logits, "return_generation_logits", True,
         "False"),
        (wants_log_probs and not can.log_probs, "return_log_probs", True, "False"),
        (bool(request.adapter) and not can.adapters, "inflight_adapter", request.adapter, "none"),
        (bool(request.images) and not can.images, "images", f"{len(request.images)} files", "none"),
        (bool(request.retention.ranges) and not can.retention, "retention_token_range_starts",
         f"{len(request.retention.ranges)} ranges", "none"),
    ]  # fmt: skip
    for is_undone, name, found, allowed in undone:
        if is_undone:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"{name} has {found}, which {title} does not support; allowed: {allowed}",
            )
    if request.guide is not None and not (can.guides and can_guide):
        raise InflightError(
            ErrorKind.UNSUPPORTED, f"guided decoding ({request.guide.kind.value}) is not supported here"
        )
