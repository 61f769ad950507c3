"""Small random adapters in PEFT's files, and the models that they make when merged by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EVERYTHING = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def write_adapter(
    model: PreTrainedModel,
    directory: Path,
    rank: int = 4,
    modules: tuple[str, ...] = EVERYTHING,
    seed: int = 0,
    layers: tuple[int, ...] | None = None,
    strength: float = 0.3,
    **config: Any,
) -> PreTrainedModel:
    """Writes the adapter; returns the model with it merged in: W + scale · B A."""
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(modules),
    } | config
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    chance = torch.Generator().manual_seed(seed)
    merged = copy.deepcopy(model)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in merged.named_modules():
        parts = name.split(".")
        if parts[-1] not in modules or (layers is not None and int(parts[2]) not in layers):
            continue
        weight = module.weight
        own = settings.get("rank_pattern", {}).get(parts[-1], rank)
        shrink = torch.randn(own, weight.shape[1], generator=chance) * strength
        expand = torch.randn(weight.shape[0], own, generator=chance) * strength
        alpha = settings.get("alpha_pattern", {}).get(parts[-1], settings["lora_alpha"])
        scale = alpha / (own**0.5 if settings.get("use_rslora") else own)
        tensors[f"base_model.model.{name}.lora_A.weight"] = shrink
        tensors[f"base_model.model.{name}.lora_B.weight"] = expand
        with torch.no_grad():
            weight += scale * expand @ shrink
    save_file(tensors, directory / "adapter_model.safetensors")
    return merged
