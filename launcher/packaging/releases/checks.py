"""Finds out what is wrong with a checkpoint or a Triton model before anything is made of it."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from launcher.packaging.models.checkpoint import CheckpointError, missing_weights
from launcher.packaging.repository import CONFIG, read_config

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tritonclient.grpc.model_config_pb2 import ModelConfig

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LENGTH_BYTES = 8
# It becomes part of a command line and of file names.
_GROUP_NAME = re.compile(r"[A-Za-z0-9._-]*")
# How older configs, and those that leave it to Triton, say which backend they need.
_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_OF_FILE = {
    "model.py": "python",
    "model.onnx": "onnxruntime",
    "model.plan": "tensorrt",
    "model.pt": "pytorch",
}

_FILE_OF = {"python": "model.py", "onnxruntime": "model.onnx"}


def weights_files(directory: Path) -> list[Path]:
    """The safetensors files that the engine will read, all of them there."""
    if missing := missing_weights(directory):
        raise CheckpointError(f"{directory} is not a whole checkpoint: it has no {', no '.join(missing)}")
    if not (directory / INDEX).is_file():
        if not (directory / SINGLE).is_file():
            raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX}")
        return [directory / SINGLE]
    shards = set(read_json(directory / INDEX)["weight_map"].values())
    if any(not isinstance(shard, str) or "/" in shard for shard in shards):
        raise CheckpointError(f"{directory / INDEX} names weights outside its own directory")
    return [directory / shard for shard in sorted(shards)]


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content


def count_weights(path: Path) -> int:
    """How many numbers a safetensors file holds; refuses one that is not as long as its header says."""
    size_bytes = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= size_bytes - _LENGTH_BYTES:
                raise ValueError("it does not begin with a safetensors header")
            header = json.loads(file.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end_bytes = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
        count = sum(math.prod(map(int, tensor["shape"])) for tensor in tensors)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    expected_bytes = _LENGTH_BYTES + length + end_bytes
    if size_bytes != expected_bytes:
        which = "truncated" if size_bytes < expected_bytes else "longer than expected"
        raise CheckpointError(
            f"{path} is {which}: it has {size_bytes:,} bytes, and its header says {expected_bytes:,}"
        )
    return count


def check_triton_model(
    directory: Path, version: int, backends: Collection[str], may_bring_backend: bool = True
) -> ModelConfig:
    """Its config, if a Triton with these backends can load that version of it."""
    config = read_config(directory / CONFIG)
    folder = directory / str(version)
    if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
        raise CheckpointError(
            f"{directory / CONFIG} is an ensemble, whose steps are models of their own: add those instead"
        )
    for group in config.instance_group:
        if not _GROUP_NAME.fullmatch(group.name):
            raise CheckpointError(
                f"{directory / CONFIG} has an instance_group with the name {group.name!r}, with which Triton "
                "cannot start it; allowed: letters, digits, '.', '_' and '-', or no name"
            )
    backend = backend_of(config, folder)
    if config.runtime and not may_bring_backend:
        raise CheckpointError(
            f"{directory / CONFIG} names the library {config.runtime!r} as its runtime: a model from an "
            "address cannot bring its own backend"
        )
    brings_its_own = may_bring_backend and any(
        (place / f"libtriton_{backend}.so").is_file() for place in (folder, directory)
    )
    if backend not in backends and not brings_its_own:
        there = ", ".join(sorted(backends))
        raise CheckpointError(
            f"{directory / CONFIG} needs the backend {backend!r}, which this Triton does not have; "
            f"it has: {there}"
        )
    needed = _FILE_OF.get(backend)
    file = folder / (config.default_model_filename or needed or "")
    if needed is not None and not file.is_file():
        raise CheckpointError(f"{directory} is not a whole model: it has no {version}/{file.name}")
    return config


def backend_of(config: ModelConfig, folder: Path) -> str:
    if config.backend:
        return str(config.backend)
    if config.platform:
        return str(_OF_PLATFORM.get(config.platform, config.platform))
    for name, backend in _OF_FILE.items():
        if (folder / name).exists():
            return backend
    raise CheckpointError(f"{folder.parent / CONFIG} does not say which backend it needs")


def newest_version(directory: Path) -> int:
    """Of a Triton model: the version directory with the highest number."""
    found = [int(entry.name) for entry in directory.iterdir() if is_version(entry)]
    if not found:
        raise CheckpointError(
            f"{directory} has no version directory with a model in it, such as {directory.name}/1"
        )
    return max(found)


def is_version(entry: Path) -> bool:
    """As Triton has it: a number that begins with 0 is a name like any other."""
    return entry.name.isascii() and entry.name.isdigit() and entry.name[0] != "0" and entry.is_dir()
