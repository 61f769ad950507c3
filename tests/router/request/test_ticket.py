from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.record import Record
from router.request.ticket import TicketDesk
from router.telemetry.metrics import Metrics
from tests.fakes.pipeline import FakeGeneration

LEFT = InflightError(ErrorKind.CANCELLED, "the client left")


def record() -> Record:
    return Record("/v1/completions", "cmpl-1", model="tiny", model_version="1")


def ended(metrics: Metrics) -> dict[str, float]:
    samples = [sample for family in metrics.ended.collect() for sample in family.samples]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def desk(metrics: Metrics) -> TicketDesk:
    return TicketDesk(metrics)


@pytest.mark.parametrize(
    ("error", "cut", "outcome"),
    [
        (None, None, "finished"),
        (ValueError("x"), None, "failed"),
        (InflightError(ErrorKind.ENGINE_FAILED, "x"), None, "failed"),
        (LEFT, LEFT, "cancelled"),
        (None, LEFT, "cancelled"),
        (asyncio.CancelledError(), None, "cancelled"),
        (InflightError(ErrorKind.OVERLOADED, "x"), InflightError(ErrorKind.OVERLOADED, "x"), "failed"),
    ],
)
def test_each_way_to_end_has_its_name_and_happens_once(
    desk: TicketDesk,
    metrics: Metrics,
    error: BaseException | None,
    cut: InflightError | None,
    outcome: str,
) -> None:
    kept = record()

    def use() -> None:
        with desk.admit(kept) as ticket:
            assert desk.open_count == 1
            if cut is not None:
                ticket.cut(cut)
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(type(error)):
            use()
    assert desk.open_count == 0
    assert kept.outcome == outcome
    assert ended(metrics) == {outcome: 1}
    assert metrics.registry.get_sample_value("inflight_requests_in_flight", _who()) == 0


def _who() -> dict[str, str]:
    return {"model": "tiny", "release": "1", "tenant": "local"}


async def test_a_cut_stops_what_runs_and_what_is_attached_later(desk: TicketDesk) -> None:
    early, late = FakeGeneration([None]), FakeGeneration([None])
    with desk.admit(record()) as ticket:
        ticket.attach(early)
        ticket.cut(LEFT)
        ticket.attach(late)
        assert early.stopped
        assert late.stopped


async def test_the_first_cut_counts(desk: TicketDesk) -> None:
    with desk.admit(record()) as ticket:
        ticket.cut(LEFT)
        ticket.cut(InflightError(ErrorKind.OVERLOADED, "later"))
        assert ticket.cut_by is not None
        assert ticket.cut_by.to_text() == LEFT.to_text()


async def test_leaving_the_block_stops_an_engine_that_still_runs(desk: TicketDesk) -> None:
    generation = FakeGeneration([None])
    with pytest.raises(ValueError, match="bug"), desk.admit(record()) as ticket:  # noqa: PT012
        ticket.attach(generation)
        raise ValueError("bug")
    assert generation.stopped


async def test_draining_waits_for_open_tickets_and_gives_out_no_more(desk: TicketDesk) -> None:
    with desk.admit(record()):
        desk.drain()
        assert not await desk.empty(0.01)
        with pytest.raises(InflightError, match="shutting down"):
            desk.admit(record())
        waiting = asyncio.ensure_future(desk.empty(5))
        await asyncio.sleep(0)
    assert await waiting
    assert await desk.empty(0)


async def test_all_can_be_cut_at_once(desk: TicketDesk) -> None:
    with desk.admit(record()) as first, desk.admit(record()) as second:
        desk.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "down"))
        assert first.cut_by is not None
        assert second.cut_by is not None
