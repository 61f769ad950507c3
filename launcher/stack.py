"""A whole stack on one machine: what `inflight up` prepares, starts, watches over and stops."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from launcher.bundled import bundled_with
from launcher.engine_task import PREPARE, run_engine_task
from launcher.loading import LoadingView
from launcher.models.checkpoint import Checkpoint, resolve_checkpoint
from launcher.models.embeddings import find_embeddings
from launcher.models.fingerprint import fingerprint
from launcher.processes import STACK_ID_VARIABLE, ChildProcess, become_subreaper, descendants, end_all
from launcher.repository import open_releases, read_parameters, set_parameters, write_repository
from launcher.router_process import (
    EMBEDDINGS,
    ENGINE,
    PIPELINE,
    BuiltIn,
    RouterProcess,
    check_router_settings,
    longest_stop_s,
)
from launcher.runs import Run, open_run
from launcher.runtime import build_runtime
from launcher.settings import ENGINE_KEYS_OF_OURS, packed_cache_dir, state_dir
from launcher.stack_ports import claim_ports
from launcher.supervisor import Service, Supervisor
from launcher.triton import TritonServer
from launcher.triton_services import TritonServices
from python_backend.wire.parameters import parse_engine_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.console import StackConsole
    from launcher.settings import Settings
    from launcher.stop_signals import StopSignals

TICK_S = 0.1
ROUTER_START_TIMEOUT_S = 60.0
PACKED_CACHE = "inflight_packed_cache_dir"


class Stack:
    """Built from values, run once; the commands put stand-ins in the places of router and preparation."""

    def __init__(
        self,
        settings: Settings,
        project_root: Path,
        console: StackConsole,
        signals: StopSignals,
        router_command: list[str] | None = None,
        prepare_command: list[str] | None = None,
    ) -> None:
        self._settings = settings
        self._project_root = project_root
        self._console = console
        self._signals = signals
        self._router_command = router_command
        self._prepare_command = prepare_command or PREPARE
        self._supervisor = Supervisor(console)
        self._tritons: list[Service] = []
        self._parameters: dict[str, str] = {}
        self._computes_on: str | None = None
        self._embeddings: str | None = None

    def run(self) -> int:
        """Serve until told to stop; the exit status is 0 after serving, 128 + signal when stopped before."""
        began_s = time.monotonic()
        become_subreaper()
        with self._signals.handled(), open_run(self._settings.stack.data_dir) as run:
            try:
                return self._run(run, began_s)
            except KeyboardInterrupt:
                return 128 + self._signals.received[0]
            finally:
                self._stop()

    def _run(self, run: Run, began_s: float) -> int:
        with self._signals.interrupting():
            checkpoint, tritons, router = self._prepare(run)
        self._tritons, router_service = self._services(run, tritons, router)
        for services in self._rounds():
            self._come_up(services, "Loading the model")
        self._come_up([router_service], "Starting the router")
        took_s = time.monotonic() - began_s
        self._console.announce(
            router.url,
            checkpoint.name,
            tritons,
            run.directory,
            took_s,
            self._computes_on,
            self._embeddings,
            router.grpc_url,
            router.needs_key(),
        )
        while not self._signals.stop_requested:
            self._supervisor.tick()
            time.sleep(TICK_S)
        return 0

    def _prepare(self, run: Run) -> tuple[Checkpoint, list[TritonServer], RouterProcess]:
        """Everything that can be refused or takes long, before the first process is started."""
        stack = self._settings.stack
        router_settings_path = run.directory / "router.toml"
        check_router_settings(stack.host, stack.data_dir, self._settings.router, router_settings_path)
        ports = claim_ports(self._settings)
        runtime = build_runtime(self._project_root, run.directory)
        needs_weights = self._settings.engine.get("inflight_weights") != "random"
        bundled = bundled_with(self._project_root)
        checkpoint = resolve_checkpoint(stack.model, stack.data_dir, self._console, needs_weights, bundled)
        embeddings = find_embeddings(self._settings, checkpoint, self._console, bundled)
        self._embeddings = embeddings.name if embeddings else None
        repositories = self._write_repositories(run, checkpoint, embeddings)
        self._prepare_engine(run)
        entries = (PIPELINE, EMBEDDINGS) if embeddings else (PIPELINE,)
        tritons = [
            TritonServer(runtime, repositories, run.shared_memory_prefix(number), *pair, entries, number)
            for number, pair in enumerate(ports.tritons)
        ]
        router = RouterProcess(
            stack.host,
            ports.router,
            router_settings_path,
            stack.data_dir,
            bool(self._settings.router.get("tls_cert")),
            ports.health,
            ports.router_grpc,
        )
        router.write_settings(
            tritons,
            self._built_in(checkpoint, self._parameters),
            stack.drain_timeout_s,
            self._settings.router,
            self._built_in(embeddings) if embeddings else None,
        )
        return checkpoint, tritons, router

    def _built_in(self, checkpoint: Checkpoint, parameters: Mapping[str, str] | None = None) -> BuiltIn:
        known_by = fingerprint(checkpoint, self._settings.stack.data_dir, self._console)
        return BuiltIn(checkpoint, known_by, parameters or {})

    def _write_repositories(
        self, run: Run, checkpoint: Checkpoint, embeddings: Checkpoint | None
    ) -> tuple[Path, ...]:
        directory, model_path = str(checkpoint.directory), str(checkpoint.model_path)
        parameters = {
            "preprocessing": {"tokenizer_dir": directory},
            "postprocessing": {"tokenizer_dir": directory},
            ENGINE: {
                **self._settings.engine,
                "gpt_model_path": model_path,
                "tokenizer_dir": directory,
                PACKED_CACHE: packed_cache_dir(self._settings),
            },
        }
        left_out = [EMBEDDINGS]
        if embeddings is not None:
            parameters[EMBEDDINGS] = {"checkpoint_dir": str(embeddings.directory)}
            left_out = []
        written = [run.directory / name for name in ("model_repository", "ensembles")]
        for target in written:
            write_repository(self._project_root / target.name, target, parameters, left_out)
        built_in = {model.name for target in written for model in target.iterdir()}
        return (*written, open_releases(state_dir(self._settings), built_in))

    def _prepare_engine(self, run: Run) -> None:
        """Here the user can watch; in Triton it would be a load that takes unexplained minutes."""
        config = run.directory / "model_repository" / ENGINE / "config.pbtxt"
        told = read_parameters(config)
        places = {*ENGINE_KEYS_OF_OURS, PACKED_CACHE}
        self._parameters = {key: value for key, value in self._settings.engine.items() if key not in places}
        if told.get("inflight_runtime") in ("synthetic", "paced"):
            return
        for found in run_engine_task(self._prepare_command, told, self._console):
            if device := found.get("inflight_device"):
                # Decided once: an engine that is started again without its GPU is not to turn to the CPU.
                set_parameters(config, {"inflight_device": device})
                self._computes_on = found["computes_on"]
                chosen = {"gpt_model_type": "V1", "gpt_model_path": "-", **self._parameters}
                precision = parse_engine_parameters(chosen).on(device).precision
                self._parameters |= {"inflight_device": device, "inflight_precision": precision}

    @property
    def _is_on_gpu(self) -> bool:
        return self._parameters.get("inflight_device") == "cuda"

    def _services(
        self, run: Run, tritons: list[TritonServer], router: RouterProcess
    ) -> tuple[list[Service], Service]:
        environment = {**os.environ, STACK_ID_VARIABLE: run.stack_id}
        router_child = ChildProcess(
            self._router_command or router.command(), environment, run.directory / "router.log"
        )
        # Text goes on without embeddings, as it does without any release.
        needed = {model.name for model in (run.directory / "model_repository").iterdir()} - {EMBEDDINGS}
        spreads = self._is_on_gpu and not self._settings.engine.get("gpu_device_ids")
        services = TritonServices(run, self._console, needed, spreads).of(tritons, environment, router_child)
        stop_s = longest_stop_s(self._settings.stack.drain_timeout_s, self._settings.router)
        router_service = Service(
            "the router",
            router_child,
            is_ready=router.is_ready,
            start_timeout_s=ROUTER_START_TIMEOUT_S,
            longest_stop_s=lambda: stop_s,
        )
        return services, router_service

    def _rounds(self) -> list[list[Service]]:
        """Which servers start together; on a GPU that they may share, each measures what the others left."""
        return [[service] for service in self._tritons] if self._is_on_gpu else [self._tritons]

    def _come_up(self, services: list[Service], label: str) -> None:
        """A stop that is requested on the way is a KeyboardInterrupt."""
        with LoadingView(self._console, label) as view:
            for service in services:
                self._supervisor.start(service)
            deadline_s = time.monotonic() + services[0].start_timeout_s
            while not self._signals.stop_requested:
                waiting = [service for service in services if not self._supervisor.has_come_up(service)]
                view.read(services[0].child)
                if not waiting:
                    return
                if time.monotonic() > deadline_s:
                    late = waiting[0]
                    raise late.failure(f"{late.title} was not ready after {late.start_timeout_s:.0f} s")
                time.sleep(TICK_S)
            raise KeyboardInterrupt

    def _stop(self) -> None:
        """The router first, which finishes what is in flight; then Triton; then whatever they left behind."""
        routers = [service for service in self._supervisor.services if service not in self._tritons]
        for services in (routers, self._tritons):
            running = [service for service in services if service.child.running]
            if running:
                with self._console.stage(f"Stopping {' and '.join(service.name for service in running)}"):
                    self._end(running)
        end_all(descendants())

    def _end(self, services: list[Service]) -> None:
        deadline_s = time.monotonic() + max(service.longest_stop_s() for service in services)
        for service in services:
            service.child.terminate()
        while any(service.child.running for service in services):
            if time.monotonic() >= deadline_s or self._signals.hurry_requested:
                break
            time.sleep(TICK_S)
        for service in services:
            service.child.kill()
