"""What `quantization_config` says of a checkpoint's weights, as one description whatever tool wrote it.

The tensors themselves tell most: which matrices are quantised, in what groups, and whether there are zero
points. This is what they do not tell, and the refusal by name of what cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from python_backend.wire.errors import ErrorKind, InflightError

Json = Mapping[str, Any]

# What is read, as the documentation lists it: quant_method -> its kinds.
READABLE = {
    "fp8": "e4m3 weights with one scale per tensor, channel or block (DeepSeek, Qwen)",
    "fbgemm_fp8": "e4m3 weights with one scale per channel",
    "compressed-tensors": "`float-quantized`, `int-quantized`, `naive-quantized`, `pack-quantized` of 4 or 8 "
    "bits (with zero points or without, `g_idx` too), `nvfp4-pack-quantized`, `mxfp4-pack-quantized`",
    "awq": "4 bits, `gemm` packing",
    "gptq": "4 or 8 bits, symmetric or not, `desc_act` too, `gptq` and `gptq_v2`",
    "mxfp4": "the experts of gpt-oss",
}
_COMPRESSED = (
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
_OTHER_RUNTIME = "inflight_runtime = vllm supports many that this engine does not"


@dataclass(frozen=True, slots=True)
class Scheme:
    """`method` is how tensors are named and packed; `bits` a weight's, where all of them have as many.

    `zero_offset` is what was taken off every stored zero point.
    """

    method: str
    label: str
    bits: int
    zero_offset: int = 0


def scheme_of(config: Json) -> Scheme | None:
    """None where weights are not quantised; raises InflightError for what cannot be read."""
    text = config.get("text_config")
    quantization = config.get("quantization_config") or (text or {}).get("quantization_config")
    if not quantization:
        return None
    method = str(quantization.get("quant_method") or "unnamed").lower()
    if method not in _PARSERS:
        known = ", ".join(READABLE)
        raise _unreadable(f"quant_method is {method!r}", f"this engine reads {known}")
    return _PARSERS[method](quantization)


def _fp8(quantization: Json) -> Scheme:
    kind = quantization.get("fmt") or "e4m3"
    if kind != "e4m3":
        raise _unreadable(f"fmt is {kind!r}", "this engine reads e4m3")
    block = quantization.get("weight_block_size")
    label = f"fp8, a scale for each {block[0]}x{block[1]}" if block else "fp8"
    return Scheme("scaled", label, 8)


def _fbgemm(quantization: Json) -> Scheme:
    return Scheme("scaled", "fp8, a scale for each channel", 8)


def _compressed(quantization: Json) -> Scheme:
    kind = quantization.get("format") or "dense"
    groups = [group for group in (quantization.get("config_groups") or {}).values() if group]
    kinds = [kind, *(group["format"] for group in groups if group.get("format"))]
    if strange := [each for each in kinds if each not in _COMPRESSED]:
        raise _unreadable(f"format is {strange[0]!r}", f"this engine reads {', '.join(_COMPRESSED)}")
    sparsity = (quantization.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _unreadable(f"sparsity_config is {sparsity!r}", "this engine reads dense")
    if quantization.get("transform_config"):
        raise _unreadable("transform_config is set", "this engine applies no transforms")
    weights = [group["weights"] for group in groups if group.get("weights")]
    bits = [int(each.get("num_bits") or 8) for each in weights]
    if strange_bits := sorted(set(bits) - {4, 8}):
        raise _unreadable(f"num_bits is {strange_bits[0]}", "this engine reads 4 and 8")
    return Scheme("compressed", f"compressed-tensors {kind}", min(bits, default=8))


def _awq(quantization: Json) -> Scheme:
    _require_bits(quantization, 4)
    version = str(quantization.get("version") or "gemm").lower()
    if version != "gemm":
        raise _unreadable(f"version is {version!r}", "this engine reads gemm")
    return Scheme("awq", "awq, 4 bits", 4)


def _gptq(quantization: Json) -> Scheme:
    bits = _require_bits(quantization, 4, 8)
    kind = quantization.get("checkpoint_format") or "gptq"
    if kind not in ("gptq", "gptq_v2"):
        raise _unreadable(f"checkpoint_format is {kind!r}", "this engine reads gptq and gptq_v2")
    return Scheme("gptq", f"gptq, {bits} bits", bits, zero_offset=1 if kind == "gptq" else 0)


def _mxfp4(quantization: Json) -> Scheme:
    return Scheme("mxfp4", "mxfp4 experts", 4)


def _require_bits(quantization: Json, *allowed: int) -> int:
    bits = int(quantization.get("bits") or quantization.get("w_bit") or 4)
    if bits not in allowed:
        raise _unreadable(f"bits is {bits}", f"this engine reads {' and '.join(map(str, allowed))}")
    return bits


def _unreadable(found: str, allowed: str) -> InflightError:
    return InflightError(
        ErrorKind.UNSUPPORTED, f"quantization_config: {found}; {allowed}, and {_OTHER_RUNTIME}"
    )


_PARSERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
