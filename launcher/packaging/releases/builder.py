"""Makes the Triton models of a release and its description, in a directory of their own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from launcher.bundle import bundled_with
from launcher.packaging.engine_task import prepare_engine
from launcher.packaging.models.checkpoint import CheckpointError, check_template
from launcher.packaging.models.fingerprint import combined
from launcher.packaging.releases.checks import check_triton_model, newest_version
from launcher.packaging.releases.file_marks import mark_files
from launcher.packaging.releases.files import (
    copy_adapter,
    files_in,
    with_parameters,
    write_one,
    write_pipeline,
)
from launcher.packaging.releases.needs import needs_of
from launcher.packaging.releases.sources import find_checkpoint
from launcher.packaging.remote.address import is_elsewhere
from launcher.packaging.repository import CONFIG, EMBEDDINGS, ENGINE, read_config, read_parameters
from launcher.packaging.triton_runtime import triton_backends
from launcher.settings import (
    ADAPTERS_DIR,
    ENGINE_KEYS_OF_OURS,
    PACKED_CACHE,
    RUNTIMES_DIR,
    adapters_dir,
    packed_cache_dir,
    runtimes_dir,
)
from python_backend.wire.encoder_parameters import ENCODER_KEYS, parse_encoder_parameters
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import parse_engine_parameters
from router.core.manifest import Kind, Manifest, Needs, entry_name, member_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from launcher.console import StackConsole
    from launcher.packaging.releases.sources import CheckpointSource
    from launcher.packaging.repository import Parameters
    from launcher.settings import Settings
    from router.core.manifest import FileMark


@dataclass(frozen=True)
class ReleaseRequest:
    """What the user asked for; `given` are parameters from the command line.

    A `path` that was an address is where it has been fetched to, and `source` the address of those bytes.
    `base` is the release that an adapter is made for. With `runs_code` the operator allows files of an
    address that are not data.
    """

    model: str
    path: str
    version: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    from_version: int | None = None
    notes: str = ""
    source: str = ""
    base: Manifest | None = None
    runs_code: bool = False


@dataclass(frozen=True)
class ReleaseBuilder:
    """`prepare_command` packs weights and compiles; tests have a stand-in for it."""

    order: ReleaseRequest
    settings: Settings
    console: StackConsole
    project_root: Path
    prepare_command: list[str]

    def make(self, kind: Kind, version: int, work: Path) -> Manifest:
        made: Callable[[int, Path], Manifest] = {
            Kind.TEXT: self._text,
            Kind.EMBEDDINGS: self._embeddings,
            Kind.TENSORS: self._tensors,
        }[kind]
        if self.order.base is not None:
            return replace(self._adapter(self.order.base, version, work), source=self.order.source)
        manifest = replace(made(version, work), source=self.order.source)
        if kind is Kind.TENSORS:
            return manifest
        return replace(manifest, files=(*self._own_files(work), *manifest.files))

    def _text(self, version: int, work: Path) -> Manifest:
        model, settings = self.order.model, self.settings
        chosen = engine_parameters(settings, self.order.given)
        source = self._checkpoint(Kind.TEXT, chosen.get("inflight_weights") != "random")
        checkpoint = source.checkpoint
        with self.console.stage("Rendering the chat template"):
            check_template(checkpoint.directory)
        paths = {
            "gpt_model_path": str(checkpoint.model_path),
            "tokenizer_dir": str(checkpoint.directory),
            PACKED_CACHE: str(
                Path(chosen.pop(PACKED_CACHE, packed_cache_dir(settings))).expanduser().absolute()
            ),
            RUNTIMES_DIR: str(Path(chosen.pop(RUNTIMES_DIR, runtimes_dir(settings))).expanduser().absolute()),
            ADAPTERS_DIR: adapters_dir(settings),
        }
        manifest = self._of_checkpoint(source, version)
        chosen = self._prepared(chosen, paths)
        tokenizer = {"tokenizer_dir": str(checkpoint.directory)}
        parameters = {"preprocessing": tokenizer, "postprocessing": tokenizer, ENGINE: {**chosen, **paths}}
        members = write_pipeline(self.project_root, work, model, version, parameters)
        return replace(
            manifest,
            members=members,
            engine=member_name(model, version, ENGINE),
            parameters=chosen,
            needs=needs_of(source, chosen),
        )

    def _prepared(self, chosen: Parameters, paths: Parameters) -> Parameters:
        """What was chosen, and what the engine makes of it here, so that later defaults do not change it."""
        config = self.project_root / "model_repository" / ENGINE / CONFIG
        told = {**read_parameters(config), **chosen, **paths}
        return {**chosen, **prepare_engine(self.prepare_command, told, self.console).decided}

    def _embeddings(self, version: int, work: Path) -> Manifest:
        config = read_config(self.project_root / "model_repository" / EMBEDDINGS / CONFIG)
        chosen = encoder_parameters(self.settings, self.order.given)
        source = self._checkpoint(Kind.EMBEDDINGS, needs_weights=True)
        manifest = self._of_checkpoint(source, version)
        with_parameters(config, {**chosen, "checkpoint_dir": str(source.checkpoint.directory)})
        folder = self.project_root / "model_repository" / EMBEDDINGS
        members = write_one(folder, 1, config, work, self.order.model, version)
        return replace(manifest, members=members, parameters=chosen, needs=needs_of(source, {}))

    def _adapter(self, base: Manifest, version: int, work: Path) -> Manifest:
        """A copy of its files; the Triton models are its base's."""
        if self.order.given:
            raise ValueError(
                f"--set {min(self.order.given)}: an adapter has no parameters of its own; set "
                "them on its base"
            )
        name = entry_name(self.order.model, version)
        copy_adapter(Path(self.order.path), work / name)
        marks = mark_files(files_in(work / name), self.console, "Hashing the adapter")
        paths = {Path(mark.path).name: Path(mark.path) for mark in marks}
        place = Path(adapters_dir(self.settings)) / name
        return Manifest(
            self.order.model,
            version,
            Kind.TEXT,
            (base.entry,),
            engine=base.engine,
            checkpoint_dir=base.checkpoint_dir,
            weights_sha256=combined(paths, {Path(mark.path): mark.sha256 for mark in marks}),
            tokenizer_sha256=base.tokenizer_sha256,
            needs=Needs(sum(mark.bytes for mark in marks)),
            files=tuple(replace(mark, path=str(place / Path(mark.path).name)) for mark in marks),
            base=base.name,
        )

    def _tensors(self, version: int, work: Path) -> Manifest:
        folder = Path(self.order.path).expanduser().resolve()
        source_version = self.order.from_version or newest_version(folder)
        if not (folder / str(source_version)).is_dir():
            raise CheckpointError(f"{folder} has no version {source_version}")
        config = check_triton_model(
            folder, source_version, backends_of(self.project_root), not is_elsewhere(self.order.source)
        )
        with_parameters(config, dict(self.order.given))
        with self.console.stage("Copying the model"):
            members = write_one(folder, source_version, config, work, self.order.model, version)
        files = self._own_files(work)
        weights = [mark for mark in files if mark.path != f"{members[0]}/{CONFIG}"]
        names = {_name_in_any(mark.path, version): work / mark.path for mark in weights}
        hashes = {work / mark.path: mark.sha256 for mark in weights}
        return Manifest(
            self.order.model,
            version,
            Kind.TENSORS,
            members,
            weights_sha256=_with_config(combined(names, hashes), config),
            parameters=dict(self.order.given),
            needs=Needs(sum(mark.bytes for mark in weights)),
            files=files,
        )

    def _checkpoint(self, kind: Kind, needs_weights: bool) -> CheckpointSource:
        data_dir, bundled = self.settings.stack.data_dir, bundled_with(self.project_root)
        return find_checkpoint(kind, self.order.path, data_dir, self.console, needs_weights, bundled)

    def _of_checkpoint(self, source: CheckpointSource, version: int) -> Manifest:
        """Without what is still to be written."""
        paths = [*source.weights.values(), *source.tokenizer.values()]
        marks = mark_files(paths, self.console, "Hashing weights and tokenizer")
        hashes = {Path(mark.path): mark.sha256 for mark in marks}
        return Manifest(
            self.order.model,
            version,
            source.kind,
            members=(entry_name(self.order.model, version),),
            checkpoint_dir=str(source.checkpoint.directory),
            weights_sha256=combined(source.weights, hashes),
            tokenizer_sha256=combined(source.tokenizer, hashes),
            files=tuple(marks),
        )

    def _own_files(self, work: Path) -> tuple[FileMark, ...]:
        marks = mark_files(files_in(work), self.console, "Hashing the Triton models")
        return tuple(replace(mark, path=Path(mark.path).relative_to(work).as_posix()) for mark in marks)


def _name_in_any(path: str, version: int) -> str:
    """A file's name without the number of the release: the same model is to be known as the same."""
    _, *folders, name = path.split("/")
    if folders and folders[0] == str(version):
        folders[0] = "VERSION"
    return "/".join([*folders, name])


def _with_config(weights_sha256: str, config: ModelConfig) -> str:
    """What such a model does is said by its config as well, of which the name is the release's."""
    config.ClearField("name")
    return hashlib.sha256(f"{weights_sha256}\n{text_format.MessageToString(config)}".encode()).hexdigest()


def engine_parameters(settings: Settings, given: Mapping[str, str]) -> Parameters:
    """[engine] of inflight.toml and what the command line gives, which wins."""
    if ours := given.keys() & ENGINE_KEYS_OF_OURS:
        raise ValueError(f"--set {min(ours)}: the launcher sets this, a release cannot")
    chosen = {**settings.engine, **given}
    try:
        parse_engine_parameters({"gpt_model_type": "V1", "gpt_model_path": "-", **chosen})
    except InflightError as error:
        raise ValueError(f"--set: {error.message}") from None
    return chosen


def encoder_parameters(settings: Settings, given: Mapping[str, str]) -> Parameters:
    """The same of what makes embeddings, with [embeddings]."""
    if strangers := given.keys() - set(ENCODER_KEYS):
        allowed = ", ".join(ENCODER_KEYS)
        raise ValueError(f"--set {min(strangers)}: an embedding model has only the parameters {allowed}")
    chosen = {**settings.embeddings, **given}
    try:
        parse_encoder_parameters(chosen)
    except InflightError as error:
        raise ValueError(f"--set: {error.message}") from None
    return chosen


def backends_of(project_root: Path) -> set[str]:
    """What this project's Triton can run."""
    places = (triton_backends(), project_root / "python_backend" / "backends")
    return {entry.name for place in places for entry in place.glob("[!_.]*") if entry.is_dir()}
