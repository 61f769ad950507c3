"""Checkpoints quantised as the public definition of each format says, written out plainly, and their twins.

`quantize` writes the checkpoint and gives the model the values that the stored levels stand for, so that
transformers' own arithmetic on them is what an engine must reproduce.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

Tensors = dict[str, torch.Tensor]
# From a matrix to what is stored of it, by the ends of the names, and what that stands for.
Quantize = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
# Sides that are multiples of every group and block below.
SIDES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2}


def words(levels: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned levels of the last axis in int32, the first in the lowest bits."""
    in_word = 32 // bits
    split = levels.to(torch.int64).reshape(*levels.shape[:-1], -1, in_word)
    whole = (split << (torch.arange(in_word) * bits)).sum(-1)
    return torch.where(whole >= 2**31, whole - 2**32, whole).to(torch.int32)


def in_steps(
    matrix: torch.Tensor, group: int, bits: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unsigned levels (outputs, inputs), scales and zero points (outputs, groups)."""
    groups = matrix.reshape(len(matrix), -1, group)
    most, half = 2**bits - 1, 2 ** (bits - 1)
    if symmetric:
        scales = groups.abs().amax(-1) / (half - 1)
        zeros = torch.full_like(scales, half)
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = (high - low) / most
        zeros = (-low / scales.half().float()).round().clamp(1, most)
    scales = scales.half().float()
    levels = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, most)
    return levels.reshape(matrix.shape), scales, zeros


def stands_for(levels: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    groups = levels.reshape(*scales.shape, -1)
    return ((groups - zeros[..., None]) * scales[..., None]).reshape(levels.shape)


def fp8_of_tensor(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = matrix.abs().amax() / 448
    stored = (matrix / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale.reshape(1)}, stored.float() * scale


def fp8_of_channels(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = matrix.abs().amax(1, keepdim=True) / 448
    stored = (matrix / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def fp8_of_blocks(matrix: torch.Tensor, side: int = 32) -> tuple[Tensors, torch.Tensor]:
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows // side, side, columns // side, side)
    scales = blocks.abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(side, 0).repeat_interleave(side, 1)
    stored = (matrix / spread).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scales}, stored.float() * spread


def int8_of_channels(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = matrix.abs().amax(1, keepdim=True) / 127
    stored = (matrix / scale).round().clamp(-128, 127).to(torch.int8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def packed(bits: int, symmetric: bool, group: int = 32) -> Quantize:
    def quantize(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        levels, scales, zeros = in_steps(matrix, group, bits, symmetric)
        stored = {
            "weight_packed": words(levels, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(matrix.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = words(zeros.t().contiguous(), bits).t().contiguous()
        return stored, stands_for(levels, scales, zeros)

    return quantize


def awq(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    levels, scales, zeros = in_steps(matrix, 32, 4, symmetric=False)

    def ordered(of_outputs: torch.Tensor) -> torch.Tensor:
        """(outputs, anything) as words of eight outputs in AWQ's order."""
        rows = of_outputs.t()
        return words(rows.reshape(len(rows), -1, 8)[:, :, AWQ_ORDER].reshape(rows.shape), 4)

    stored = {"qweight": ordered(levels), "qzeros": ordered(zeros), "scales": scales.t().half().contiguous()}
    return stored, stands_for(levels, scales, zeros)


def gptq(bits: int = 4, symmetric: bool = False, version: int = 1, is_scattered: bool = False) -> Quantize:
    def quantize(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        inputs = matrix.shape[1]
        order = torch.randperm(inputs) if is_scattered else torch.arange(inputs)
        levels, scales, zeros = in_steps(matrix[:, order], 32, bits, symmetric)
        values, groups = torch.empty_like(matrix), torch.empty(inputs, dtype=torch.int32)
        back = torch.empty_like(levels)
        values[:, order], back[:, order] = stands_for(levels, scales, zeros), levels
        groups[order] = (torch.arange(inputs) // 32).to(torch.int32)
        stored = {
            "qweight": words(back, bits).t().contiguous(),
            "qzeros": words((zeros - (1 if version == 1 else 0)).t().contiguous(), bits),
            "scales": scales.t().half().contiguous(),
            "g_idx": groups,
        }
        return stored, values

    return quantize


def _nearest_e2m1(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers[..., None] - E2M1).abs().argmin(-1)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8)


def mxfp4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of codes, exponents for each 32 inputs, and what they stand for."""
    groups = matrix.reshape(*matrix.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    codes = _nearest_e2m1(groups / torch.exp2(exponents)[..., None])
    values = (E2M1[codes] * torch.exp2(exponents)[..., None]).reshape(matrix.shape)
    return _pairs(codes), (exponents + 127).to(torch.uint8), values


def mxfp4_packed(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    pairs, exponents, values = mxfp4(matrix)
    return {"weight_packed": pairs.reshape(len(matrix), -1), "weight_scale": exponents}, values


def nvfp4_packed(matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    groups = matrix.reshape(len(matrix), -1, 16)
    whole = 448 * 6 / matrix.abs().amax()
    scales = (groups.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    sizes = scales.float() / whole
    codes = _nearest_e2m1(groups / sizes[..., None])
    values = (E2M1[codes] * sizes[..., None]).reshape(matrix.shape)
    stored = {
        "weight_packed": _pairs(codes).reshape(len(matrix), -1),
        "weight_scale": scales,
        "weight_global_scale": whole.reshape(1),
    }
    return stored, values


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


# What people have on disk -> `quantization_config`, and how a matrix is stored.
FORMATS: dict[str, tuple[dict[str, Any], Quantize]] = {
    "fp8, a scale for the tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_of_tensor),
    "fp8, a scale for each channel": ({"quant_method": "fbgemm_fp8"}, fp8_of_channels),
    "fp8, a scale for each block": (
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]},
        fp8_of_blocks,
    ),
    "compressed-tensors, fp8": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        fp8_of_channels,
    ),
    "compressed-tensors, int8": (
        compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
        int8_of_channels,
    ),
    "compressed-tensors, 4 bits": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
        packed(4, symmetric=True),
    ),
    "compressed-tensors, 4 bits with zero points": (
        compressed("pack-quantized", num_bits=4, type="int", symmetric=False, group_size=32),
        packed(4, symmetric=False),
    ),
    "compressed-tensors, 8 bits packed": (
        compressed("pack-quantized", num_bits=8, type="int", group_size=32),
        packed(8, symmetric=True),
    ),
    "compressed-tensors, mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4, type="float"), mxfp4_packed),
    "compressed-tensors, nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), nvfp4_packed),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq()),
    "gptq, symmetric": ({"quant_method": "gptq", "bits": 4, "sym": True}, gptq(symmetric=True)),
    "gptq, second version": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        gptq(version=2),
    ),
    "gptq, 8 bits": ({"quant_method": "gptq", "bits": 8}, gptq(bits=8)),
    "gptq, scattered groups": (
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
        gptq(is_scattered=True),
    ),
}


@torch.no_grad()
def quantize(model: PreTrainedModel, directory: Path, name: str) -> Path:
    """Writes the model's checkpoint in the format, and rounds the model itself to what is written."""
    description, store = FORMATS[name]
    torch.manual_seed(1)
    model.save_pretrained(directory)
    tensors: Tensors = {}
    for key, parameter in model.state_dict().items():
        if key.endswith("_proj.weight") and parameter.ndim == 2:
            stored, values = store(parameter.float())
            tensors |= {f"{key.removesuffix('weight')}{part}": value for part, value in stored.items()}
            parameter.copy_(values)
        else:
            tensors[key] = parameter.clone()
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    write(directory, tensors, description)
    return directory


def write(directory: Path, tensors: Tensors, description: dict[str, Any]) -> None:
    save_file(tensors, directory / "model.safetensors")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": description}))
