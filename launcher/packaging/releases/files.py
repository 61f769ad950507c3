"""Writes the Triton models of a release, moves them into the repository whole, and takes them out again."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from launcher.packaging.models.checkpoint import CheckpointError
from launcher.packaging.releases.checks import is_version
from launcher.packaging.releases.directories import WORK_PREFIX
from launcher.packaging.repository import CONFIG, ENGINE, PIPELINE, read_config
from router.core.manifest import entry_name, member_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from launcher.packaging.releases.directories import ReleaseDirectories
    from launcher.packaging.repository import Parameters
    from router.core.manifest import Manifest

STEPS = ("preprocessing", ENGINE, "postprocessing")
# Of a LoRA adapter, as PEFT writes it; the engine looks for them there in its release.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_READ_ONLY = 0o400  # for the owner alone, like all that is kept
_MAY_RUN = 0o100
_NOT_OF_THE_MODEL = ("__pycache__",)


def write_pipeline(
    project_root: Path, into: Path, model: str, version: int, parameters: Mapping[str, Parameters]
) -> tuple[str, ...]:
    """The three steps and the ensemble that is pinned to them; `parameters` are set by step."""
    names = {step: member_name(model, version, step) for step in STEPS}
    for step, name in names.items():
        source = project_root / "model_repository" / step
        config = with_parameters(read_config(source / CONFIG), parameters.get(step, {}))
        copy_model(source, 1, into / name, version, config)
    source = project_root / "ensembles" / PIPELINE
    config = read_config(source / CONFIG)
    for each in config.ensemble_scheduling.step:
        each.model_name, each.model_version = names[each.model_name], version
    entry = entry_name(model, version)
    copy_model(source, 1, into / entry, version, config)
    return (*names.values(), entry)


def copy_adapter(adapter: Path, into: Path) -> None:
    into.mkdir()
    for name in ADAPTER_FILES:
        shutil.copyfile(adapter.expanduser() / name, into / name)
        (into / name).chmod(_READ_ONLY)


def write_one(
    source: Path, source_version: int, config: ModelConfig, into: Path, model: str, version: int
) -> tuple[str, ...]:
    """A release that is one Triton model."""
    entry = entry_name(model, version)
    copy_model(source, source_version, into / entry, version, config)
    return (entry,)


def with_parameters(config: ModelConfig, values: Parameters) -> ModelConfig:
    for key, value in values.items():
        config.parameters[key].string_value = value
    return config


def copy_model(source: Path, source_version: int, target: Path, version: int, config: ModelConfig) -> None:
    """All of it but other versions; there is one version directory, and the config has the new name."""
    (target / str(version)).mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if entry.name == CONFIG or entry.name in _NOT_OF_THE_MODEL:
            continue
        if is_version(entry):
            if int(entry.name) == source_version:
                _copy(entry, target / str(version), (source.resolve(),))
        else:
            _copy(entry, target / entry.name, (source.resolve(),))
    config.name = target.name
    config.ClearField("version_policy")
    (target / CONFIG).write_text(text_format.MessageToString(config), encoding="utf-8")
    for path in files_in(target):
        path.chmod(_READ_ONLY | path.stat().st_mode & _MAY_RUN)


def _copy(source: Path, target: Path, inside: tuple[Path, ...]) -> None:
    """What links lead to, unless that is one of the directories it is `inside` of."""
    if source.is_file():
        shutil.copyfile(source, target)
        target.chmod(source.stat().st_mode & 0o700)  # a model may bring a program of its own
    elif source.is_dir():
        place = source.resolve()
        if any(outer == place or place in outer.parents for outer in inside):
            raise CheckpointError(f"{source} links back to a directory that contains it")
        target.mkdir(exist_ok=True)
        for entry in sorted(source.iterdir()):
            if entry.name not in _NOT_OF_THE_MODEL:
                _copy(entry, target / entry.name, (*inside, place))
    else:
        raise CheckpointError(f"{source} is neither a file nor a directory, and cannot be part of a release")


def files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@contextmanager
def work_dir(directories: ReleaseDirectories) -> Iterator[Path]:
    """For work in progress; removes what a killed process left. The caller holds the lock."""
    for abandoned in directories.root.glob(f"{WORK_PREFIX}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=directories.root) as directory:
        yield Path(directory)


@contextmanager
def moved_in(work: Path, directories: ReleaseDirectories, manifest: Manifest) -> Iterator[None]:
    """The entry comes last, and all goes out again when what follows fails."""
    take_out(directories, manifest)  # what one has left who was killed right here: the store does not know it
    try:
        for model in directories.models_of(manifest):
            os.rename(work / model.name, model)
        written = work / "manifest.json"
        written.write_text(manifest.to_json(), encoding="utf-8")
        written.chmod(_READ_ONLY)
        os.rename(written, directories.manifest_of(manifest))
        yield
    except BaseException:
        take_out(directories, manifest)
        raise


def take_out(directories: ReleaseDirectories, manifest: Manifest) -> None:
    """Out of the repository first, one rename each, the entry before what it needs; then deleted."""
    directories.manifest_of(manifest).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=directories.root) as directory:
        for model in reversed(directories.models_of(manifest)):
            if model.exists():
                os.rename(model, Path(directory) / model.name)
