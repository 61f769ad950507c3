"""What routers tell each other, and what they make of it."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN
from router.admission.demand import Need
from router.admission.gates import Gates
from router.admission.policy import FirstCome
from router.control.peers.board import LASTS_S
from router.control.peers.message import decode
from router.control.peers.peer_sync import PeerSync
from router.control.peers.slots import PeerLoads
from router.core.manifest import Kind, Manifest
from router.core.objective import Objective
from router.core.record import Record
from router.core.tenant import NO_LIMITS, Limits
from router.routing.replicas import Fleet
from router.tenants.ledger import Ledger, Reservation
from router.tenants.limits import Limit, Refusal
from router.triton.server import TritonServer
from tests.fakes.board import FakeBoard
from tests.router.admission.test_capacity import REPORT
from tests.router.tenants.values import MONTH, caller

TEXT = Manifest("tiny", 1, Kind.TEXT, ("engine", "ensemble"), "engine")


class FakeServer:
    name = "s0"
    connection = None


class Router:
    """A ledger and gates of its own; the release has 8 slots and a cache of 1600 tokens."""

    def __init__(self, board: FakeBoard, name: str) -> None:
        self.now_s = 0.0
        self.ledger = Ledger()
        fleet = Fleet([cast("TritonServer", FakeServer())])
        fleet.set_of(TEXT).replicas[0].report = REPORT
        self.loads = PeerLoads(name)
        self.gates = Gates(
            fleet,
            FirstCome,
            lambda model, tier: Objective(model, tier),
            share_of=self.loads.share_of,
            clock=lambda: self.now_s,
        )
        self.sync = PeerSync(board, self.ledger, self.gates, self.loads, clock=lambda: self.now_s)

    def reserve(self, limits: Limits, organisation: str = "acme") -> Reservation | Refusal:
        who = caller(organisation_limits=limits, organisation_id=organisation)
        return self.ledger.reserve(who, 10, 0, int(self.now_s * 1e9), MONTH)

    def ask(self, count: int) -> None:
        for _ in range(count):
            record = Record("test", "req", model="tiny", model_version="1", tier=Tier.STANDARD)
            self.gates["tiny", "1"].offer(record, Need(10, 10))

    @property
    def begun(self) -> int:
        return self.gates["tiny", "1"].taken_slots


@pytest.fixture
def board() -> FakeBoard:
    return FakeBoard()


@pytest.fixture
def routers(board: FakeBoard) -> tuple[Router, Router]:
    return Router(board, "a"), Router(board, "b")


async def swap(*routers: Router) -> None:
    """Twice: then the first has heard the last."""
    for router in (*routers, *routers):
        await router.sync.swap()


async def test_requests_granted_by_one_router_are_not_granted_again_by_another(
    routers: tuple[Router, Router],
) -> None:
    here, there = routers
    limits = Limits(requests_per_min=10)
    await swap(here, there)
    for _ in range(6):
        assert isinstance(here.reserve(limits), Reservation)
    await swap(here, there)
    granted = [there.reserve(limits) for _ in range(5)]
    assert [isinstance(each, Reservation) for each in granted] == [True] * 4 + [False]
    await swap(here, there)
    refusal = here.reserve(limits)
    assert isinstance(refusal, Refusal)
    assert refusal.limit is Limit.REQUESTS


async def test_a_reservation_returned_on_one_router_can_be_taken_on_another(
    routers: tuple[Router, Router],
) -> None:
    here, there = routers
    limits = Limits(tokens_per_min=20, concurrent_requests=2)
    await swap(here, there)
    held = [here.reserve(limits), here.reserve(limits)]
    await swap(here, there)
    assert isinstance(there.reserve(limits), Refusal)
    for each in held:
        assert isinstance(each, Reservation)
        each.cancel()
    await swap(here, there)
    assert isinstance(there.reserve(limits), Reservation)


async def test_concurrent_requests_are_counted_over_all_routers(routers: tuple[Router, Router]) -> None:
    here, there = routers
    limits = Limits(concurrent_requests=2)
    here.reserve(limits)
    assert isinstance(there.reserve(limits), Reservation)
    await swap(here, there)
    refusal = there.reserve(limits)
    assert isinstance(refusal, Refusal)
    assert refusal.limit is Limit.CONCURRENCY


async def test_only_tenants_with_limits_in_use_are_sent_to_peers(board: FakeBoard) -> None:
    router = Router(board, "a")
    router.reserve(NO_LIMITS, "free")
    router.reserve(Limits(requests_per_min=5), "limited")
    await router.sync.swap()
    assert decode(board.told["a"]).used.keys() == {"limited"}


async def test_routers_that_cannot_reach_each_other_count_alone_until_they_can(
    routers: tuple[Router, Router], board: FakeBoard, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = routers
    limits = Limits(requests_per_min=10)
    await swap(here, there)
    board.is_away = True
    with caplog.at_level(logging.WARNING):
        for each in (here, there):
            each.now_s = LASTS_S + 1
            assert not await each.sync.swap()
            assert not await each.sync.swap()
    assert len(caplog.messages) == 2  # once each
    assert "counts limits and slots alone: it is away" in caplog.messages[0]
    for each in (here, there):
        for _ in range(8):
            assert isinstance(each.reserve(limits), Reservation)
    board.is_away = False
    await swap(here, there)
    # What was granted meanwhile is nobody's debt.
    assert [isinstance(here.reserve(limits), Reservation) for _ in range(3)] == [True, True, False]
    assert here.sync.is_reachable
    assert here.sync.other_routers == 1


async def test_a_router_that_joins_later_knows_what_is_left(board: FakeBoard) -> None:
    here = Router(board, "a")
    limits = Limits(requests_per_min=10)
    for _ in range(9):
        here.reserve(limits)
    await here.sync.swap()
    new = Router(board, "b")
    await new.sync.swap()
    assert [isinstance(new.reserve(limits), Reservation) for _ in range(2)] == [True, False]


async def test_usage_from_before_a_limit_was_set_does_not_count_against_it(
    routers: tuple[Router, Router],
) -> None:
    here, there = routers
    limits = Limits(requests_per_min=10)
    there.reserve(limits)
    for _ in range(500):
        here.reserve(NO_LIMITS)
    await swap(here, there)
    here.reserve(limits)
    await swap(here, there)
    assert [isinstance(there.reserve(limits), Reservation) for _ in range(9)] == [True] * 8 + [False]


async def test_usage_under_a_larger_limit_does_not_count_against_a_smaller_one(
    routers: tuple[Router, Router],
) -> None:
    here, there = routers
    for _ in range(900):
        here.reserve(Limits(requests_per_min=1000))
    await swap(here, there)
    # Nobody asks there again, so that one does not know of the limits that hold now.
    granted = [there.reserve(Limits(requests_per_min=10)) for _ in range(11)]
    assert [isinstance(each, Reservation) for each in granted] == [True] * 10 + [False]


async def test_messages_that_cannot_be_decoded_are_skipped(
    board: FakeBoard, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(board, "a")
    board.told["odd"] = b"\x93what"
    assert await router.sync.swap()
    assert await router.sync.swap()
    assert router.sync.other_routers == 0
    assert len([each for each in caplog.messages if "could not be read" in each]) == 1


async def test_a_router_starts_what_fits_beside_what_others_run(routers: tuple[Router, Router]) -> None:
    here, there = routers
    await swap(here, there)
    here.ask(6)
    assert here.begun == 6
    await swap(here, there)
    there.ask(10)
    assert there.begun == 1  # who was idle so far has a small part of what is free
    await swap(here, there)
    here.ask(1)
    assert (here.begun, there.begun) == (6, 2)


async def test_a_router_that_is_gone_leaves_its_slots(
    routers: tuple[Router, Router], board: FakeBoard
) -> None:
    here, there = routers
    here.ask(8)
    there.gates["tiny", "1"]
    await swap(here, there)
    there.ask(8)
    assert there.begun == 1  # one it has always, and the engine's queue takes it up
    await board.close("a")
    await there.sync.swap()
    assert there.begun == 8


def test_unlimited_capacity_is_not_divided(board: FakeBoard) -> None:
    assert Router(board, "a").loads.share_of("tiny@1", UNKNOWN) == UNKNOWN
