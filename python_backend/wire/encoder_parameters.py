"""The `parameters` of the `embeddings` model's config.pbtxt: read and checked, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from .parameters import refusal

_GPU_MEMORY_SHARE = "0.1"
# What products can be computed in, by the device; the first is what `auto` means.
_PRECISIONS = {"cpu": ("fp32", "int8"), "cuda": ("bf16",)}
_WHERE = {"cpu": "an encoder on the CPU", "cuda": "device is cuda, where an encoder computes in bf16"}


@dataclass(frozen=True, slots=True)
class EncoderParameters:
    """Each field is one key; `threads` is None for half of the cores."""

    threads: int | None
    device: str
    gpu_memory_share: float
    inflight_precision: str

    @property
    def precision(self) -> str:
        asked = self.inflight_precision
        return _PRECISIONS[self.device][0] if asked == "auto" else asked


ENCODER_KEYS = tuple(field.name for field in fields(EncoderParameters))


def parse_encoder_parameters(raw: Mapping[str, str]) -> EncoderParameters:
    """Other keys of the config are not looked at."""
    device = raw.get("device") or "cpu"
    if device not in _PRECISIONS:
        raise refusal("device", device, "cpu or cuda, or nothing for cpu")
    precision = raw.get("inflight_precision") or "auto"
    allowed = ("auto", *_PRECISIONS[device])
    if precision not in allowed:
        raise refusal("inflight_precision", precision, f"{', '.join(allowed)} ({_WHERE[device]})")
    share = _share(raw.get("gpu_memory_share") or _GPU_MEMORY_SHARE)
    return EncoderParameters(parse_threads(raw), device, share, precision)


def parse_threads(raw: Mapping[str, str]) -> int | None:
    value = raw.get("threads", "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 256):
        raise refusal("threads", value, "1 to 256, or nothing for half of the cores")
    return int(value)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise refusal("gpu_memory_share", value, "above 0, at most 1")
    return share
