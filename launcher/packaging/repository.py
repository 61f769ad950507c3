"""Model repositories on disk: reads and sets the parameters in config.pbtxt, and writes a run's own copy."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from google.protobuf import text_format

from launcher.failure import Unusable
from router.triton.protocol import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tritonclient.grpc.model_config_pb2 import ModelConfig

Parameters = dict[str, str]
PIPELINE = "ensemble"
ENGINE = "tensorrt_llm"
EMBEDDINGS = "embeddings"
CONFIG = "config.pbtxt"


class RepositoryError(Unusable):
    """A model repository is missing or one of its configs cannot be read."""


def write_repository(
    source: Path, target: Path, parameters: Mapping[str, Parameters], left_out: Collection[str] = ()
) -> None:
    """Copy every model of `source` but those left out; `parameters` gives what to set in a model's config."""
    found = sorted(config.parent for config in source.glob(f"*/{CONFIG}"))
    models = [model for model in found if model.name not in left_out]
    if not models:
        raise RepositoryError(f"there is no model in {source}: inflight runs from its source checkout")
    target.mkdir(parents=True)
    for model in models:
        shutil.copytree(model, target / model.name, ignore=shutil.ignore_patterns("__pycache__"))
        for copied in (target / model.name, *(target / model.name).rglob("*")):
            copied.chmod(copied.stat().st_mode & 0o700)  # modes come with the copy
        set_parameters(target / model.name / CONFIG, parameters.get(model.name, {}))


def open_releases(state_dir: Path, built_in: Collection[str]) -> Path:
    """The repository of the releases, which outlives the run; nothing in it is loaded when Triton starts.

    Broken models there do not keep it from starting; one that is called as one of the stack's own does.
    """
    repository = state_dir / "releases" / "repository"
    repository.mkdir(parents=True, exist_ok=True)
    for name in sorted(built_in):
        if (repository / name).exists():
            raise RepositoryError(
                f"{repository / name} has the name of one of the stack's own models: move it elsewhere"
            )
    return repository


def set_parameters(config_path: Path, values: Parameters) -> None:
    if not values:
        return
    config = read_config(config_path)
    for key, value in values.items():
        config.parameters[key].string_value = value
    config_path.write_text(text_format.MessageToString(config), encoding="utf-8")


def read_parameters(config_path: Path) -> Parameters:
    return {key: value.string_value for key, value in read_config(config_path).parameters.items()}


def read_config(config_path: Path) -> ModelConfig:
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(config_path.read_text(encoding="utf-8"), config)
    except text_format.ParseError as error:
        raise RepositoryError(f"{config_path} cannot be read: {error}") from error
    return config
