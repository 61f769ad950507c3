"""What a Triton needs before it can start: model, embeddings, repositories, kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.bundle import bundled_with
from launcher.packaging.engine_task import PRECISION, PREPARE, prepare_engine
from launcher.packaging.models.checkpoint import Checkpoint, check_template, resolve_checkpoint
from launcher.packaging.models.embeddings import find_embeddings
from launcher.packaging.models.fingerprint import fingerprint
from launcher.packaging.remote.copies import local_path
from launcher.packaging.repository import (
    CONFIG,
    EMBEDDINGS,
    ENGINE,
    PIPELINE,
    open_releases,
    read_parameters,
    set_parameters,
    write_repository,
)
from launcher.settings import (
    ADAPTERS_DIR,
    ENGINE_KEYS_OF_OURS,
    PACKED_CACHE,
    RUNTIMES_DIR,
    adapters_dir,
    packed_cache_dir,
    runtimes_dir,
    state_dir,
)
from launcher.stack.router_process import BuiltIn
from python_backend.wire.pools import DECODE

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.console import StackConsole
    from launcher.settings import Settings
    from launcher.stack.runs import Run

# What NVIDIA's library does otherwise unless it is told, and our engine always does.
NATIVE_DEFAULTS = {"enable_chunked_context": "true", "normalize_log_probs": "false"}


@dataclass(frozen=True)
class Prepared:
    """`needed` are the models without which a server is broken: text goes on without embeddings."""

    repositories: tuple[Path, ...]
    needed: frozenset[str]
    text: BuiltIn
    embeddings: BuiltIn | None
    computes_on: str | None

    @property
    def entries(self) -> tuple[str, ...]:
        """What a server loads when it starts."""
        return (PIPELINE, EMBEDDINGS) if self.embeddings else (PIPELINE,)

    @property
    def embeddings_precision(self) -> str:
        """Where one was chosen."""
        chosen = self.embeddings.parameters.get(PRECISION, "") if self.embeddings else ""
        return "" if chosen == "auto" else chosen

    @property
    def is_on_gpu(self) -> bool:
        return self.text.parameters.get("inflight_device") == "cuda"


class Preparation:
    """`engine_dir` is an engine that NVIDIA's own backend runs, for which there is nothing to pack."""

    def __init__(
        self,
        settings: Settings,
        project_root: Path,
        console: StackConsole,
        prepare_command: list[str] | None = None,
        engine_dir: Path | None = None,
    ) -> None:
        self._settings = settings
        self._project_root = project_root
        self._console = console
        self._prepare_command = prepare_command or PREPARE
        self._engine_dir = engine_dir

    def prepare(self, run: Run) -> Prepared:
        stack = self._settings.stack
        needs_weights = self._engine_dir is None and self._settings.engine.get("inflight_weights") != "random"
        bundled = bundled_with(self._project_root)
        model = local_path(stack.model, stack.data_dir, self._console)
        checkpoint = resolve_checkpoint(model, stack.data_dir, self._console, needs_weights, bundled)
        check_template(checkpoint.directory)
        embeddings = find_embeddings(self._settings, checkpoint, self._console, bundled)
        repositories = self._write_repositories(run, checkpoint, embeddings)
        parameters, computes_on = self._prepare_engine(run.directory / "model_repository")
        return Prepared(
            repositories,
            frozenset(model.name for model in repositories[0].iterdir()) - {EMBEDDINGS},
            self._built_in(checkpoint, parameters),
            self._built_in(embeddings, dict(self._settings.embeddings)) if embeddings else None,
            computes_on,
        )

    def _built_in(self, checkpoint: Checkpoint, parameters: dict[str, str]) -> BuiltIn:
        known_by = fingerprint(checkpoint, self._settings.stack.data_dir, self._console)
        return BuiltIn(checkpoint, known_by, parameters)

    def _write_repositories(
        self, run: Run, checkpoint: Checkpoint, embeddings: Checkpoint | None
    ) -> tuple[Path, ...]:
        directory = str(checkpoint.directory)
        parameters = {
            "preprocessing": {"tokenizer_dir": directory},
            "postprocessing": {"tokenizer_dir": directory},
            ENGINE: {
                **(NATIVE_DEFAULTS if self._engine_dir else {}),
                **self._settings.engine,
                "gpt_model_path": str(self._engine_dir or checkpoint.model_path),
                "tokenizer_dir": directory,
                PACKED_CACHE: packed_cache_dir(self._settings),
                RUNTIMES_DIR: runtimes_dir(self._settings),
                ADAPTERS_DIR: adapters_dir(self._settings),
            },
        }
        left_out = [EMBEDDINGS]
        if embeddings is not None:
            directory = str(embeddings.directory)
            parameters[EMBEDDINGS] = {**self._settings.embeddings, "checkpoint_dir": directory}
            left_out = []
        written = [run.directory / name for name in ("model_repository", "ensembles")]
        for target in written:
            write_repository(self._project_root / target.name, target, parameters, left_out)
        built_in = {model.name for target in written for model in target.iterdir()}
        return (*written, open_releases(state_dir(self._settings), built_in))

    def _prepare_engine(self, repository: Path) -> tuple[dict[str, str], str | None]:
        """Here the user can watch; in Triton it would be a load that takes unexplained minutes.

        Gives the engine's parameters as far as they were chosen, and what it computes on.
        """
        paths = {*ENGINE_KEYS_OF_OURS, PACKED_CACHE, RUNTIMES_DIR}
        chosen = {key: value for key, value in self._settings.engine.items() if key not in paths}
        if self._engine_dir is not None:
            return chosen, None
        config = repository / ENGINE / CONFIG
        asked = read_parameters(config)
        if self._settings.stack.prefill_servers:
            asked |= {"inflight_pool": DECODE}  # whatever can be that can be the other, too
        engine = prepare_engine(self._prepare_command, asked, self._console)
        # Decided once: an engine that restarts without its GPU must not fall back to the CPU.
        set_parameters(config, {key: value for key, value in engine.decided.items() if key != PRECISION})
        return {**chosen, **engine.decided}, engine.computes_on
