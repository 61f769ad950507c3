"""What a replica knows of itself, and a set of its replicas."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from router.core.generation import Failure
from router.routing.replica_choice import Opening
from router.routing.replicas import Fleet
from router.telemetry.collectors import FleetMetrics
from router.telemetry.metrics import Metrics
from tests.fakes.fleet import MANIFEST, fleet_of
from tests.waiting import soon


class FakeWork:
    def __init__(self) -> None:
        self.outstanding_tokens = 0
        self.reasons: list[str] = []

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


def nothing(request: object) -> list[None]:
    return []


def test_work_counts_from_its_start_to_its_end() -> None:
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    first, second = FakeWork(), FakeWork()
    assert replica.is_drained
    assert replica.busy_since_s == math.inf
    replica.began(first, 100)
    replica.began(second, 50)
    replica.revalue(first, 30)
    assert (replica.outstanding_tokens, replica.open_count, replica.begun) == (80, 2, 2)
    assert replica.busy_since_s <= time.monotonic()
    replica.ended(first)
    replica.revalue(first, 999)
    replica.ended(first)
    replica.ended(second)
    assert (replica.outstanding_tokens, replica.open_count, replica.is_drained) == (0, 0, True)
    assert replica.busy_since_s == math.inf


def test_all_work_in_flight_on_a_replica_can_be_cut() -> None:
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    open_work, done = FakeWork(), FakeWork()
    replica.began(open_work, 1)
    replica.began(done, 1)
    replica.ended(done)
    replica.cut_all("frozen")
    assert (open_work.reasons, done.reasons) == (["frozen"], [])


def test_only_replicas_that_may_take_work_are_picked() -> None:
    replicas, _ = fleet_of(nothing, nothing, nothing, nothing)
    loaded, draining, down, unloaded = replicas.replicas
    assert not loaded.is_loaded, "nobody has said so yet"
    loaded.is_loaded = True
    draining.is_draining = True
    down.mark_down("a process died", time.monotonic(), reviving=False)
    unloaded.is_loaded = False
    assert {replicas.pick(Opening(bytes([number]), 9)) for number in range(50)} == {loaded}
    assert replicas.pick(None, exclude=[loaded]) is None


def test_the_least_loaded_replica_is_picked() -> None:
    replicas, _ = fleet_of(nothing, nothing)
    busy, idle = replicas.replicas
    busy.began(FakeWork(), 5000)
    assert {replicas.pick(Opening(bytes([number]), 9)) for number in range(50)} == {idle}


def test_a_replica_that_is_down_gets_one_request_when_its_pause_is_over() -> None:
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    long_ago_s = time.monotonic() - 100
    replica.failed(Failure.UNREACHABLE, long_ago_s)
    assert replicas.pick() is replica
    replica.began(FakeWork(), 1)
    assert replicas.pick() is None
    replica.answered(time.monotonic())
    assert replicas.pick() is replica


async def test_all_waiting_requests_wake_when_a_replica_is_up() -> None:
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    assert await replicas.wait_for_one(0)
    replica.mark_down("a process died", time.monotonic(), reviving=True)
    waiting = [asyncio.ensure_future(replicas.wait_for_one(600)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in waiting)
    replica.mark_up(time.monotonic())
    assert await soon(asyncio.gather(*waiting)) == [True] * 3


async def test_a_dead_process_that_is_not_revived_is_tried_in_the_end() -> None:
    """So a router without control is not stuck: whoever waits becomes the trial."""
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    failed_s = time.monotonic() - 9.8
    replica.failed(Failure.STUB_DEAD, failed_s)
    assert not replica.may_take(failed_s + 9.8)
    assert await soon(replicas.wait_for_one(600))


async def test_requests_wait_for_a_server_that_was_there_and_not_for_one_that_never_was() -> None:
    replicas, _ = fleet_of(nothing)
    (replica,) = replicas.replicas
    replica.mark_down("Triton is unreachable", time.monotonic(), reviving=False, server_is_gone=True)
    assert not await replicas.wait_for_one(600)
    replica.mark_up(time.monotonic())
    replica.is_loaded = True
    replica.is_loaded = False  # as a server says that has not loaded all yet
    replica.mark_down("Triton is unreachable", time.monotonic(), reviving=False, server_is_gone=True)
    assert replicas.is_coming_back
    waiting = asyncio.ensure_future(replicas.wait_for_one(600))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    replica.is_loaded = True
    replica.mark_up(time.monotonic())
    assert await waiting


async def test_a_server_that_stays_away_is_waited_for_no_longer_than_one_restart() -> None:
    now_s = 100.0
    server = fleet_of(nothing)[0].replicas[0].server
    replicas = Fleet([server], lambda: now_s, restart_s=30).set_of(MANIFEST)
    (replica,) = replicas.replicas
    replica.is_loaded = True
    replica.mark_down("Triton is unreachable", now_s, reviving=False, server_is_gone=True)
    now_s = 129.0
    assert replicas.is_coming_back
    replica.mark_down("Triton does not answer", now_s, reviving=False, server_is_gone=True)
    now_s = 131.0
    assert not replicas.is_coming_back, "it is away since the first time, however often that is found"


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_no_request_waits_for_a_release_taken_out_of_service(is_forgotten: bool) -> None:
    """While its process was being revived."""
    fleet = Fleet([each.server for each in fleet_of(nothing)[0].replicas])
    replicas = fleet.set_of(MANIFEST)
    (replica,) = replicas.replicas
    replica.is_loaded = True
    replica.mark_down("a process died", time.monotonic(), reviving=True)
    waiting = asyncio.ensure_future(replicas.wait_for_one(600))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    if is_forgotten:
        fleet.forget(MANIFEST.name)
    else:
        replica.is_loaded = False
    assert not await soon(waiting)


def test_a_fleet_keeps_one_set_for_each_release() -> None:
    fleet = Fleet([])
    found = fleet.set_of(MANIFEST)
    assert fleet.set_of(MANIFEST) is found
    assert dict(fleet.sets) == {"smol@1": found}
    fleet.forget("smol@1")
    fleet.forget("smol@1")
    assert dict(fleet.sets) == {}


def test_metrics_show_what_each_replica_does() -> None:
    replicas, _ = fleet_of(nothing, nothing)
    fleet = Fleet([replica.server for replica in replicas.replicas])
    first, second = fleet.set_of(MANIFEST).replicas
    first.is_loaded = second.is_loaded = True
    first.began(FakeWork(), 7)
    second.mark_down("gone", time.monotonic(), reviving=False)
    second.revivals = 2
    fleet.set_of(MANIFEST).replays = 3
    metrics = Metrics()
    metrics.expose(FleetMetrics(fleet))
    text = metrics.render().decode()
    for line in (
        'inflight_replica_up{model="smol",release="1",replica="s0"} 1.0',
        'inflight_replica_up{model="smol",release="1",replica="s1"} 0.0',
        'inflight_replica_outstanding_tokens{model="smol",release="1",replica="s0"} 7.0',
        'inflight_replica_requests_total{model="smol",release="1",replica="s0"} 1.0',
        'inflight_model_revivals_total{model="smol",release="1",replica="s0"} 0.0',
        'inflight_model_revivals_total{model="smol",release="1",replica="s1"} 2.0',
        'inflight_retries_total{model="smol",release="1"} 0.0',
        'inflight_replays_total{model="smol",release="1"} 3.0',
    ):
        assert line in text
