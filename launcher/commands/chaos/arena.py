"""The stack that is broken on purpose: two Triton servers and two routers, with links that can fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.commands.chaos.backing import Missing, PrivatePostgres, PrivateRedis, short_directory
from launcher.commands.loadtest.fresh_stack import LOG, StackFailed, announced, tethered_stack
from launcher.stack.ports import claim_port
from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from launcher.stack.stubs import STUB_NAME
from launcher.tether import tethered
from launcher.toml import to_toml
from loadtest.chaos.links import Address, Link
from loadtest.chaos.plan import FLOODING
from router.core.tenant import Limits, Price, Role
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from launcher.commands.chaos.backing import Backing

ENGINE_PROGRAM = "python_backend.engine.process.main"
ROUTER_PROGRAM = "-m router "
# The tenant of the load, the one whose requests have keys, and the one whose money runs out.
USUAL, KEEPER, POOR = "acme", "keeper", "poor"
BUDGET = 40_000  # in micro-dollars, at one for each token
_PRICE = 1_000_000
_LIBFAKETIME = ("libfaketime.so.1", "libfaketime.so")


@dataclass(frozen=True)
class Order:
    """What kind of stack: `engine` are parameters of its engine."""

    model: str | None
    data_dir: Path | None
    engine: Mapping[str, str]
    needs: frozenset[str]  # parts that the chosen faults are of


@dataclass
class Arena:
    """A running stack. `urls` are the routers' addresses for clients, through links; `doors` without."""

    folder: Path
    launcher: subprocess.Popen[bytes]
    run_directory: Path
    model: str
    urls: list[str]
    doors: list[str]
    metrics_urls: tuple[str, ...]
    keys: dict[str, str]
    tenants: dict[str, str]  # ids, by their names
    store_url: str
    config: Path
    second: SecondRouter
    start_s: float  # what it took to start
    links: list[Link] = field(default_factory=list)  # of clients, one for each router
    triton_links: list[Link] = field(default_factory=list)  # of the second router
    backing: dict[str, Backing] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def processes(self) -> list[psutil.Process]:
        found = []
        for root in (self.launcher.pid, self.second.pid):
            with suppress(psutil.Error):
                top = psutil.Process(root)
                found += [*([top] if root == self.second.pid else []), *top.children(recursive=True)]
        return found

    def by_kind(self) -> dict[str, list[psutil.Process]]:
        kinds: dict[str, list[psutil.Process]] = {"triton": [], "model": [], "engine": [], "router": []}
        for each in self.processes():
            kind = kind_of(each)
            if kind is not None:
                kinds[kind].append(each)
        return kinds

    def regions(self) -> int:
        return len(list(SHARED_MEMORY_DIR.glob(f"{SHARED_MEMORY_PREFIX}{self.run_directory.name}_*")))

    def counts(self) -> Counter[str]:
        return Counter({kind: len(found) for kind, found in self.by_kind().items()})

    def spool_files(self) -> int:
        return len(list(self.folder.glob("state/spool/**/*.usage")))


def kind_of(process: psutil.Process) -> str | None:
    """None of those that do not matter, and of the dead."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        words = process.cmdline()
    except psutil.Error:
        return None
    if not words:
        return None
    line = " ".join(words)
    if Path(words[0]).name == "tritonserver":
        return "triton"
    if STUB_NAME in words[0]:
        return "model"
    if ENGINE_PROGRAM in line:
        return "engine"
    return "router" if ROUTER_PROGRAM in f"{line} " and "--settings" in line else None


def model_of(stub: psutil.Process) -> str:
    """Which Triton model a stub runs: its directory is the first argument."""
    with suppress(psutil.Error, IndexError):
        return Path(stub.cmdline()[1]).parents[1].name
    return ""


class SecondRouter:
    """Beside that of `inflight up`, with the same store and the same Triton servers; started when it died."""

    def __init__(self, settings: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._command = tethered([sys.executable, "-m", "router", "--settings", str(settings)])
        self._log = log
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    async def keep_running(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(0.2)
            if self._process is not None and self._process.poll() is not None:
                self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@asynccontextmanager
async def arena(folder: Path, order: Order) -> AsyncIterator[Arena]:
    """Ready; gone with everything that belongs to it when the block is left."""
    async with AsyncExitStack() as closing:
        backing, missing = _backing(order.needs, closing)
        state = folder / "state"
        postgres, redis = backing.get("postgres"), backing.get("redis")
        store_url = postgres.url if postgres else f"sqlite:///{folder / 'store.db'}"
        keys, tenants = await asyncio.to_thread(_register, state, store_url)
        router: dict[str, Any] = {"state_dir": str(state), "store_url": store_url, "metrics_open": True}
        if redis:
            router["redis_url"] = redis.url
        config = folder / "inflight.toml"
        config.write_text(to_toml({"engine": dict(order.engine), "router": router}))
        began_s = time.monotonic()
        stack = closing.enter_context(tethered_stack(folder, _command(config, order)))
        start_s = time.monotonic() - began_s
        found = announced((folder / LOG).read_text())
        run_directory = _run_directory(folder)
        settings: dict[str, Any] = tomllib.loads((run_directory / "router.toml").read_text())
        triton_links = [Link(Address(path=_path(each["url"]))) for each in settings["triton_servers"]]
        sockets = [
            await link.listen(Address(path=str(folder / f"triton-{number}")))
            for number, link in enumerate(triton_links)
        ]
        port = claim_port("127.0.0.1", 0, "", set())
        second_settings = {
            **settings,
            "port": port,
            "grpc_port": -1,
            "triton_servers": [{"url": f"unix:{each.path}"} for each in sockets],
        }
        (folder / "second.toml").write_text(to_toml(second_settings))
        fake_time = _fake_time(folder, missing) if "faketime" in order.needs else {}
        second = SecondRouter(folder / "second.toml", folder / "second.log", fake_time)
        closing.callback(second.stop)
        second.start()
        doors = [found.url, f"http://127.0.0.1:{port}"]
        links = [Link(Address(port=int(each.rpartition(":")[2]))) for each in doors]
        urls = [f"http://127.0.0.1:{(await each.listen(Address())).port}" for each in links]
        for link in (*links, *triton_links):
            closing.push_async_callback(link.close)
        built = Arena(
            folder=folder,
            launcher=stack,
            run_directory=run_directory,
            model=settings["models"][0]["name"],
            urls=urls,
            doors=doors,
            metrics_urls=found.triton_metrics_urls,
            keys=keys,
            tenants=tenants,
            store_url=store_url,
            config=config,
            second=second,
            start_s=start_s,
            links=links,
            triton_links=triton_links,
            backing=backing,
            missing=missing,
        )
        keeping = asyncio.create_task(second.keep_running())
        try:
            yield built
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


def _backing(needs: frozenset[str], closing: AsyncExitStack) -> tuple[dict[str, Backing], dict[str, str]]:
    """Those of the servers that can run here, and why the others cannot."""
    kinds: dict[str, type[PrivatePostgres] | type[PrivateRedis]] = {
        "postgres": PrivatePostgres,
        "redis": PrivateRedis,
    }
    backing: dict[str, Backing] = {}
    missing: dict[str, str] = {}
    for name, kind in kinds.items():
        if name not in needs:
            continue
        directory = short_directory(name)
        closing.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            server = kind(directory)
            server.start()
        except Missing as error:
            missing[name] = str(error)
        else:
            closing.callback(server.stop)
            backing[name] = server
    return backing, missing


def _register(state: Path, store_url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Keys and ids of the tenants, by their names."""
    keys, tenants = {}, {}
    state.mkdir(parents=True, exist_ok=True)
    with open_administration(state, store_url) as admin:
        for name in (USUAL, FLOODING, KEEPER, POOR):
            tenant = admin.create_organisation(SYSTEM, name)
            owner = admin.create_user(SYSTEM, tenant.id, "owner", Role.OWNER)
            _, keys[name] = admin.create_key(SYSTEM, tenant.id, owner.id, "chaos")
            tenants[name] = tenant.id
        admin.set_limits(SYSTEM, tenants[POOR], Limits(monthly_budget=BUDGET))
    return keys, tenants


def set_price(arena: Arena) -> None:
    """One micro-dollar a token, prompt or answer."""
    with open_administration(arena.folder / "state", arena.store_url) as admin:
        admin.set_price(SYSTEM, Price(arena.model, _PRICE, _PRICE, _PRICE))


def _command(config: Path, order: Order) -> list[str]:
    command = [sys.executable, "-m", "launcher", "up", "--config", str(config)]
    command += ["--port", "0", "--grpc-port", "0", "--triton-servers", "2", "--embeddings", ""]
    command += ["--model", order.model] if order.model else []
    return [*command, "--data-dir", str(order.data_dir)] if order.data_dir else command


def _run_directory(folder: Path) -> Path:
    for line in (folder / LOG).read_text().splitlines():
        if line.startswith("  logs "):
            return Path(line.split(maxsplit=1)[1])
    raise StackFailed("the stack did not print where its logs are")


def _path(url: str) -> str:
    return url.removeprefix("unix:")


def _fake_time(folder: Path, missing: dict[str, str]) -> dict[str, str]:
    """Environment of a process whose clock follows the file `skew`; none where libfaketime is missing."""
    for library in _LIBFAKETIME:
        for place in Path("/usr/lib").glob(f"*/faketime/{library}"):
            (folder / "skew").write_text("+0")
            return {
                "LD_PRELOAD": str(place),
                "FAKETIME_TIMESTAMP_FILE": str(folder / "skew"),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
    missing["faketime"] = "libfaketime is not installed"
    return {}
