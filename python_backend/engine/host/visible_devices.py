"""Which GPUs a package may see: CUDA looks when it is first used."""

from __future__ import annotations

from math import prod

from python_backend.wire.parameters import EngineParameters


def visible_devices(visible: str | None, parameters: EngineParameters) -> str | None:
    """For CUDA_VISIBLE_DEVICES: the GPUs of the config, by their names among those visible so far.

    None leaves it as it is, where a model is spread and nobody said over which.
    """
    asked = parameters.gpu_device_ids
    if asked == (0,) and prod(parameters.parallel_sizes.values()) > 1:
        return None
    if visible is None:
        return ",".join(map(str, asked))
    names = [name.strip() for name in visible.split(",")]
    return ",".join(names[number] for number in asked if number < len(names))
