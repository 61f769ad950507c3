"""`inflight router`: one router in front of Triton servers that run elsewhere; several may share a store."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.deployment.echoed_process import EchoedProcess
from launcher.commands.deployment.first_keys import FirstKey, ensure_keys, ensure_store
from launcher.commands.deployment.following import AWAY, Follower
from launcher.commands.deployment.model_facts import facts_path, parse_facts, read_facts
from launcher.commands.deployment.shared_state import deployment_settings, triton_secret
from launcher.console import StackConsole
from launcher.packaging.releases.delivery import Delivery, Undeliverable
from launcher.secret_files import with_secrets
from launcher.settings import SettingsError, keeps_files, state_dir
from launcher.stack.ports import HIGHEST_PORT, claim_port
from launcher.stack.router_process import LOOPBACK, RouterProcess, check_router_settings, longest_stop_s
from launcher.stack.services import ServiceGroup
from launcher.stack.silence import SilenceWatch
from launcher.stack.stop_signals import StopSignals
from launcher.stack.supervisor import Service
from launcher.stack.triton_certificates import Authority
from launcher.stack.triton_door import tls_settings
from launcher.stack.up import exit_status
from router.store.release_files import find_deployment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.settings import Settings
    from launcher.stack.router_process import Served

START_TIMEOUT_S = 120.0
POLL_S = 0.2
LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class RouterOptions:
    """The Triton servers behind a router, and the keys that it is to know from the start."""

    tritons: tuple[str, ...]
    secret_file: Path | None = None
    keys: tuple[FirstKey, ...] = field(default=())
    plain_tritons: bool = False

    def check(self) -> None:
        for url in self.tritons:
            if re.fullmatch(r"file:///\S.*", url):
                continue
            found = re.fullmatch(r"(?:dns:///)?[^\s/]+:(\d{1,5})", url)
            if found is None or not 1 <= int(found[1]) <= HIGHEST_PORT:
                raise SettingsError(
                    f"--triton {url}: expected HOST:PORT with a port from 1 to {HIGHEST_PORT}, or "
                    "dns:///HOST:PORT, or file:///PATH"
                )


def all_servers(urls: Sequence[str], ports: Sequence[int]) -> list[str]:
    """Beside each that is named, the others that `inflight triton` started with it, one for each GPU."""
    found = list(urls)
    for url in urls:
        host, _, port = url.rpartition(":")
        if ports and port == str(ports[0]):
            found += [f"{host}:{other}" for other in ports[1:] if f"{host}:{other}" not in urls]
    return found


def run_router(
    flags: Mapping[str, object],
    config: Path | None,
    state: Path | None,
    options: RouterOptions,
) -> int:
    console = StackConsole()

    def serve() -> int:
        options.check()
        return RouterDeployment(deployment_settings(config, flags, state), options, console).run()

    return exit_status(console, serve)


class RouterDeployment:
    """Starts the router with what Triton serves, and restarts it when that changes."""

    def __init__(self, settings: Settings, options: RouterOptions, console: StackConsole) -> None:
        self._settings = settings
        self._router_settings = with_secrets(settings.router)
        self._state_dir = state_dir(settings)
        self._options = options
        self._console = console
        self._signals = StopSignals()
        self._group = ServiceGroup(console, self._signals)
        self._served: Served | None = None
        self._look_again_at_s = 0.0
        self._told = ""
        self._document = ""  # what the store said last
        self._follower = self._open_follower()

    def run(self) -> int:
        # Where nobody else looks: the router's settings hold secrets.
        place = tempfile.TemporaryDirectory(prefix="inflight-router-")
        return self._group.run(place, self._serve, lambda: self._group.stop(self._group.services))

    def _serve(self, place: str) -> int:
        directory = Path(place)
        with self._signals.interrupting():
            self._make_keys()
            router = self._router(directory / "router.toml")
            self._served = self._read_facts() or self._wait_for_facts(router)
            self._write(router, self._served)
        with self._follower.running() if self._follower else nullcontext():
            return self._watch(router, directory)

    def _watch(self, router: RouterProcess, directory: Path) -> int:
        service = self._service(router, directory)
        self._group.come_up([service], "Starting the router")
        self._console.say(f"The router listens at {router.url}.", style="bold green")
        self._console.say(f"  Triton   {', '.join(self._options.tritons)}")
        self._group.watch(lambda: self._follow(router, service))
        return 0

    def _open_follower(self) -> Follower | None:
        """Where hosts share only the store; its schema is brought up to date, for Triton waits for that."""
        if not keeps_files(self._settings):
            return None
        ensure_store(self._state_dir, self._router_settings)
        return Follower(self._settings, self._console, Delivery.bring_texts)

    def _read_facts(self) -> Served | None:
        if self._follower is None:
            return read_facts(self._state_dir)
        delivery = self._follower.delivery
        try:
            with delivery.store.read() as connection:
                found = find_deployment(connection)
            if found is None or found == self._document:
                return self._served
            told, files = parse_facts(found, "what the store says is served")
            delivery.make(files)
            self._document = found
        except AWAY:
            return self._served  # the router goes on with what it has
        except Undeliverable as error:
            raise SettingsError(str(error)) from error
        return told

    def _make_keys(self) -> None:
        for name in ensure_keys(self._options.keys, self._state_dir, self._router_settings):
            self._console.say(f"The {name} key is registered.")

    def _router(self, file: Path) -> RouterProcess:
        stack, taken = self._settings.stack, set[int]()
        port = claim_port(stack.host, stack.port, "--port", taken)
        grpc_port = stack.grpc_port
        if grpc_port >= 0:
            grpc_port = claim_port(stack.host, grpc_port, "--grpc-port", taken)
        tls = bool(self._router_settings.get("tls_cert"))
        health_port = self._router_settings.get("health_port", 0)
        if tls:
            health_port = claim_port(LOOPBACK, health_port, "[router] health_port", taken)
        return RouterProcess(stack.host, port, file, self._state_dir, tls, health_port, grpc_port)

    def _wait_for_facts(self, router: RouterProcess) -> Served:
        """What the router would refuse is refused now, and not after minutes."""
        check_router_settings(router.host, self._state_dir, self._router_settings, router.settings_path)
        where = "to the store" if self._follower else str(facts_path(self._state_dir))
        self._console.say(f"Waiting for `inflight triton` to write {where} ...")
        while (served := self._read_facts()) is None:
            time.sleep(POLL_S)
        return served

    def _write(self, router: RouterProcess, served: Served) -> None:
        secret = triton_secret(self._options.secret_file, self._settings)
        client = Authority(secret).write_for_client(router.settings_path.parent / "tls")
        more = {"secret": secret, "plain_too": True} if self._options.plain_tritons else {}
        urls = all_servers(self._options.tritons, served.ports)
        tritons = [{**tls_settings(url, client), **more} for url in urls]
        router.write_settings_for(
            tritons, served, self._settings.stack.drain_timeout_s, self._router_settings
        )

    def _service(self, router: RouterProcess, directory: Path) -> Service:
        stop_s = longest_stop_s(self._settings.stack.drain_timeout_s, self._router_settings)
        silence = SilenceWatch(router.is_live)

        def is_up() -> bool:
            is_live = router.is_live()
            if is_live:
                silence.begin()
            return is_live

        return Service(
            "the router",
            EchoedProcess(router.command(), os.environ, directory / "router.log"),
            is_ready=is_up,  # ready it is when Triton is, which may take long
            start_timeout_s=START_TIMEOUT_S,
            longest_stop_s=lambda: stop_s,
            find_fault=silence.find_fault,  # Docker restarts what ends, and not what hangs
        )

    def _follow(self, router: RouterProcess, service: Service) -> None:
        """A Triton that was started with another model has said so; requests in flight may finish first."""
        if time.monotonic() < self._look_again_at_s:
            return
        self._look_again_at_s = time.monotonic() + LOOK_AGAIN_S
        try:
            served = self._read_facts()
        except SettingsError as error:
            if str(error) != self._told:  # once, and not every two seconds
                self._told = str(error)
                self._console.problem(self._told)
            return
        if served is None or served == self._served:
            return
        self._served = served
        self._console.notice("What Triton serves has changed: restarting the router.")
        self._group.stop([service])
        if not self._signals.stop_requested:
            self._write(router, served)
            self._group.start_again(service)
