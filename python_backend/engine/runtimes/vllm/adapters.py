"""LoRA adapters as vLLM is asked for them: it loads one when it is first named, and keeps the latest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend.engine.adapters.library import find_adapter, identity_of
from python_backend.wire.parameters import EngineParameters

# Ranks that vLLM makes room for.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class VllmAdapters:
    """`new` makes vLLM's own LoRARequest. Each content of a name has a number: vLLM goes by that."""

    def __init__(self, directory: Path, new: Callable[..., Any]) -> None:
        self._directory = directory
        self._new = new
        self._numbers: dict[tuple[str, bytes], int] = {}

    def request_for(self, name: str) -> Any:
        """Raises InflightError where there is no such adapter."""
        place = find_adapter(self._directory, name)
        number = self._numbers.setdefault((name, identity_of(place, name)), len(self._numbers) + 1)
        return self._new(lora_name=f"{name}#{number}", lora_int_id=number, lora_path=str(place))

    def numbers_of(self, name: str) -> list[int]:
        """All that it ever had; safe to ask from another thread."""
        return [number for (each, _), number in list(self._numbers.items()) if each == name]


def adapter_arguments(parameters: EngineParameters) -> dict[str, Any]:
    """Of `AsyncEngineArgs`; none where no adapters are to be served, for that costs memory from the start."""
    if not parameters.inflight_max_adapters:
        return {}
    wanted = parameters.inflight_max_adapter_rank
    rank = next((rank for rank in _RANKS if rank >= wanted), _RANKS[-1])
    return {"enable_lora": True, "max_loras": parameters.inflight_max_adapters, "max_lora_rank": rank}
