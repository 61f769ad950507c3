"""Rotary position embedding: how fast each pair of a head turns.

Checkpoints rotate dimension i of a head together with dimension i + half. The rows of the query and key
weights are reordered once at loading so that such a pair lies side by side and is one complex number; scores
do not change, because queries and keys are reordered alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.checkpoint import unusable
from python_backend.engine.models.config import Config, unsupported
from python_backend.engine.models.decoder import Rope


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """One rope of a model in either spelling: `rope_parameters`, or the older `rope_scaling`."""

    kind: str
    theta: float
    rotary_dim: int
    max_positions: int
    original_positions: int
    sequence_tokens: int | None
    scaling: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config, head_dim: int) -> RopeSettings:
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if any(isinstance(value, Mapping) for value in scaling.values()):
            raise unsupported(
                f"rope_parameters differ by layer ({', '.join(scaling)}) in a family without that"
            )
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        share = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        max_positions = config["max_position_embeddings"]
        original = config.get("original_max_position_embeddings")
        return cls(
            # Phi-3's first files call it su or yarn.
            kind="longrope" if scaling.get("short_factor") else kind,
            theta=float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rotary_dim=int(head_dim * share),
            max_positions=max_positions,
            original_positions=original or scaling.get("original_max_position_embeddings") or max_positions,
            sequence_tokens=config.sequence_tokens,
            scaling=scaling,
        )

    def __getitem__(self, key: str) -> Any:
        if self.scaling.get(key) is None:
            raise unusable(f"rope scaling {self.kind!r} of config.json lacks {key}")
        return self.scaling[key]

    @property
    def powers(self) -> NDArray[np.float64]:
        """θ to the power of 0 .. 1: how many positions a pair takes for a radian."""
        turns: NDArray[np.float64] = self.theta ** (np.arange(0, self.rotary_dim, 2) / self.rotary_dim)
        return turns

    @property
    def extension(self) -> float:
        """By what factor the context was stretched."""
        return float(self.scaling.get("factor") or self.max_positions / self.original_positions)

    @property
    def uses_long_factors(self) -> bool:
        """Long factors are for sequences beyond the original context, and spoil the short ones.

        One set must serve all sequences, for keys in the cache are turned already: the long one if the
        operator asked for such sequences.
        """
        return self.sequence_tokens is not None and self.sequence_tokens > self.original_positions

    @property
    def usable_positions(self) -> int:
        is_short = self.kind == "longrope" and not self.uses_long_factors
        if is_short and self["short_factor"] != self["long_factor"]:
            return min(self.max_positions, self.original_positions)
        if self.kind == "yarn":  # model cards give the factor, and leave max_position_embeddings as it was
            return max(int(self.max_positions), int(self.original_positions * self.extension))
        return int(self.max_positions)


def make_rope(settings: RopeSettings) -> Rope:
    if settings.kind not in _KINDS:
        raise unsupported(f"rope scaling is {settings.kind!r}; supported: {', '.join(_KINDS)}")
    inverse_frequencies, magnitude = _KINDS[settings.kind](settings)
    return Rope(inverse_frequencies.astype(np.float32), magnitude)


def no_rope(head_dim: int) -> Rope:
    """Turns nothing."""
    return Rope(np.zeros(head_dim // 2, dtype=np.float32))


_Turning = tuple[NDArray[np.float64], float]


def _default(settings: RopeSettings) -> _Turning:
    return 1.0 / settings.powers, 1.0


def _linear(settings: RopeSettings) -> _Turning:
    return 1.0 / (float(settings["factor"]) * settings.powers), 1.0


def _llama3(settings: RopeSettings) -> _Turning:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = (float(settings[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    plain = 1.0 / settings.powers
    turns = settings.original_positions * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - kept) * plain / factor + kept * plain, 1.0


def _yarn(settings: RopeSettings) -> _Turning:
    """Like llama3's, but the ramp runs over the pairs, and scores are scaled as well."""
    factor, scaling = settings.extension, settings.scaling

    def pair_that_turns(times: float) -> float:
        ratio = settings.original_positions / (times * 2 * math.pi)
        return settings.rotary_dim * math.log(ratio) / (2 * math.log(settings.theta))

    low = pair_that_turns(scaling.get("beta_fast") or 32)
    high = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, settings.rotary_dim - 1)
    width = high - low or 0.001
    stretched = np.clip((np.arange(settings.rotary_dim // 2) - low) / width, 0, 1)
    plain = 1.0 / settings.powers
    return plain / factor * stretched + plain * (1 - stretched), _yarn_magnitude(factor, scaling)


def _yarn_magnitude(factor: float, scaling: Mapping[str, Any]) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(scaling["mscale"]) / scale(scaling["mscale_all_dim"])
    return scale(1.0)


def _longrope(settings: RopeSettings) -> _Turning:
    """Every pair has a factor of its own (Phi-3)."""
    factors = np.array(settings["long_factor" if settings.uses_long_factors else "short_factor"])
    if factors.shape != settings.powers.shape:
        raise unusable(
            f"rope scaling has {len(factors)} factors; a head has {len(settings.powers)} pairs that turn"
        )
    magnitude = settings.scaling.get("attention_factor")
    if magnitude is None:
        stretch = math.log(settings.extension) / math.log(settings.original_positions)
        magnitude = math.sqrt(1 + stretch) if settings.extension > 1 else 1.0
    return 1.0 / (factors * settings.powers), float(magnitude)


_KINDS: dict[str, Callable[[RopeSettings], _Turning]] = {
    "default": _default,
    "linear": _linear,
    # Changes nothing within the model's own positions, and there are no others here.
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def pair_up(rows: NDArray[Any], heads: int, rotary_dim: int) -> NDArray[Any]:
    """Reorders a query or key weight (bias, norm) so that dimensions that turn together are neighbours."""
    columns = rows.shape[1:]
    by_head = rows.reshape(heads, -1, *columns)
    halves = by_head[:, :rotary_dim].reshape(heads, 2, rotary_dim // 2, *columns)
    turning = halves.swapaxes(1, 2).reshape(heads, rotary_dim, *columns)
    paired: NDArray[Any] = np.concatenate((turning, by_head[:, rotary_dim:]), axis=1)
    return paired.reshape(rows.shape)
