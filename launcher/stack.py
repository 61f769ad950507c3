"""A whole stack on one machine: what `inflight up` prepares, starts, watches over and stops."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from launcher.bundled import bundled_with
from launcher.engine_task import PREPARE, run_engine_task
from launcher.loading import LoadingView
from launcher.mending import ModelMender
from launcher.models.checkpoint import Checkpoint, resolve_checkpoint
from launcher.models.embeddings import find_embeddings
from launcher.ports import claim_port
from launcher.processes import STACK_ID_VARIABLE, ChildProcess, become_subreaper, descendants, end_all
from launcher.repository import read_parameters, set_parameters, write_repository
from launcher.router_process import (
    EMBEDDINGS,
    ENGINE,
    PIPELINE,
    RouterProcess,
    check_router_settings,
    longest_stop_s,
)
from launcher.runs import Run, open_run
from launcher.runtime import build_runtime
from launcher.settings import packed_cache_dir
from launcher.supervisor import Service, Supervisor
from launcher.triton import ADDRESS, StubWatch, TritonServer

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.console import StackConsole
    from launcher.settings import Settings
    from launcher.stop_signals import StopSignals

TICK_S = 0.1
LOAD_TIMEOUT_S = 600.0
UNLOAD_TIMEOUT_S = 20.0
# A Triton that had a dead model, and was asked something of it, waits for it in vain when it is stopped.
UNLOAD_AFTER_MENDING_S = 8.0
ROUTER_START_TIMEOUT_S = 60.0


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
            checkpoint, triton, router = self._prepare(run)
        triton_service, router_service = self._services(run, triton, router)
        for service, label in (
            (triton_service, "Loading the model"),
            (router_service, "Starting the router"),
        ):
            self._come_up(service, label)
        took_s = time.monotonic() - began_s
        self._console.announce(
            router.url,
            checkpoint.name,
            triton,
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

    def _prepare(self, run: Run) -> tuple[Checkpoint, TritonServer, RouterProcess]:
        """Everything that can be refused or takes long, before the first process is started."""
        stack = self._settings.stack
        router_settings_path = run.directory / "router.toml"
        check_router_settings(stack.host, stack.data_dir, self._settings.router, router_settings_path)
        taken: set[int] = set()
        port = claim_port(stack.host, stack.port, "--port", taken)
        own_grpc_port = stack.grpc_port
        if own_grpc_port >= 0:
            own_grpc_port = claim_port(stack.host, own_grpc_port, "--grpc-port", taken)
        grpc_port = claim_port(ADDRESS, stack.triton_grpc_port, "--triton-grpc-port", taken)
        metrics_port = claim_port(ADDRESS, stack.triton_metrics_port, "--triton-metrics-port", taken)
        tls = bool(self._settings.router.get("tls_cert"))
        health_port = self._settings.router.get("health_port", 0)
        if tls:
            health_port = claim_port(ADDRESS, health_port, "[router] health_port", taken)
        runtime = build_runtime(self._project_root, run.directory)
        needs_weights = self._settings.engine.get("inflight_weights") != "random"
        bundled = bundled_with(self._project_root)
        checkpoint = resolve_checkpoint(stack.model, stack.data_dir, self._console, needs_weights, bundled)
        embeddings = find_embeddings(self._settings, checkpoint, self._console, bundled)
        self._embeddings = embeddings.name if embeddings else None
        repositories = self._write_repositories(run, checkpoint, embeddings)
        self._prepare_engine(run)
        triton = TritonServer(runtime, repositories, run.shared_memory_prefix, grpc_port, metrics_port)
        router = RouterProcess(
            stack.host, port, router_settings_path, stack.data_dir, tls, health_port, own_grpc_port
        )
        router.write_settings(triton, checkpoint, stack.drain_timeout_s, self._settings.router, embeddings)
        return checkpoint, triton, router

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
                "inflight_packed_cache_dir": packed_cache_dir(self._settings),
            },
        }
        left_out = [EMBEDDINGS]
        if embeddings is not None:
            parameters[EMBEDDINGS] = {"checkpoint_dir": str(embeddings.directory)}
            left_out = []
        names = ("model_repository", "ensembles")
        for name in names:
            write_repository(self._project_root / name, run.directory / name, parameters, left_out)
        return tuple(run.directory / name for name in names)

    def _prepare_engine(self, run: Run) -> None:
        """Here the user can watch; in Triton it would be a load that takes unexplained minutes."""
        config = run.directory / "model_repository" / ENGINE / "config.pbtxt"
        parameters = read_parameters(config)
        if parameters.get("inflight_runtime") == "synthetic":
            return
        for found in run_engine_task(self._prepare_command, parameters, self._console):
            if device := found.get("inflight_device"):
                # Decided once: an engine that is started again without its GPU is not to turn to the CPU.
                set_parameters(config, {"inflight_device": device})
                self._computes_on = found["computes_on"]

    def _services(self, run: Run, triton: TritonServer, router: RouterProcess) -> tuple[Service, Service]:
        environment = {**os.environ, STACK_ID_VARIABLE: run.stack_id}
        router_child = ChildProcess(
            self._router_command or router.command(), environment, run.directory / "router.log"
        )
        triton_child = ChildProcess(
            triton.command(), triton.runtime.environment(environment), run.directory / "triton.log"
        )

        def load_embeddings() -> None:
            triton.load(EMBEDDINGS)
            triton_service.stop_timeout_s = UNLOAD_AFTER_MENDING_S

        # What makes embeddings comes back by itself, while text goes on.
        watch = StubWatch(menders={EMBEDDINGS: ModelMender(EMBEDDINGS, load_embeddings, self._console)})

        def clean_up_after_triton() -> None:
            end_all(descendants(spare=router_child))
            run.remove_shared_memory()

        triton_service = Service(
            "Triton",
            triton_child,
            is_ready=lambda: triton.is_ready(PIPELINE),
            start_timeout_s=LOAD_TIMEOUT_S,
            stop_timeout_s=UNLOAD_TIMEOUT_S,
            find_fault=lambda now_s: watch.find_fault(triton_child.pid, now_s),
            clean_up_after=clean_up_after_triton,
        )
        router_service = Service(
            "the router",
            router_child,
            is_ready=router.is_ready,
            start_timeout_s=ROUTER_START_TIMEOUT_S,
            stop_timeout_s=longest_stop_s(self._settings.stack.drain_timeout_s, self._settings.router),
        )
        return triton_service, router_service

    def _come_up(self, service: Service, label: str) -> None:
        """A stop that is requested on the way is a KeyboardInterrupt."""
        with LoadingView(self._console, label) as view:
            self._supervisor.start(service)
            deadline_s = time.monotonic() + service.start_timeout_s
            while not self._signals.stop_requested:
                has_come_up = self._supervisor.has_come_up(service)
                view.read(service.child)
                if has_come_up:
                    return
                if time.monotonic() > deadline_s:
                    raise service.failure(
                        f"{service.title} was not ready after {service.start_timeout_s:.0f} s"
                    )
                time.sleep(TICK_S)
            raise KeyboardInterrupt

    def _stop(self) -> None:
        """The router first, which finishes what is in flight; then Triton; then whatever they left behind."""
        for service in reversed(self._supervisor.services):
            if service.child.running:
                with self._console.stage(f"Stopping {service.name}"):
                    self._end(service)
        end_all(descendants())

    def _end(self, service: Service) -> None:
        service.child.terminate()
        deadline_s = time.monotonic() + service.stop_timeout_s
        while service.child.running and time.monotonic() < deadline_s and not self._signals.hurry_requested:
            time.sleep(TICK_S)
        service.child.kill()
