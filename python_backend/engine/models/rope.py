"""Rotary position embedding, as one complex product.

Checkpoints rotate dimension i of a head together with dimension i + half. The rows of the query and key
weights are reordered once at loading so that such a pair lies side by side and is one complex number; scores
do not change, because queries and keys are reordered alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from python_backend.engine.loader import unusable
from python_backend.wire.errors import ErrorKind, InflightError

_KNOWN = ("default", "linear", "llama3")


def inverse_frequencies(config: dict[str, Any], head_dim: int) -> torch.Tensor:
    """How fast each pair of a head turns, with the scaling that config.json asks for."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    plain: torch.Tensor = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    try:
        if kind == "default":
            return plain
        if kind == "linear":
            return plain / float(scaling["factor"])
        if kind == "llama3":
            return _llama3(plain, scaling)
    except KeyError as error:
        raise unusable(f"rope scaling {kind!r} of config.json lacks {error.args[0]}") from error
    raise InflightError(
        ErrorKind.UNSUPPORTED, f"rope scaling is {kind!r}; this engine knows {', '.join(_KNOWN)}"
    )


def _llama3(plain: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns: torch.Tensor = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / factor + kept * plain


def pair_up(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders a query or key weight (or bias) so that dimensions that turn together are neighbours."""
    halves = rows.view(heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def rotation(inverse_frequencies: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The complex factors by which every head of a row turns: (rows, 1, head_dim / 2)."""
    angles = positions[:, None, None].float() * inverse_frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate_(heads: torch.Tensor, factors: torch.Tensor) -> None:
    """Turns (rows, heads, head_dim) in place."""
    rows, count, head_dim = heads.shape
    torch.view_as_complex(heads.view(rows, count, head_dim // 2, 2)).mul_(factors)
