"""How a model samples when a client does not say: as its own generation_config.json advises."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_ALLOWED = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (0, 1_000_000), "repetition_penalty": (0.01, 10)}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """OpenAI's defaults, until a checkpoint says otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


def load_sampling_defaults(checkpoint_dir: Path) -> SamplingDefaults:
    defaults = SamplingDefaults()
    path = checkpoint_dir / "generation_config.json"
    if not path.is_file():
        return defaults
    try:
        advice = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        log.warning("%s is not valid JSON: OpenAI's sampling defaults are used", path.name)
        return defaults
    for name in (field.name for field in fields(SamplingDefaults)):
        value = advice.get(name) if isinstance(advice, dict) else None
        low, high = _ALLOWED[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            defaults = replace(defaults, **{name: type(getattr(defaults, name))(value)})
    return defaults
