"""Every permit is given back exactly once, and each way to end has its name."""

from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.demand import Need
from router.core.record import Record
from router.request.answer import Answers
from router.request.permit import Permit, Permits
from router.telemetry.accounts import RequestAccounts
from router.telemetry.metrics import Metrics
from tests.fakes.gates import OpenGates
from tests.fakes.job import FakeJob
from tests.fakes.pipeline import FakeGeneration
from tests.fakes.tenancy import FakeTenancy

LEFT = InflightError(ErrorKind.CANCELLED, "the client left")
NEED = Need(1, 1)


def record() -> Record:
    return Record("/v1/completions", "cmpl-1", model="tiny", model_version="1")


def ended(metrics: Metrics) -> dict[str, float]:
    samples = [sample for family in metrics.ended.collect() for sample in family.samples]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def permits(metrics: Metrics) -> Permits:
    return Permits(FakeTenancy().as_tenancy, OpenGates().as_gates, RequestAccounts(metrics))


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
async def test_each_way_a_ticket_ends_has_a_name_and_happens_once(
    permits: Permits,
    metrics: Metrics,
    error: BaseException | None,
    cut: InflightError | None,
    outcome: str,
) -> None:
    kept = record()

    async def act(permit: Permit) -> None:
        assert permits.open_count == 1
        if cut is not None:
            permit.cut(cut)
        if error is not None:
            raise error

    job = FakeJob(NEED, act)
    asked = Answers(permits).answer(job, kept, lambda callback: None)
    raised: BaseException | None = None
    try:
        await asked
    except BaseException as failure:
        raised = failure
    assert type(raised) is type(error or cut)
    assert permits.open_count == 0
    assert (kept.outcome, job.settled) == (outcome, 1)
    assert ended(metrics) == {outcome: 1}
    who = {"model": "tiny", "release": "1", "tenant": "local"}
    assert metrics.registry.get_sample_value("inflight_requests_in_flight", who) == 0


async def test_a_cut_stops_running_and_later_attached_work(permits: Permits) -> None:
    early, late = FakeGeneration([None]), FakeGeneration([None])
    permit = await permits.admit(record(), NEED)
    permit.attach(early)
    permit.cut(LEFT)
    permit.attach(late)
    assert early.stopped
    assert late.stopped
    permit.close(None)


async def test_the_first_cut_of_a_permit_counts(permits: Permits) -> None:
    permit = await permits.admit(record(), NEED)
    permit.cut(LEFT)
    permit.cut(InflightError(ErrorKind.OVERLOADED, "later"))
    assert permit.cut_by is not None
    assert permit.cut_by.to_text() == LEFT.to_text()


async def test_closing_a_permit_stops_an_engine_that_still_runs(permits: Permits) -> None:
    generation = FakeGeneration([None])
    permit = await permits.admit(record(), NEED)
    permit.attach(generation)
    permit.close(ValueError("bug"))
    assert generation.stopped


async def test_draining_waits_for_open_permits_and_gives_out_no_more(permits: Permits) -> None:
    permit = await permits.admit(record(), NEED)
    permits.drain()
    assert not await permits.empty(0.01)
    with pytest.raises(InflightError, match="shutting down"):
        await permits.admit(record(), NEED)
    waiting = asyncio.ensure_future(permits.empty(5))
    await asyncio.sleep(0)
    permit.close(None)
    assert await waiting
    assert await permits.empty(0)


async def test_all_permits_can_be_cut_at_once(permits: Permits) -> None:
    first, second = await permits.admit(record(), NEED), await permits.admit(record(), NEED)
    permits.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "down"))
    assert first.cut_by is not None
    assert second.cut_by is not None
