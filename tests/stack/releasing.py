"""A stack whose releases tests make, break, load and divide the traffic over, as its operators would."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from sqlalchemy import Connection
from typer.testing import CliRunner

from benchmarks.stack import RunningStack
from launcher.commands.installation import Installation
from launcher.commands.release import release as commands
from launcher.commands.release.addition import add_release
from launcher.console import StackConsole
from launcher.packaging.engine_task import PREPARE
from launcher.packaging.releases.builder import ReleaseBuilder, ReleaseRequest
from launcher.packaging.releases.file_marks import mark_files
from launcher.packaging.releases.files import files_in, moved_in, work_dir
from launcher.packaging.releases.sources import kind_at
from launcher.paths import PROJECT_ROOT
from launcher.settings import StackSettings, load_settings, state_dir
from launcher.stack.stop_signals import StopSignals
from router.control.releases import records
from router.control.releases.publisher import is_served
from router.control.releases.records import Release, ReleaseEvent, Rollout
from router.control.releases.states import State
from router.control.releases.writes import set_state
from router.core.manifest import Manifest
from router.settings import load as load_router_settings
from router.store.database import Store
from router.tenants.tenancy import open_store, tenancy_settings
from router.triton.control import TritonControl
from tests.conftest import Unwatched
from tests.pace import patience
from tests.waiting import wait_until

LOADED_WITHIN_S = 60.0
# Requests of one kind of traffic: a machine that is slow answers fewer, and refuses none.
IN_FLIGHT = 8
# What the engine says once it has prepared a model; a tiny one is packed in no time when it is loaded.
SAID = '{"inflight_device": "cpu", "computes_on": "the CPU"}'
PREPARED = [sys.executable, "-I", "-S", "-c", f"print({SAID!r})"]
# Given the Triton models of a release while they are made, and its checkpoint.
Change = Callable[[Path, Manifest], None]


@dataclass(frozen=True)
class Releases:
    """`installation` is that of the stack, which has `config` as its inflight.toml."""

    installation: Installation
    store: Store
    config: Path
    data_dir: Path

    def command(self, *words: str) -> str:
        """`inflight release ...`, in this process."""
        options = ["--config", str(self.config), "--data-dir", str(self.data_dir)]
        result = CliRunner().invoke(commands, [*words, *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    @property
    def repository(self) -> Path:
        return self.installation.release_directories.repository

    def add(self, model: str, path: Path | str, change: Change | None = None, **given: str) -> Manifest:
        """A release that nobody wants loaded yet; its description vouches for what `change` did, too."""
        order = ReleaseRequest(model, str(path), given=given)
        prepare = PREPARED if isinstance(path, Path) else PREPARE
        if change is None:
            return add_release(
                order, self.installation, quiet(), StopSignals(), prepare_command=prepare
            ).manifest
        places = self.installation.release_directories
        places.make()
        maker = ReleaseBuilder(order, self.installation.settings, quiet(), PROJECT_ROOT, prepare)
        with work_dir(places) as work:
            manifest = maker.make(kind_at(order.path), self.installation.releases.next_version(model), work)
            change(work, manifest)
            manifest = replace(manifest, files=tuple(_marks(work, manifest)))
            with moved_in(work, places, manifest):
                return self.installation.releases.add(manifest).manifest

    def was_ready(self, manifest: Manifest) -> None:
        """When a stack last ran."""
        self.installation.releases.load(manifest.model, manifest.version)
        with self.store.begin() as connection:
            set_state(connection, time.time(), manifest.model, manifest.version, State.READY, "")

    def find(self, manifest: Manifest) -> Release:
        with self.installation.releases.look() as connection:
            return records.find_release(connection, manifest.model, manifest.version)

    def find_version(self, model: str, version: int) -> Manifest:
        with self.installation.releases.look() as connection:
            return records.find_release(connection, model, version).manifest

    def state(self, manifest: Manifest) -> State:
        return self.find(manifest).state

    def states(self, model: str) -> dict[int, State]:
        with self.installation.releases.look() as connection:
            return {each.version: each.state for each in records.list_releases(connection, model)}

    def rollout(self, model: str) -> Rollout:
        """The last one."""
        with self.installation.releases.look() as connection:
            return records.list_rollouts(connection, model)[0]

    def weights(self, model: str) -> dict[int, float]:
        with self.installation.releases.look() as connection:
            split = records.find_split(connection, model)
        assert split is not None
        return dict(split.arms)

    def history(self, model: str) -> list[ReleaseEvent]:
        """The newest first."""
        with self.installation.releases.look() as connection:
            return records.list_events(connection, model, 200)

    def happened_s(self, manifest: Manifest, what: str) -> float:
        """When it last did."""
        found = [
            each.at_s
            for each in self.history(manifest.model)
            if (each.version, each.what) == (manifest.version, what)
        ]
        return found[0]

    def unload(self, *manifests: Manifest) -> None:
        """Nobody waits for it: it is drained first."""
        for manifest in manifests:
            self.installation.releases.unload(manifest.model, manifest.version)

    def wait_for(self, manifest: Manifest, state: State, limit_s: float = LOADED_WITHIN_S) -> Release:
        def has_come() -> bool:
            found = self.find(manifest)
            is_lost = found.state is State.FAILED and state is not State.FAILED
            assert not is_lost, f"{manifest.name} failed: {found.reason}"
            return found.state is state

        wait_until(has_come, f"{manifest.name} is not {state.value}", limit_s)
        return self.find(manifest)

    def wait_for_end(self, model: str, limit_s: float = 120.0) -> Rollout:
        wait_until(lambda: self.rollout(model).state.is_over, f"the rollout of {model} is not over", limit_s)
        return self.rollout(model)

    def shares(self) -> dict[tuple[str, str], float]:
        """Those of all releases that a router serves, or is to serve, as the store has them."""
        with self.installation.releases.look() as connection:
            splits, served = records.list_splits(connection), self._served(connection)
        named = {(model, version): split for model, split in splits.items() for version, _ in split.arms}
        named |= {(each.manifest.model, each.version): splits[each.manifest.model] for each in served}
        return {(model, str(version)): split.weight_of(version) for (model, version), split in named.items()}

    def ready(self) -> set[tuple[str, str]]:
        """Releases that a router sends requests to, as the store has them."""
        with self.installation.releases.look() as connection:
            served = self._served(connection)
        return {(each.manifest.model, str(each.version)) for each in served if each.state is State.READY}

    def _served(self, connection: Connection) -> list[Release]:
        splits, there = records.list_splits(connection), records.list_releases(connection)
        known = [each for each in there if each.manifest.model in splits]
        return [each for each in known if is_served(each, splits[each.manifest.model])]


@dataclass(frozen=True)
class ReleaseStack(Releases):
    stack: RunningStack

    def load(self, *manifests: Manifest) -> None:
        for manifest in manifests:
            self.installation.releases.load(manifest.model, manifest.version)
        for manifest in manifests:
            self.wait_for(manifest, State.READY)
        self.wait_until_read()

    def wait_until_read(self) -> None:
        """Until the router serves what the store says, and has found it loaded: it looks now and then."""
        wait_until(self._is_read, "the router does not serve what the store says", 30)

    def _is_read(self) -> bool:
        text = httpx.get(f"{self.url}/metrics", verify=False, timeout=patience(30)).text
        shares = re.findall(r'^inflight_release_share{model="(.+)",release="(.+)"} (\S+)$', text, re.M)
        up = re.findall(r'^inflight_replica_up{model="(.+)",release="(.+)",replica=".+"} 1\.0$', text, re.M)
        told = {(model, release): float(share) for model, release, share in shares}
        return told == self.shares() and self.ready() <= set(up)

    @property
    def url(self) -> str:
        return self.stack.url

    def ask(self, model: str, prompt: str = "One, two", **more: Any) -> tuple[int, str]:
        """The release that answered, and what it said."""
        headers = more.pop("headers", {})
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
        answer = httpx.post(
            f"{self.url}/v1/completions", json=body, headers=headers, timeout=patience(60), verify=False
        )
        assert answer.status_code == 200, answer.text
        return int(answer.headers["x-inflight-release"]), answer.json()["choices"][0]["text"]

    def embed(self, text: str) -> tuple[int, list[float]]:
        body = {"model": StackSettings().embeddings, "input": text}
        answer = httpx.post(f"{self.url}/v1/embeddings", json=body, timeout=patience(60), verify=False)
        assert answer.status_code == 200, answer.text
        return int(answer.headers["x-inflight-release"]), answer.json()["data"][0]["embedding"]

    def metric(self, family: str, **labels: str) -> float:
        """The router's: the sum over all that have these labels, 0 without any."""
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        lines = httpx.get(f"{self.url}/metrics", verify=False, timeout=patience(30)).text.splitlines()
        found = [
            line for line in lines if re.match(rf"{family}[{{ ]", line) and all(w in line for w in wanted)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    @property
    def router(self) -> psutil.Process:
        (found,) = self.stack.processes(" -m router ")
        return found

    @property
    def tritons(self) -> list[psutil.Process]:
        return [each for each in self.stack.processes() if each.name() == "tritonserver"]

    @asynccontextmanager
    async def control(self) -> AsyncIterator[TritonControl]:
        """Triton's model control, at the socket that the launcher gave to the router."""
        (server,) = load_router_settings(self.stack.logs / "router.toml").triton_servers
        control = TritonControl(server.url)
        try:
            yield control
        finally:
            await control.close()


@contextmanager
def releases_of(stack: RunningStack, data_dir: Path) -> Iterator[ReleaseStack]:
    """Of a stack that was not started for that."""
    config = stack.state_dir.parent / "inflight.toml"
    with releases_at(config, data_dir) as found:
        yield ReleaseStack(found.installation, found.store, config, data_dir, stack)


@contextmanager
def releases_at(config: Path, data_dir: Path) -> Iterator[Releases]:
    """Before there is a stack, or beside it."""
    settings = load_settings(config, {"data_dir": data_dir})
    state = state_dir(settings)
    with open_store(tenancy_settings(state)) as store:
        yield Releases(Installation(settings, store, b""), store, config, data_dir)


def write_config(folder: Path) -> Path:
    """Of a stack whose state is beside it."""
    engine = "".join(f'{key} = "{value}"\n' for key, value in quick_engine().items())
    path = folder / "inflight.toml"
    path.write_text(f'[engine]\n{engine}[router]\nstate_dir = "{folder / "state"}"\n')
    return path


def quick_engine() -> dict[str, str]:
    """For tiny models; several fit into any machine."""
    return {"inflight_device": "cpu", "inflight_threads": "1", "max_tokens_in_paged_kv_cache": "8192"}


def quiet() -> StackConsole:
    return StackConsole(Console(quiet=True), Console(quiet=True))


def _marks(work: Path, manifest: Manifest) -> Iterator[Any]:
    """Of all that is there now, in the release's own directories and outside of them."""
    for mark in mark_files(files_in(work), Unwatched(), ""):
        yield replace(mark, path=Path(mark.path).relative_to(work).as_posix())
    outside = [Path(mark.path) for mark in manifest.files if os.path.isabs(mark.path)]
    yield from mark_files([path for path in outside if path.exists()], Unwatched(), "")


def rewrite(path: Path, content: str | bytes) -> None:
    """A file of a release, which nobody may write to."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
