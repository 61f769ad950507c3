from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.control.objectives.commands import ALL_TIERS, ObjectiveCommands
from router.control.objectives.publisher import ObjectivePublisher
from router.core.objective import Metric
from router.routing.models import Published
from router.store.database import Store, StoreAccess
from router.tenants.rbac import SYSTEM
from tests.router.control.releases.values import MODEL, manifest
from tests.router.control.releases.values import office as releases
from tests.waiting import soon


@pytest.fixture
def office(lite: Store) -> ObjectiveCommands:
    releases(lite).add(manifest())
    return ObjectiveCommands(lite, SYSTEM)


async def test_a_set_objective_is_known_at_the_next_refresh(
    office: ObjectiveCommands, access: StoreAccess
) -> None:
    published = Published()
    publisher = ObjectivePublisher(access, published)
    await publisher.refresh()
    assert published.objective_of(MODEL, Tier.STANDARD).is_empty
    assert not published.current.objectives
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5, Metric.INTER_TOKEN: 0.05})
    await publisher.refresh()
    assert published.objective_of(MODEL, Tier.STANDARD).first_token_s == 0.5
    assert published.objective_of(MODEL, Tier.BATCH).is_empty
    assert list(published.current.objectives) == [(MODEL, Tier.STANDARD)]
    office.clear(MODEL, ALL_TIERS)
    await publisher.refresh()
    assert published.objective_of(MODEL, Tier.STANDARD).is_empty


async def test_an_unchanged_store_is_not_read_again(office: ObjectiveCommands, access: StoreAccess) -> None:
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    published = Published()
    publisher = ObjectivePublisher(access, published)
    await publisher.refresh()
    before = published.objective_of(MODEL, Tier.STANDARD)
    await publisher.refresh()
    assert published.objective_of(MODEL, Tier.STANDARD) is before
    assert published.objective_of(MODEL, Tier.BATCH) is published.objective_of(MODEL, Tier.BATCH), (
        "also what asks for nothing"
    )


async def test_while_the_store_is_unreachable_the_known_objectives_hold(
    office: ObjectiveCommands, access: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    published = Published()
    publisher = ObjectivePublisher(access, published)
    await publisher.refresh()
    monkeypatch.setattr("router.control.objectives.publisher._POLL_S", 0.001)
    tried = asyncio.Event()
    reads = 0

    async def read(act: object) -> object:
        nonlocal reads
        reads += 1
        if reads == 3:
            tried.set()
        if reads == 2:
            raise ZeroDivisionError
        raise InflightError.from_text("overloaded: the store cannot be reached")

    monkeypatch.setattr(access, "read", read)
    running = asyncio.create_task(publisher.run())
    await soon(tried.wait())
    running.cancel()
    await asyncio.wait([running])
    assert published.objective_of(MODEL, Tier.STANDARD).first_token_s == 0.5
