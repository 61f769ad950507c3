from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sql
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.lease import Lease, LeaseTimes, LostControl
from router.store.database import Store
from router.store.schema import control
from tests.tiers import examples

TIMES = LeaseTimes(lease_s=10.0, renew_s=3.0, margin_s=2.0)


class Clock:
    """Somebody's own: it starts anywhere and only its pace is that of the others."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s


def lease(store: Store, clock: Clock, process: str) -> Lease:
    return Lease(store, TIMES, clock, process)


def test_the_first_router_holds_the_lease_and_the_second_waits(store: Store) -> None:
    first, second = lease(store, Clock(), "a"), lease(store, Clock(1e6), "b")
    assert first.seek()
    assert first.is_held
    assert not second.seek()
    assert not second.is_held


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    first, second = lease(store, Clock(), "a"), lease(store, Clock(), "b")
    first.seek()
    first.release()
    assert not first.is_held
    assert second.seek()
    first.release()  # it is another's now
    assert second.seek()


def test_a_lease_not_renewed_for_its_whole_time_is_taken_over(lite: Store) -> None:
    clocks = Clock(500.0), Clock(0.0)
    first, second = lease(lite, clocks[0], "a"), lease(lite, clocks[1], "b")
    first.seek()
    assert not second.seek()
    for now_s in (5.0, 9.9):
        clocks[1].now_s = now_s
        assert not second.seek()
    clocks[0].now_s = 508.0
    assert not first.is_held, "it stops before others may begin"
    clocks[1].now_s = 10.0
    assert second.seek()
    assert not first.seek()


def test_a_lease_renewal_is_due_every_few_seconds(lite: Store) -> None:
    clock = Clock(100.0)
    held = lease(lite, clock, "a")
    due = [held.is_due]
    for now_s in (100.0, 102.9, 103.0):
        clock.now_s = now_s
        if now_s == 100.0:
            held.seek()
        due.append(held.is_due)
    assert due == [True, False, False, True]
    assert held.seek()
    clock.now_s = 110.9
    assert held.is_held


steps = st.lists(
    st.tuples(st.sampled_from(("a", "b", "c")), st.floats(0.1, 4.0), st.booleans()), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=examples(25))
@given(steps, st.tuples(*[st.floats(-1e6, 1e6)] * 3))
def test_two_routers_never_hold_the_lease_at_once_whatever_their_clocks_say(
    lite_for_all: Store, turns: list[tuple[str, float, bool]], starts_s: tuple[float, float, float]
) -> None:
    """At each turn some time passes for all, and one of them beats, or has been asleep and does not."""
    with lite_for_all.begin() as connection:
        connection.execute(sql.delete(control))
    clocks = {name: Clock(start_s) for name, start_s in zip("abc", starts_s, strict=True)}
    leases = {name: lease(lite_for_all, clock, name) for name, clock in clocks.items()}
    for name, passed_s, beats in turns:
        for clock in clocks.values():
            clock.now_s += passed_s
        if beats:
            leases[name].seek()
        assert sum(each.is_held for each in leases.values()) <= 1


def test_of_many_routers_that_want_the_lease_at_once_one_gets_it(store: Store) -> None:
    leases = [lease(store, Clock(), f"router-{number}") for number in range(6)]
    got: list[bool] = []
    threads = [threading.Thread(target=lambda each=each: got.append(each.seek())) for each in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 5 + [True]


def test_a_write_after_the_lease_was_lost_is_refused(store: Store) -> None:
    clocks = Clock(), Clock()
    first, second = lease(store, clocks[0], "a"), lease(store, clocks[1], "b")
    first.seek()
    with store.begin() as connection:
        first.check(connection)
    second.seek()
    clocks[1].now_s = 10.0
    assert second.seek()
    # Its clock stood still, as that of a machine that was asleep.
    assert first.is_held
    with pytest.raises(LostControl), store.begin() as connection:
        first.check(connection)


def test_a_dead_process_of_this_machine_loses_its_lease_at_once(lite: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ours = Lease(lite, TIMES, Clock())
    machine = ours.process.partition("/")[0]
    assert machine, "Linux tells"
    assert lease(lite, Clock(), f"{machine}/{ended.pid}/x").seek()
    assert ours.seek()


@pytest.mark.parametrize("holder", ["another-machine/1/x", "", "odd"])
def test_the_holder_of_a_lease_is_presumed_alive_unless_proven_dead(lite: Store, holder: str) -> None:
    holder = holder or f"{Lease(lite).process.partition('/')[0]}/{os.getppid()}/x"
    assert lease(lite, Clock(), holder).seek()
    assert not Lease(lite, TIMES, Clock()).seek()
