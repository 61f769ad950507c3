"""`inflight triton`: one Triton with our models, for routers that run elsewhere."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.deployment.echoed_process import EchoedProcess
from launcher.commands.deployment.following import Follower
from launcher.commands.deployment.model_facts import document_of, write_facts
from launcher.commands.deployment.shared_state import deployment_settings, triton_secret
from launcher.console import StackConsole
from launcher.packaging.releases.delivery import Delivery, publish, texts_beside
from launcher.packaging.triton_runtime import build_runtime, installed_runtime
from launcher.paths import PROJECT_ROOT
from launcher.placement import gpus_of_one
from launcher.settings import MOST_TRITON_SERVERS, SettingsError, keeps_files, refusal, state_dir
from launcher.stack.gpus import ALL, server_count
from launcher.stack.ports import HIGHEST_PORT, claim_port
from launcher.stack.preparation import Preparation
from launcher.stack.processes import STACK_ID_VARIABLE
from launcher.stack.router_process import served
from launcher.stack.runs import open_run
from launcher.stack.services import ServiceGroup
from launcher.stack.stop_signals import StopSignals
from launcher.stack.triton_door import tls_door
from launcher.stack.triton_server import TritonServer
from launcher.stack.triton_services import TritonServices
from launcher.stack.up import exit_status
from python_backend.wire.pools import POOL_VARIABLE
from router.core.address import is_loopback
from router.store.release_files import put_deployment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from launcher.packaging.triton_runtime import TritonRuntime
    from launcher.settings import Settings
    from launcher.stack.preparation import Prepared
    from launcher.stack.router_process import Served
    from launcher.stack.runs import Run

PORTS_EACH = 10


@dataclass(frozen=True)
class TritonOptions:
    """Where it listens, and whose Triton it is: `home` None is that of the PyPI wheel.

    An `engine_dir` is run by the tensorrtllm library that the installed Triton brings with it.
    """

    host: str
    grpc_port: int
    metrics_port: int
    secret_file: Path | None = None
    home: Path | None = None
    engine_dir: Path | None = None
    servers: str = "1"  # how many, or `all`: as many as have GPUs of their own

    def ports(self, number: int) -> tuple[int, int]:
        """Of the server with that number, from 0: each has its own ten."""
        step = PORTS_EACH * number
        return tuple(port + step if port else 0 for port in (self.grpc_port, self.metrics_port))  # type: ignore[return-value]

    def check(self) -> None:
        for flag, port in (("--grpc-port", self.grpc_port), ("--metrics-port", self.metrics_port)):
            if not 0 <= port <= HIGHEST_PORT:
                raise refusal(flag, port, f"1 to {HIGHEST_PORT}, or 0 for any free port")
        if self.servers != ALL and not (
            self.servers.isdecimal() and 1 <= int(self.servers) <= MOST_TRITON_SERVERS
        ):
            raise refusal("--servers", self.servers, f"1 to {MOST_TRITON_SERVERS}, or all")
        if self.secret_file is None and not is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host}: others could reach this address and load models: set a secret with "
                "--secret-file, or listen on 127.0.0.1"
            )
        if self.engine_dir is not None and self.home is None:
            raise SettingsError(
                "--engine-dir needs NVIDIA's own backend library: set --triton-home to its Triton "
                "(/opt/tritonserver in NVIDIA's images)"
            )
        if self.engine_dir is not None and not self.engine_dir.is_dir():
            raise SettingsError(f"--engine-dir: {self.engine_dir} is not a directory")


def run_triton(
    flags: Mapping[str, object],
    config: Path | None,
    state: Path | None,
    options: TritonOptions,
    project_root: Path = PROJECT_ROOT,
    prepare_command: list[str] | None = None,
) -> int:
    console = StackConsole()

    def serve() -> int:
        options.check()
        settings = deployment_settings(config, flags, state)
        if settings.stack.prefill_servers:
            allowed = (
                f"0 with inflight triton; {POOL_VARIABLE} in the environment sets what its servers compute"
            )
            raise refusal("stack.prefill_servers", settings.stack.prefill_servers, allowed)
        return TritonDeployment(settings, options, project_root, console, prepare_command).run()

    return exit_status(console, serve)


class TritonDeployment:
    def __init__(
        self,
        settings: Settings,
        options: TritonOptions,
        project_root: Path,
        console: StackConsole,
        prepare_command: list[str] | None = None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._project_root = project_root
        self._console = console
        self._signals = StopSignals()
        self._group = ServiceGroup(console, self._signals)
        self._preparation = Preparation(settings, project_root, console, prepare_command, options.engine_dir)

    def run(self) -> int:
        run = open_run(self._settings.stack.data_dir)
        return self._group.run(run, self._serve, lambda: self._group.stop(self._group.services))

    def _serve(self, run: Run) -> int:
        began_s = time.monotonic()
        with self._signals.interrupting():
            prepared, tritons, told = self._prepare(run)
        with self._sharing(prepared, told):
            return self._load(run, prepared, tritons, began_s)

    def _load(self, run: Run, prepared: Prepared, tritons: list[TritonServer], began_s: float) -> int:
        environment = {**os.environ, STACK_ID_VARIABLE: run.stack_id}
        spreads = prepared.is_on_gpu and not self._settings.engine.get("gpu_device_ids")
        weights_bytes = prepared.text.fingerprint.weights_bytes
        gpus = gpus_of_one(self._settings.engine) if spreads else 0
        making = TritonServices(run, self._console, prepared.needed, gpus, EchoedProcess, weights_bytes)
        self._group.come_up(making.of(tritons, environment), "Loading the model")
        self._console.say(f"Triton is ready after {time.monotonic() - began_s:.1f} s.", style="bold green")
        for triton in tritons:
            self._console.say(
                f"  gRPC     {triton.door.url}, with a certificate  (`inflight router --triton HOST:PORT`)"
            )
            self._console.say(f"  metrics  {triton.metrics_url}")
        self._group.watch()
        return 0

    def _sharing(self, prepared: Prepared, told: Served) -> AbstractContextManager[None]:
        """Where hosts share only the store: what is served goes there, and releases come from there."""
        if not keeps_files(self._settings):
            return nullcontext()

        def announce(delivery: Delivery) -> None:
            built_in = [each for each in (prepared.text, prepared.embeddings) if each is not None]
            marks = [
                mark
                for each in built_in
                for mark in texts_beside(each.checkpoint.directory, (), delivery.progress)
            ]
            publish(delivery.store, {mark: Path(mark.path) for mark in marks}, delivery.progress)
            with delivery.store.begin() as connection:
                put_deployment(delivery.store, connection, document_of(told, marks))
            self._console.say("Routers read from the store what is served.")

        return Follower(self._settings, self._console, Delivery.bring, announce).running()

    def _prepare(self, run: Run) -> tuple[Prepared, list[TritonServer], Served]:
        options, taken = self._options, set[int]()
        secret = triton_secret(options.secret_file, self._settings)
        ports = []
        for number in range(server_count(options.servers, self._settings.engine)):
            grpc_port, metrics_port = options.ports(number)
            grpc_port = claim_port(options.host, grpc_port, "--grpc-port", taken)
            ports.append((grpc_port, claim_port(options.host, metrics_port, "--metrics-port", taken)))
        runtime = self._runtime(run.directory)
        prepared = self._preparation.prepare(run)
        if prepared.computes_on:
            self._console.say(f"Computes on {prepared.computes_on}.")
        if prepared.embeddings_precision:
            self._console.say(f"Embeddings are computed in {prepared.embeddings_precision}.")
        # Before Triton is up: routers that start meanwhile wait for it as they would for one that died.
        together = tuple(each for each, _ in ports) if len(ports) > 1 else ()
        told = replace(served(prepared.text, prepared.embeddings), ports=together)
        facts = write_facts(state_dir(self._settings), told)
        self._console.say(f"Routers read from {facts} what is served.")
        servers = [
            TritonServer(
                runtime,
                prepared.repositories,
                run.shared_memory_prefix(number),
                tls_door(options.host, grpc_port, secret, run.directory / f"tls-{number}"),
                metrics_port,
                prepared.entries,
                number,
                metrics_host=options.host,
            )
            for number, (grpc_port, metrics_port) in enumerate(ports)
        ]
        return prepared, servers, told

    def _runtime(self, into: Path) -> TritonRuntime:
        if self._options.home is None:
            return build_runtime(self._project_root, into)
        is_native = self._options.engine_dir is not None
        return installed_runtime(self._options.home, self._project_root, into, is_native)
