"""A whole stack on one machine: what `inflight up` prepares, starts, watches over and stops."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING

from launcher.packaging.triton_runtime import build_runtime
from launcher.placement import gpus_of_one
from launcher.secret_files import with_secrets
from launcher.stack.announcement import announce
from launcher.stack.preparation import Preparation, Prepared
from launcher.stack.processes import STACK_ID_VARIABLE, ChildProcess
from launcher.stack.router_process import RouterProcess, add_command, check_router_settings, longest_stop_s
from launcher.stack.runs import Run, open_run
from launcher.stack.services import ServiceGroup
from launcher.stack.stack_ports import claim_ports
from launcher.stack.supervisor import Service
from launcher.stack.triton_door import ADDRESS, SocketDoor, tls_door
from launcher.stack.triton_server import TritonServer
from launcher.stack.triton_services import TritonServices

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.console import StackConsole
    from launcher.settings import Settings
    from launcher.stack.stop_signals import StopSignals
    from launcher.stack.triton_door import TritonDoor

ROUTER_START_TIMEOUT_S = 60.0


class Stack:
    """Built from values, run once; the commands replace router and preparation in tests."""

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
        self._router_settings = with_secrets(settings.router)
        self._project_root = project_root
        self._console = console
        self._signals = signals
        self._router_command = router_command
        self._preparation = Preparation(settings, project_root, console, prepare_command)
        self._group = ServiceGroup(console, signals)
        self._tritons: list[Service] = []

    def run(self) -> int:
        """Serve until told to stop; the exit status is 0 after serving, 128 + signal when stopped before."""
        began_s = time.monotonic()
        run = open_run(self._settings.stack.data_dir)
        return self._group.run(run, lambda opened: self._run(opened, began_s), self._stop)

    def _run(self, run: Run, began_s: float) -> int:
        with self._signals.interrupting():
            prepared, tritons, router = self._prepare(run)
        self._tritons, router_service = self._services(run, prepared, tritons, router)
        for services in self._rounds(prepared):
            self._group.come_up(services, "Loading the model")
        self._group.come_up([router_service], "Starting the router")
        took_s = time.monotonic() - began_s
        announce(
            self._console,
            router.url,
            prepared.text.checkpoint.name,
            tritons,
            run.directory,
            took_s,
            prepared.computes_on,
            prepared.embeddings.checkpoint.name if prepared.embeddings else None,
            prepared.embeddings_precision,
            router.grpc_url,
            router.needs_key(),
        )
        self._group.watch()
        return 0

    def _prepare(self, run: Run) -> tuple[Prepared, list[TritonServer], RouterProcess]:
        """Everything that can be refused or takes long, before the first process is started."""
        stack = self._settings.stack
        router_settings_path = run.directory / "router.toml"
        check_router_settings(stack.host, stack.data_dir, self._router_settings, router_settings_path)
        ports = claim_ports(self._settings)
        runtime = build_runtime(self._project_root, run.directory)
        prepared = self._preparation.prepare(run)
        tritons = [
            TritonServer(
                runtime,
                prepared.repositories,
                run.shared_memory_prefix(number),
                triton_door(run, number, grpc_port),
                metrics_port,
                prepared.entries,
                number,
            )
            for number, (grpc_port, metrics_port) in enumerate(ports.tritons)
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
        extra = {**self._router_settings, "release_command": add_command(self._settings)}
        router.write_settings(tritons, prepared.text, stack.drain_timeout_s, extra, prepared.embeddings)
        return prepared, tritons, router

    def _services(
        self, run: Run, prepared: Prepared, tritons: list[TritonServer], router: RouterProcess
    ) -> tuple[list[Service], Service]:
        environment = {**os.environ, STACK_ID_VARIABLE: run.stack_id}
        router_child = ChildProcess(
            self._router_command or router.command(), environment, run.directory / "router.log"
        )
        spreads = prepared.is_on_gpu and not self._settings.engine.get("gpu_device_ids")
        gpus = gpus_of_one(self._settings.engine) if spreads else 0
        weights_bytes = prepared.text.fingerprint.weights_bytes
        prefill = self._settings.stack.prefill_servers
        making = TritonServices(
            run, self._console, prepared.needed, gpus, weights_bytes=weights_bytes, prefill=prefill
        )
        services = making.of(tritons, environment, router_child)
        stop_s = longest_stop_s(self._settings.stack.drain_timeout_s, self._settings.router)
        router_service = Service(
            "the router",
            router_child,
            is_ready=router.is_ready,
            start_timeout_s=ROUTER_START_TIMEOUT_S,
            longest_stop_s=lambda: stop_s,
        )
        return services, router_service

    def _rounds(self, prepared: Prepared) -> list[list[Service]]:
        """Which servers start together; on a GPU that they may share, each measures what the others left."""
        return [[service] for service in self._tritons] if prepared.is_on_gpu else [self._tritons]

    def _stop(self) -> None:
        """The router first, which finishes what is in flight; then Triton."""
        routers = [service for service in self._group.services if service not in self._tritons]
        for services in (routers, self._tritons):
            self._group.stop(services)


def triton_door(run: Run, number: int, grpc_port: int) -> TritonDoor:
    """A socket, unless the user has chosen a port."""
    if not grpc_port:
        return SocketDoor(run.socket_directory() / "triton", number + 1)
    return tls_door(ADDRESS, grpc_port, secrets.token_hex(16), run.directory / f"tls-{number}")
