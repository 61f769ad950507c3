"""Waiting for a release, and the table of all of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sql
from rich.console import Console

from launcher.commands.release.control import NO_ROUTER
from launcher.commands.release.live_view import READ_WITHIN_S, SILENCE_S, ReleaseWait, wait_until_read, watch
from launcher.commands.release.status import read_status
from launcher.commands.release.tables import status_view
from router.control.releases.arm_stats import ArmStats, Sample, stats_to_json
from router.control.releases.comparison import Comparison
from router.control.releases.records import list_rollouts
from router.control.releases.shadow_figures import ShadowRecorder
from router.control.releases.states import State
from router.control.releases.writes import put_split, set_state
from router.store.database import StoreAccess
from router.store.schema import arm_figures, rollouts
from tests.launcher.commands.release.conftest import Shell

if TYPE_CHECKING:
    from collections.abc import Callable


def recorded(is_terminal: bool = False) -> Console:
    return Console(file=StringIO(), width=200, highlight=False, force_terminal=is_terminal)


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def waited(shell: Shell, console: Console, meanwhile: Callable[[int], None], is_to_load: bool = True) -> int:
    """`meanwhile` happens between two looks, whose number it is told."""
    looks = 0

    def sleep(time_s: float) -> None:
        nonlocal looks
        looks += 1
        meanwhile(looks)

    with shell.opened() as ours:
        change = ours.releases.load("m", 2) if is_to_load else None
        return ReleaseWait(ours, ("m", 2), change, console, sleep=sleep).run()


def test_a_load_is_followed_through_its_states(served: Shell) -> None:
    served.comes_to("m", 2, State.UNLOADED)
    states = {1: State.LOADING, 2: State.WARMING, 3: State.READY}
    console = recorded()
    with served.router_in_control():
        assert waited(served, console, lambda look: served.comes_to("m", 2, states[look])) == 0
    assert [line.split()[1] for line in said(console).splitlines()] == [
        "unloaded",
        "loading",
        "warming",
        "ready",
    ]


def test_a_release_that_was_ready_before_a_restart_is_waited_for_until_triton_has_it(served: Shell) -> None:
    """The router in control has not looked yet, and then loads it."""
    states = {2: State.LOADING, 3: State.READY}

    def load_again(look: int) -> None:
        if look in states:
            served.comes_to("m", 2, states[look])

    console = recorded()
    with served.router_in_control():
        assert waited(served, console, load_again) == 0
    assert [line.split(": ")[1] for line in said(console).splitlines()] == [
        "waiting for the router to find it in Triton",
        "loading",
        "ready",
    ]


def test_a_release_that_was_ready_is_not_called_ready_while_no_router_runs(served: Shell) -> None:
    result = served.ask("load", "m@2")
    assert result.exit_code == 1
    assert NO_ROUTER in result.output


def test_a_failed_load_is_reported_with_its_reason(served: Shell) -> None:
    served.comes_to("m", 2, State.LOADING)
    console = recorded(is_terminal=True)
    with served.router_in_control():
        failing = waited(
            served, console, lambda look: served.comes_to("m", 2, State.FAILED, "[x] is missing")
        )
    assert failing == 1
    assert "m@2: failed: [x] is missing" in said(console)


def test_an_unload_is_over_when_the_release_is_unloaded(served: Shell) -> None:
    served.comes_to("m", 2, State.DRAINING)
    with served.router_in_control():
        leave = lambda look: served.comes_to("m", 2, State.UNLOADED)  # noqa: E731
        assert waited(served, recorded(), leave, is_to_load=False) == 0


def test_ctrl_c_keeps_the_requested_load_and_says_so(served: Shell) -> None:
    served.comes_to("m", 2, State.LOADING)

    def interrupt(look: int) -> None:
        raise KeyboardInterrupt

    console = recorded()
    with served.router_in_control():
        assert waited(served, console, interrupt) == 130
    assert "m@2 is still to be loaded (`inflight release unload m@2` takes that back)" in said(console)


def test_without_a_router_in_control_load_does_not_wait(served: Shell) -> None:
    served.comes_to("m", 2, State.UNLOADED)
    result = served.ask("load", "m@2")
    assert result.exit_code == 1
    assert NO_ROUTER in result.output
    assert served.release("m", 2).wanted


def test_a_router_that_falls_silent_is_not_waited_for(served: Shell) -> None:
    served.comes_to("m", 2, State.LOADING)
    now_s = [0.0]
    console = recorded()

    def pass_time(time_s: float) -> None:
        now_s[0] += SILENCE_S / 2

    with served.router_in_control(), served.opened() as ours:
        assert ReleaseWait(ours, ("m", 2), 1, console, lambda: now_s[0], pass_time).run() == 1
    assert NO_ROUTER in said(console)
    assert now_s[0] == SILENCE_S


def test_a_release_that_the_stack_no_longer_brings_cannot_be_loaded(served: Shell) -> None:
    served.comes_to("m", 2, State.GONE)
    assert "m@2 no longer exists" in served.refusal("load", "m@2")


GATE = {
    "gate": "errors",
    "shown": "not yet known",
    "against": 0.42,
    "within": 0.25,
    "more_requests": 120,
    "allowed": "up to 0.02 more",
    "figures": "8.3% of 12 against 0.0% of 24",
}
OLD_GATE = {"gate": "refusals", "against": 0.0, "figures": ""}  # as 0.7 wrote it


def rolled_out(shell: Shell) -> None:
    """m@2 in its second step, with figures of two routers."""
    shell("canary", "m@2")
    good = ArmStats().with_all([Sample(False, 0.1, 0.01, 50)] * 8)
    bad = ArmStats().with_all([Sample(False, 0.4, 0.01, 50)] * 3 + [Sample(failed=True)])
    with shell.store() as store, store.begin() as connection:
        (rollout,) = list_rollouts(connection, "m")
        progress = {"step": 1, "step_began_s": 900.0, "step_requests": 4, "paused": False}
        gates = [OLD_GATE, GATE]
        change = {
            "progress": json.dumps(progress),
            "reason": "step 2 needs 46 more requests",
            "figures": json.dumps({"gates": gates}),
        }
        connection.execute(sql.update(rollouts).values(change))
        for step, version, process, stats in (
            (0, 1, "a", good), (1, 1, "a", good), (1, 1, "b", good), (0, 2, "a", good), (1, 2, "b", bad),
        ):  # fmt: skip
            row = {"rollout_id": rollout.id, "step": step, "version": version, "process": process}
            connection.execute(sql.insert(arm_figures).values(**row, figures=stats_to_json(stats), at_s=0.0))
    with shell.opened() as ours, ours.releases.look() as connection:
        split = read_status(connection, "m").models[0].split
    assert split is not None
    with shell.store() as store, store.begin() as connection:
        put_split(store, connection, split.with_canary(2, 0.05, rollout.id, 1))


def test_the_status_of_a_rollout_adds_up_the_stats_of_all_routers(served: Shell) -> None:
    rolled_out(served)
    found = served.json("status", "m")
    (model,) = found["models"]
    assert [(each["release"], each["role"], each["share"]) for each in model["releases"]] == [
        ("m@1", "stable", 0.95),
        ("m@2", "canary", 0.05),
        ("m@3", "", 0.0),
    ]
    stable, canary = model["rollout"]["arms"]
    assert (stable["requests"], stable["step_requests"], stable["error_rate"]) == (24, 16, 0)
    assert (canary["requests"], canary["step_requests"]) == (12, 4)
    assert canary["error_rate"] == pytest.approx(1 / 12)
    assert canary["first_token_s"] == pytest.approx(0.4), "of this step alone"
    assert (model["rollout"]["step"], model["rollout"]["reason"]) == (2, "step 2 needs 46 more requests")
    assert found["in_control"] is False


def test_the_status_table_shows_the_whole_rollout(served: Shell) -> None:
    rolled_out(served)
    served.comes_to("m", 3, State.FAILED, "[red]out of memory")
    shown = served("status")
    for words in (
        "m, sticky by request", "95.0%", "5.0%", "[red]out of memory", "step 2 of 4, 5.0% of the traffic",
        "8.33%", "400.0 ms", "10.0 ms",
        "not yet known", "25%", "42%", "8.3% of 12 against 0.0% of 24", "up to 0.02 more",
        "step 2 needs 46 more requests", "last change: promote to m@1",
        NO_ROUTER,
    ):  # fmt: skip
        assert words in shown
    assert shown == served("status", "m", "--once")
    served("rollback", "m", "--reason", "errors: 5.00% against 0.00%")
    assert "last change: m@2 rolled back" in served("status")
    assert "errors: 5.00% against 0.00%" in served("status")


def test_the_status_tells_recorded_prompts_from_copies_and_from_requests_of_people(served: Shell) -> None:
    rolled_out(served)
    usual = Sample(False, 0.1, is_mirrored=True)
    copy = replace(usual, original=usual)
    stats = ArmStats().with_all([copy, copy, replace(copy, is_replayed=True)])
    with served.store() as store, store.begin() as connection:
        (rollout,) = list_rollouts(connection, "m")
        plan = asdict(replace(rollout.plan, replay_per_s=1.0))
        connection.execute(sql.update(rollouts).values(plan=json.dumps(plan)))
        row = {"rollout_id": rollout.id, "step": 1, "version": 2, "process": "c", "at_s": 0.0}
        connection.execute(sql.insert(arm_figures).values(**row, figures=stats_to_json(stats)))
    assert (
        "and 2 copies of requests to the stable release, 1 recorded prompts replayed on both releases while "
        "they were idle, which count in the checks"
    ) in " ".join(served("status").split())
    canary = served.json("status")["models"][0]["rollout"]["arms"][1]
    assert (canary["requests"], canary["copies"], canary["replays"]) == (12, 3, 1)


async def test_the_status_shows_the_comparisons_of_a_shadow(served: Shell) -> None:
    served("split", "m", "1=1", "--shadow", "2=50%")
    equal = Comparison(0.0, "m", 1, 2, True, 1.0, 10, 10, 0.1, 0.2)
    with served.store() as store:
        access = StoreAccess(store)
        recorder = ShadowRecorder(access)
        others = (replace(equal, is_equal=False, likeness=0.5), replace(equal, error="no answer"))
        for each in (equal, *others, replace(equal, shadow_version=3)):
            recorder.add(each)
        await recorder.write()
        access.close()
    shown = (
        "shadow m@2 against @1: 2 answers compared, 50.0% equal, 75.0% alike, 200.0 ms against 100.0 ms, 1"
    )
    assert f"{shown} failed" in served("status")
    (figures,) = served.json("status")["models"][0]["shadow_figures"]
    assert (figures["shadow"], figures["version"], figures["equal"]) == (2, 1, 1)
    served("split", "m", "1=1")
    assert "answers compared" not in served("status")


def test_the_status_shows_each_releases_role(served: Shell) -> None:
    served("promote", "m@2")
    served("split", "m", "2=1", "--shadow", "3=0.1", "--sticky", "tenant")
    (model,) = served.json("status")["models"]
    assert [each["role"] for each in model["releases"]] == ["standby", "stable", "shadow"]
    assert (model["sticky"], model["shadow"]) == ("tenant", {"version": 3, "share": 0.1})
    assert "+10.0% shadow" in served("status")
    served("split", "m", "3=0.5", "2=0.5")
    (model,) = served.json("status")["models"]
    assert [each["role"] for each in model["releases"]] == ["standby", "stable", "arm"]


def test_the_status_says_when_there_are_no_releases(inflight: Shell) -> None:
    assert "x has no releases" in inflight.refusal("status", "x")
    assert "There are no releases yet" in inflight("status")


def test_a_watched_table_stays_up_to_date_until_ctrl_c(served: Shell) -> None:
    console = recorded(is_terminal=True)
    changes = iter([State.DRAINING, None])

    def sleep(time_s: float) -> None:
        state = next(changes)
        if state is None:
            raise KeyboardInterrupt
        served.comes_to("m", 3, state)

    with served.opened() as ours:
        watch(ours, "m", console, sleep)
    assert "draining" in said(console)


def test_an_installation_with_a_router_in_control_gets_no_warning(served: Shell) -> None:
    with served.router_in_control(), served.opened() as ours, ours.releases.look() as connection:
        console = recorded()
        console.print(status_view(read_status(connection, None), 1000.0))
    assert NO_ROUTER not in said(console)


def test_a_release_that_has_just_become_ready_is_given_time_to_be_read(served: Shell) -> None:
    slept: list[float] = []
    with served.opened() as ours:
        wait_until_read(ours, ("m", 2), slept.append)
        with served.store() as store, store.begin() as connection:
            set_state(connection, time.time(), "m", 2, State.READY, "")
        wait_until_read(ours, ("m", 2), slept.append)
    assert slept[0] == 0
    assert 0 < slept[1] <= READ_WITHIN_S
