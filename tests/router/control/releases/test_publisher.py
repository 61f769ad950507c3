from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from python_backend.wire.errors import InflightError
from router.control.releases.publisher import ReleasePublisher
from router.control.releases.states import State
from router.core.manifest import Manifest
from router.core.record import Record
from router.routing.models import Registry, Served, ServedModel
from router.routing.replicas import Fleet, ReplicaSet
from router.store.database import Store, StoreAccess
from router.triton.server import TritonServer
from tests.fakes.fleet import FakeServer
from tests.fakes.pipeline import FakePipeline
from tests.router.control.releases.values import MODEL, manifest, office, put
from tests.waiting import until


class Work:
    outstanding_tokens = 0

    def give_up(self, reason: str) -> None:
        pass


@dataclass
class Shelf:
    """A publisher over a store in which releases come and go."""

    store: Store
    access: StoreAccess
    registry: Registry = field(default_factory=Registry)
    unreadable: set[str] = field(default_factory=set)
    prepared: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet([cast("TritonServer", FakeServer("s0", lambda request: []))])
        self.publisher = ReleasePublisher(
            self.access, self.fleet, self.registry, self.prepare, frozenset({MODEL})
        )

    def prepare(self, of: Manifest) -> Callable[[ReplicaSet], Served]:
        self.prepared.append(of.name)
        if of.name in self.unreadable:
            raise FileNotFoundError(of.name)
        return lambda replicas: ServedModel(of.model, FakePipeline(), version=of.version)

    def add(self, version: int) -> None:
        office(self.store).add(manifest(version))
        office(self.store).load(MODEL, version)
        put(self.store, version, State.READY)

    @property
    def served(self) -> set[int]:
        lineup = self.registry.lineup(MODEL)
        return set() if lineup is None else set(lineup.releases)


@pytest.fixture
def shelf(lite: Store) -> Iterator[Shelf]:
    access = StoreAccess(lite)
    yield Shelf(lite, access)
    access.close()


async def test_ready_releases_are_served_and_read_once(shelf: Shelf) -> None:
    shelf.add(1)
    office(shelf.store).promote(MODEL, 1)
    await shelf.publisher.refresh()
    shelf.add(2)
    await shelf.publisher.refresh()
    assert shelf.served == {1, 2}
    assert shelf.prepared == ["smol@1", "smol@2"]
    record = Record("/v1/completions", "cmpl-1")
    assert shelf.registry.find(MODEL, record).version == 1
    assert record.model_version == "1"
    put(shelf.store, 2, State.DRAINING)
    await shelf.publisher.refresh()
    assert shelf.served == {1}


async def test_an_unreadable_release_leaves_the_others_served_and_is_retried(shelf: Shelf) -> None:
    shelf.add(1)
    office(shelf.store).promote(MODEL, 1)
    shelf.add(2)
    shelf.unreadable.add("smol@2")
    await shelf.publisher.refresh()
    assert shelf.served == {1}
    shelf.unreadable.clear()
    await shelf.publisher.refresh()
    assert shelf.served == {1, 2}, "although nothing has changed in the store"


async def test_a_failed_publication_is_retried(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add(1)
    office(shelf.store).promote(MODEL, 1)
    with monkeypatch.context() as broken:
        broken.setattr(shelf.fleet, "set_of", lambda of: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await shelf.publisher.refresh()
    await shelf.publisher.refresh()
    assert shelf.served == {1}


async def test_while_the_store_is_unreachable_the_known_releases_are_served(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add(1)
    office(shelf.store).promote(MODEL, 1)
    await shelf.publisher.refresh()
    monkeypatch.setattr("router.control.releases.publisher._POLL_S", 0.001)
    reads = 0

    async def read(act: object) -> object:
        nonlocal reads
        reads += 1
        raise InflightError.from_text("overloaded: the store cannot be reached")

    monkeypatch.setattr(shelf.access, "read", read)
    running = asyncio.create_task(shelf.publisher.run())
    await until(lambda: reads >= 3)
    running.cancel()
    await asyncio.wait([running])
    assert shelf.served == {1}


async def test_a_gone_release_is_watched_until_its_last_request_has_ended(shelf: Shelf) -> None:
    shelf.add(1)
    office(shelf.store).promote(MODEL, 1)
    shelf.add(2)
    await shelf.publisher.refresh()
    (replica,) = shelf.fleet.sets["smol@2"].replicas
    work = Work()
    replica.began(work, 5)
    put(shelf.store, 2, State.GONE)
    await shelf.publisher.refresh()
    assert "smol@2" in shelf.fleet.sets
    replica.ended(work)
    await shelf.publisher.refresh()
    assert set(shelf.fleet.sets) == {"smol@1"}
