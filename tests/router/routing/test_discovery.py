"""Triton servers that come and go: found by name or file, joined when ready, left when their work is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.control.health.prober import Prober
from router.control.health.vital_signs import ProbeLimits
from router.core.generation import GenerationCall
from router.routing import discovery
from router.routing.discovery import AddressFile, Discovery, DnsName, Place, Sought, place_of
from router.routing.generation import FleetPipeline
from router.routing.replicas import Fleet, FleetSettings, ReplicaSet
from router.triton.server import TritonServer
from tests.fakes.fleet import MANIFEST
from tests.fakes.triton_server import FakeTriton, Reply
from tests.waiting import until

WORDS = [f"w{number} " for number in range(10)]
STREAMS = 50


def tell(request: object) -> list[Reply]:
    last = len(WORDS) - 1
    return [
        Reply(word, finish="length" if index == last else None, final=index == last, pause_s=0.03)
        for index, word in enumerate(WORDS)
    ]


class Told(Place):
    """A place whose answer a test decides."""

    def __init__(self, *found: str) -> None:
        self.found: set[str] | OSError = set(found)

    async def find(self) -> set[str]:
        if isinstance(self.found, OSError):
            raise self.found
        return self.found


def new_server(url: str) -> TritonServer:
    return TritonServer(url, url)


async def read(pipeline: FleetPipeline, number: int) -> str:
    call = GenerationCall(request_id=f"r{number}", prompt=f"prompt {number}", max_tokens=20, seed=number)
    return "".join([delta.text async for delta in pipeline.generate(call)])


@pytest.fixture
async def tritons() -> AsyncIterator[list[FakeTriton]]:
    fakes = [await FakeTriton(tell).start() for _ in range(3)]
    yield fakes
    for fake in fakes:
        await fake.stop()


@asynccontextmanager
async def following(place: Place) -> AsyncIterator[tuple[Discovery, Fleet, ReplicaSet]]:
    fleet = Fleet([])
    looking = Discovery(fleet, [Sought(place, new_server)])
    await looking.look()
    replicas = fleet.set_of(MANIFEST)
    prober = Prober(fleet, ProbeLimits(period_s=0.02))
    tasks = [asyncio.ensure_future(looking.run()), asyncio.ensure_future(prober.run())]
    try:
        yield looking, fleet, replicas
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await looking.close()


async def test_servers_join_and_leave_under_fifty_streams_and_none_is_lost(
    tritons: list[FakeTriton], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PERIOD_S", 0.02)
    first, second, third = tritons
    file = tmp_path / "tritons"
    file.write_text(f"{first.url}\n{second.url}  # the second\n")
    async with following(AddressFile(file)) as (_, fleet, replicas):
        pipeline = FleetPipeline(replicas, 8192, FleetSettings())
        early = [asyncio.ensure_future(read(pipeline, number)) for number in range(STREAMS)]
        await until(lambda: len(first.requests) > 0 and len(first.requests) + len(second.requests) == STREAMS)
        file.write_text(f"{second.url}\n{third.url}\n")
        await until(lambda: any(each.name == third.url and each.is_open for each in replicas.replicas))
        asked_before = len(first.requests)
        late = [asyncio.ensure_future(read(pipeline, STREAMS + number)) for number in range(STREAMS)]
        assert await asyncio.gather(*early, *late) == ["".join(WORDS)] * (2 * STREAMS)
        assert len(first.requests) == asked_before, "one that leaves is sent nothing more"
        assert third.requests, "one that joined is sent its share"
        assert replicas.retries == replicas.replays == 0, "nobody had to begin again"
        await until(lambda: first.url not in {each.name for each in replicas.replicas})
        assert {server.url for server in fleet.servers} == {second.url, third.url}


async def test_a_server_that_is_not_ready_yet_is_sent_nothing(
    tritons: list[FakeTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PERIOD_S", 0.02)
    first, second, _ = tritons
    second.ready = False
    place = Told(first.url)
    async with following(place) as (_, _, replicas):
        place.found = {first.url, second.url}
        await until(lambda: len(replicas.replicas) == 2)
        pipeline = FleetPipeline(replicas, 8192, FleetSettings())
        await asyncio.gather(*(read(pipeline, number) for number in range(10)))
        assert not second.requests
        second.ready = True
        await until(lambda: all(each.is_open for each in replicas.replicas))


@pytest.mark.parametrize("found", [set(), OSError("no name server answers")], ids=["nobody", "an error"])
async def test_a_place_that_knows_nobody_takes_nobody_away(found: set[str] | OSError) -> None:
    place, fleet = Told("10.0.0.1:8001"), Fleet([])
    looking = Discovery(fleet, [Sought(place, new_server)])
    await looking.look()
    place.found = found
    await looking.look()
    assert [server.url for server in fleet.servers] == ["10.0.0.1:8001"]
    await looking.close()


async def test_the_last_one_that_serves_stays_until_another_is_ready(
    tritons: list[FakeTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PERIOD_S", 0.02)
    first, second, _ = tritons
    second.ready = False
    place = Told(first.url)
    async with following(place) as (_, _, replicas):
        pipeline = FleetPipeline(replicas, 8192, FleetSettings())
        place.found = {second.url}
        await until(lambda: len(replicas.replicas) == 2)
        assert await read(pipeline, 1) == "".join(WORDS)
        assert [each.name for each in replicas.replicas if each.is_open] == [first.url]
        second.ready = True
        await until(lambda: [each.name for each in replicas.replicas if each.is_open] == [second.url])
        assert await read(pipeline, 2) == "".join(WORDS)
        assert second.requests


async def test_the_last_one_stays_for_a_while_only(tritons: list[FakeTriton]) -> None:
    now_s = 0.0
    first, second, _ = tritons
    place, fleet = Told(first.url), Fleet([])
    looking = Discovery(fleet, [Sought(place, new_server)], clock=lambda: now_s)
    await looking.look()
    replicas = fleet.set_of(MANIFEST)
    place.found = {second.url}
    await looking.look()
    assert [each.name for each in replicas.replicas if each.is_open] == [first.url]
    now_s = discovery.LONGEST_STAY_S + 1
    await looking.look()
    assert [each.name for each in replicas.replicas] == [second.url]
    await looking.close()


async def test_one_that_comes_back_while_it_leaves_goes_on_as_before(tritons: list[FakeTriton]) -> None:
    first, second, _ = tritons
    place, fleet = Told(first.url, second.url), Fleet([])
    looking = Discovery(fleet, [Sought(place, new_server)])
    await looking.look()
    replicas = fleet.set_of(MANIFEST)
    pipeline = FleetPipeline(replicas, 8192, FleetSettings())
    reading = [asyncio.ensure_future(read(pipeline, number)) for number in range(20)]
    await until(lambda: bool(first.requests))
    place.found = {second.url}
    await looking.look()
    (leaving,) = (each for each in replicas.replicas if each.name == first.url)
    draining = [leaving.is_draining]
    place.found = {first.url, second.url}
    await looking.look()
    draining.append(leaving.is_draining)
    assert draining == [True, False]
    assert leaving in replicas.replicas
    assert await asyncio.gather(*reading) == ["".join(WORDS)] * 20
    await looking.close()


async def test_work_on_a_server_that_never_finishes_goes_on_elsewhere(
    tritons: list[FakeTriton],
) -> None:
    now_s = 0.0
    first, second, _ = tritons
    first.script = lambda request: [Reply("w0 "), Reply("never", pause_s=1000.0)]
    place, fleet = Told(first.url), Fleet([])
    looking = Discovery(fleet, [Sought(place, new_server)], clock=lambda: now_s)
    await looking.look()
    replicas = fleet.set_of(MANIFEST)
    pipeline = FleetPipeline(replicas, 8192, FleetSettings())
    reading = asyncio.ensure_future(read(pipeline, 1))
    await until(lambda: bool(first.running))
    place.found = {second.url}
    await looking.look()
    (joined,) = (each for each in replicas.replicas if each.name == second.url)
    joined.is_loaded = True
    await looking.look()
    now_s = discovery.LONGEST_LEAVE_S + 1
    await looking.look()
    assert await reading == "".join(WORDS)
    assert [each.name for each in replicas.replicas] == [second.url]
    await looking.close()


async def test_all_addresses_of_a_name_are_found() -> None:
    assert "127.0.0.1:8001" in await DnsName("localhost", 8001).find()
    with pytest.raises(OSError, match=r".+"):
        await DnsName("there-is.invalid", 8001).find()


async def test_a_line_that_is_no_address_is_named(tmp_path: Path) -> None:
    (tmp_path / "tritons").write_text("10.0.0.1:8001\nhttp://10.0.0.2\n")
    with pytest.raises(ValueError, match=r"'http://10\.0\.0\.2' is not HOST:PORT"):
        await AddressFile(tmp_path / "tritons").find()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("10.0.0.1:8001", None),
        ("unix:/run/triton", None),
        ("dns:///triton.ml.svc:8001", DnsName("triton.ml.svc", 8001)),
        ("file:///etc/tritons", AddressFile(Path("/etc/tritons"))),
    ],
)
def test_what_is_looked_for_is_told_by_the_address(url: str, place: Place | None) -> None:
    assert place_of(url) == place
