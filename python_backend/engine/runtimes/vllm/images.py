"""Images as vLLM is asked with them: decoded and read beside its event loop, and known by salted names."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.hosted.checkpoint import CheckpointFacts
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters

_DATA, _NAMES = "multi_modal_data", "multi_modal_uuids"


def image_arguments(parameters: EngineParameters, checkpoint: CheckpointFacts) -> dict[str, Any]:
    """Of `AsyncEngineArgs`: room is made for no more than can be sent, and for nothing where none can."""
    if not checkpoint.sees:
        return {}
    return {"limit_mm_per_prompt": {"image": parameters.inflight_max_images, "video": 0, "audio": 0}}


def image_prompt(request: GenerationRequest) -> dict[str, Any]:
    """vLLM's `TokensPrompt`, with the files that `read_images` decodes."""
    prompt = {"prompt_token_ids": list(request.prompt_ids), _DATA: {"image": list(request.images)}}
    return {**prompt, "cache_salt": request.cache_salt} if request.cache_salt else prompt


def has_images(prompt: Mapping[str, Any]) -> bool:
    return _DATA in prompt


async def read_images(llm: Any, image_io: Any, prompt: Mapping[str, Any]) -> Any:
    """The prompt as vLLM's renderer makes it, each place of an image as long as the image is.

    Raises ValueError for what is no image, and InflightError for a prompt that has become too long.
    """
    decoded = await asyncio.to_thread(_decoded, image_io, prompt)
    (rendered,) = await llm.renderer.render_cmpl_async([decoded])
    tokens, most = len(rendered["prompt_token_ids"]), llm.vllm_config.model_config.max_model_len
    if tokens >= most:
        raise InflightError(
            ErrorKind.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {tokens} tokens, including its images; prompt and answer together may "
            f"have at most {most}",
        )
    return rendered


def _decoded(image_io: Any, prompt: Mapping[str, Any]) -> dict[str, Any]:
    """By its name vLLM finds an image that it has read before, whoever sent it: the salt is part of it."""
    files, salt = prompt[_DATA]["image"], str(prompt.get("cache_salt", "")).encode()
    names = [hashlib.sha256(salt + b"\0" + each).hexdigest() for each in files]
    images = [image_io.load_bytes(each) for each in files]
    return {**prompt, _DATA: {"image": images}, _NAMES: {"image": names}}


async def vision_of(llm: Any) -> dict[str, int]:
    """Of `HostFacts`: how many images a request may have, and of how many tokens one is at most."""
    processor = llm.renderer.mm_processor
    most = processor.info.allowed_mm_limits.get("image", 0) if processor is not None else 0
    if not most:
        return {}
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    await llm.reset_mm_cache()  # once its processor has been warmed up, in a thread that bears no other
    budget = MultiModalBudget(llm.vllm_config, MULTIMODAL_REGISTRY)
    return {"max_images": most, "image_tokens": budget.mm_max_toks_per_item["image"]}
