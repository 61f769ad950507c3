"""A checkpoint of the Llama-3.1-8B shape whose products are quantised, written at once from random levels.

What it says is nonsense; what it weighs, and how it has to be read, is what people have on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.llama_8b import CONFIG, write_checkpoint

Array = NDArray[Any]
# The ends of names -> safetensors' word for the type, and the array.
Parts = dict[str, tuple[str, Array]]
_GROUP = 128
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "version": "gemm", "zero_point": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "desc_act": False, "sym": True}


def _compressed(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_W4A16 = _compressed(
    "pack-quantized",
    {"num_bits": 4, "type": "int", "strategy": "group", "group_size": _GROUP, "symmetric": True},
    None,
)
_FP8 = _compressed(
    "float-quantized",
    {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True},
)
_FP8_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}


class _Dice:
    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def words(self, *shape: int) -> Array:
        return self._chance.integers(-(2**31), 2**31, shape, np.int64).astype("<i4")

    def halfs(self, *shape: int) -> Array:
        """Scales that make weights of a usual size of levels that are 4 on average."""
        return (self._chance.random(shape, np.float32) * 0.004 + 0.002).astype("<f2")

    def e4m3(self, *shape: int) -> Array:
        codes = self._chance.integers(0, 256, shape, np.uint8)
        return np.where((codes & 0x7F) > 0x70, codes & 0x87, codes).astype(np.uint8)

    def bf16(self, *shape: int) -> Array:
        numbers = self._chance.standard_normal(shape, np.float32) * np.float32(0.02)
        return (numbers.view(np.uint32) >> 16).astype("<u2")


def _awq(dice: _Dice, outputs: int, inputs: int) -> Parts:
    return {
        "qweight": ("I32", dice.words(inputs, outputs // 8)),
        "qzeros": ("I32", dice.words(inputs // _GROUP, outputs // 8)),
        "scales": ("F16", dice.halfs(inputs // _GROUP, outputs)),
    }


def _gptq(dice: _Dice, outputs: int, inputs: int) -> Parts:
    sevens = np.full((inputs // _GROUP, outputs // 8), 0x77777777, "<i4")  # 8, stored less one
    return {
        "qweight": ("I32", dice.words(inputs // 8, outputs)),
        "qzeros": ("I32", sevens),
        "scales": ("F16", dice.halfs(inputs // _GROUP, outputs)),
        "g_idx": ("I32", (np.arange(inputs) // _GROUP).astype("<i4")),
    }


def _w4a16(dice: _Dice, outputs: int, inputs: int) -> Parts:
    return {
        "weight_packed": ("I32", dice.words(outputs, inputs // 8)),
        "weight_scale": ("F16", dice.halfs(outputs, inputs // _GROUP)),
        "weight_shape": ("I64", np.array([outputs, inputs], "<i8")),
    }


def _fp8(dice: _Dice, outputs: int, inputs: int) -> Parts:
    scales = np.full((outputs, 1), 0.0002, "<f4")
    return {"weight": ("F8_E4M3", dice.e4m3(outputs, inputs)), "weight_scale": ("F32", scales)}


def _fp8_blocks(dice: _Dice, outputs: int, inputs: int) -> Parts:
    scales = np.full((outputs // 128, inputs // 128), 0.0002, "<f4")
    return {"weight": ("F8_E4M3", dice.e4m3(outputs, inputs)), "weight_scale_inv": ("F32", scales)}


FORMATS: dict[str, tuple[dict[str, Any], Callable[[_Dice, int, int], Parts]]] = {
    "w4a16": (_W4A16, _w4a16),
    "awq": (_AWQ, _awq),
    "gptq": (_GPTQ, _gptq),
    "fp8": (_FP8, _fp8),
    "fp8-blocks": (_FP8_BLOCKS, _fp8_blocks),
}


def write_quantized(directory: Path, name: str, config: dict[str, Any] = CONFIG) -> Path:
    """One file a layer, and one for the rest, with an index of them."""
    description, store = FORMATS[name]
    write_checkpoint(directory)
    settings = {**config, "quantization_config": description}
    (directory / "config.json").write_text(json.dumps(settings))
    dice = _Dice()
    index: dict[str, str] = {}
    for number, tensors in enumerate(_files(dice, store, settings)):
        file = f"model-{number:05}.safetensors"
        _write(directory / file, tensors)
        index |= dict.fromkeys(tensors, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return directory


def _files(
    dice: _Dice, store: Callable[[_Dice, int, int], Parts], config: dict[str, Any]
) -> Iterator[dict[str, tuple[str, Array]]]:
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    products = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    ones = ("BF16", np.full(hidden, 0x3F80, "<u2"))
    yield {
        "model.embed_tokens.weight": ("BF16", dice.bf16(words, hidden)),
        "model.norm.weight": ones,
        "lm_head.weight": ("BF16", dice.bf16(words, hidden)),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors = {f"{prefix}.{norm}_layernorm.weight": ones for norm in ("input", "post_attention")}
        for name, sides in products.items():
            tensors |= {f"{prefix}.{name}.{part}": each for part, each in store(dice, *sides).items()}
        yield tensors


def _write(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with path.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).data)
