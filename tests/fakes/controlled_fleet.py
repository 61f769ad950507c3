"""Stands in for Triton servers that load what they are told to: what they have, and what breaks them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.core.manifest import Manifest
from router.triton.client import TritonConnection
from router.triton.control import ControlError, ModelState


class FakeControl:
    """Knows which members come with which entry; a model in `broken` cannot be loaded, and says why."""

    def __init__(self, has_secret: bool = True) -> None:
        self.can_control = has_secret
        self.members: dict[str, tuple[str, ...]] = {}
        self.loaded: set[str] = set()
        self.broken: dict[str, str] = {}
        self.deadly: set[str] = set()
        self.is_up = True
        self.told: list[str] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.may_tell = asyncio.Event()
        self.may_tell.set()
        self.is_telling = False  # somebody waits for what it has found

    def knows(self, *manifests: Manifest) -> None:
        self.members |= {each.entry: each.members for each in manifests}

    async def load(self, model: str) -> None:
        self._answer(f"load {model}")
        await self.may_load.wait()
        if model in self.deadly:
            self.die()
        if not self.is_up:
            raise ControlError("connection lost")
        if model in self.broken:
            self.loaded |= set(self.members[model][:1]) - {model}
            raise ControlError(self.broken[model])
        self.loaded |= set(self.members[model])

    async def unload(self, model: str) -> None:
        self._answer(f"unload {model}")
        self.loaded.discard(model)

    async def index(self) -> Mapping[str, ModelState]:
        self._answer()
        known = {member for members in self.members.values() for member in members}
        told = {name: ModelState("READY" if name in self.loaded else "") for name in known}
        self.is_telling = True
        await self.may_tell.wait()
        self.is_telling = False
        return told

    async def is_alive(self) -> bool:
        return self.is_up

    def die(self) -> None:
        self.is_up = False
        self.loaded.clear()

    def _answer(self, told: str = "") -> None:
        if not self.is_up:
            raise ControlError("connection refused")
        if told:
            self.told.append(told)


class _Nothing:
    """A stream that has ended."""

    def __aiter__(self) -> _Nothing:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Nothing is left of it."""


class FakeConnection(TritonConnection):
    """Of a server whose readiness is what its control says is loaded."""

    def __init__(self, control: FakeControl) -> None:
        super().__init__("127.0.0.1:1")
        self._control = control
        self.asked: list[Any] = []  # requests, each of which has an empty answer

    def infer(self, request: Any, timeout_s: float | None = None) -> Any:
        self.asked.append(request)
        return _Nothing()

    async def ready(self, model: str) -> bool:
        return self._control.is_up and model in self._control.loaded


class FakeServer:
    def __init__(self, name: str, url: str = "127.0.0.1:8001", has_secret: bool = True) -> None:
        self.name = name
        self.url = url
        self.control = FakeControl(has_secret)
        self.connection = FakeConnection(self.control)


@dataclass
class FakeReplica:
    open_count: int = 0
    is_up: bool = True


@dataclass
class FakeReplicaSet:
    replicas: list[FakeReplica]


@dataclass
class FakeFleet:
    servers: list[FakeServer]
    sets: dict[str, FakeReplicaSet] = field(default_factory=dict)

    def knows(self, *manifests: Manifest) -> None:
        for server in self.servers:
            server.control.knows(*manifests)
