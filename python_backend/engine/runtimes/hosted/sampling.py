"""What both hosted packages call alike: penalties, and guides by their kind."""

from __future__ import annotations

from typing import Any

from python_backend.engine.request import Guide, GuideKind, SamplingParams

_GUIDES = {GuideKind.JSON_SCHEMA: "json", GuideKind.REGEX: "regex", GuideKind.EBNF_GRAMMAR: "grammar"}


def penalties_of(sampling: SamplingParams) -> dict[str, float]:
    """None of them where the request has none: the packages' own defaults are the contract's."""
    if not sampling.has_penalties:
        return {}
    return {
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def guide_arguments(guide: Guide) -> dict[str, Any]:
    """Of vLLM's `StructuredOutputsParams` and of TensorRT-LLM's `GuidedDecodingParams`."""
    if guide.kind is GuideKind.JSON:
        return {"json_object": True}
    return {_GUIDES[guide.kind]: guide.text}
