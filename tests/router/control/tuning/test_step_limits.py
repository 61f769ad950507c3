"""How the steps of an engine stand is told in sentences, and kept where people can read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tiers import Tier
from router.control.releases.states import State
from router.control.tuning.commands import TuningCommands
from router.control.tuning.decisions import TuningDecision, list_decisions
from router.control.tuning.step_keeper import StepKeeper
from router.control.tuning.step_limits import explained
from router.routing.replicas import Fleet
from router.store.database import Store, StoreAccess, sqlite_url
from router.tenants.keys import fingerprint
from router.tenants.rbac import SYSTEM
from tests.fakes.tuned_triton import GatheringServer
from tests.router.control.releases.stored import keep_release
from tests.router.control.releases.values import built_in
from tests.router.tenants.values import PEPPER

LEARNED = LearnedStepCost(StepCost(8.25, 3.3, 5.4, 0.0), 1306, 0.124)
IDLE = EngineReport(64, 512, 64, 512, 1000, 0, 16, 0, 0, False)
BUSY = replace(IDLE, max_batch_size=14, max_step_tokens=30, active=20, waiting=6)
ASKED = {"interactive": 50.0, "standard": 100.0}


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            IDLE,
            "up to 64 sequences and 512 tokens in a step, as configured: no inter-token objective is set",
        ),
        (replace(IDLE, inter_token_ms=ASKED), "as configured: the cost of its steps is not learned yet"),
        (
            replace(IDLE, inter_token_ms={"standard": 100.0}, learned=LEARNED),
            "as configured: that keeps 100 ms (standard) between tokens, or no request of the tier is "
            "running. A step takes 8.25 ms + 3.3 ms per prompt token + 5.4 ms per sequence: learned from "
            "1,306 steps, 12% off on average",
        ),
        (
            replace(BUSY, inter_token_ms=ASKED, learned=LEARNED),
            "up to 14 of 64 sequences and 30 of 512 tokens in a step, to keep the tightest of the running "
            "tiers: 50 ms (interactive), 100 ms (standard) between tokens. ",
        ),
        (
            replace(BUSY, inter_token_ms=dict.fromkeys(("standard", "batch"), 100.0), learned=LEARNED),
            "30 of 512 tokens in a step, to keep 100 ms (standard, batch) between tokens. ",
        ),
        (
            replace(BUSY, inter_token_ms=ASKED, learned=LEARNED, active=0),
            "30 of 512 tokens in a step when requests last ran, to keep",
        ),
        (
            replace(BUSY, inter_token_ms=ASKED, learned=replace(LEARNED, error=0.4, is_frozen=True)),
            "the last good cost; current predictions are 40% off",
        ),
    ],
)
def test_a_sentence_says_which_step_limit_holds_and_why(report: EngineReport, said: str) -> None:
    assert said in explained(report)["sentence"]


@given(
    st.integers(1, 512),
    st.integers(1, 4096),
    st.dictionaries(st.sampled_from([tier.label for tier in Tier]), st.floats(1.0, 10_000.0)),
    st.booleans(),
)
def test_every_report_can_be_explained(
    batch: int, tokens: int, asked: dict[str, float], is_learned: bool
) -> None:
    report = replace(
        IDLE,
        max_batch_size=batch,
        max_step_tokens=tokens,
        inter_token_ms=asked,
        learned=LEARNED if is_learned else None,
    )
    shown = explained(report)
    assert (shown["max_batch_size"], shown["max_step_tokens"]) == (batch, tokens)
    assert shown["inter_token_ms"] == asked
    assert all(tier in shown["sentence"] for tier in asked) or not is_learned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(sqlite_url(tmp_path / "store.db"))
    opened.prepare(fingerprint(PEPPER))
    keep_release(opened, "m", 1, State.READY)
    yield opened
    opened.close()


def standing(store: Store) -> list[TuningDecision]:
    (found,) = TuningCommands(store, SYSTEM).explain("m")
    assert found.standing == ()
    return list(found.engines)


async def test_the_router_in_control_keeps_the_latest_of_each_engine_and_no_history(store: Store) -> None:
    now_s, is_in_control = 10.0, True
    fleet = Fleet([GatheringServer("triton-0", {}), GatheringServer("triton-1", {})])
    first, second = fleet.set_of(built_in(model="m")).replicas
    access = StoreAccess(store, 1)
    keeper = StepKeeper(fleet, access, lambda: is_in_control, lambda: now_s)
    await keeper.keep()
    assert standing(store) == []  # nobody has said anything yet
    first.report = second.report = IDLE
    await keeper.keep()
    now_s = 20.0
    await keeper.keep()
    assert [each.at_s for each in standing(store)] == [10.0]  # nothing is new
    second.report = replace(BUSY, inter_token_ms=ASKED, learned=LEARNED)
    await keeper.keep()
    (kept,) = standing(store)
    assert (kept.at_s, kept.triton_model) == (20.0, "tensorrt_llm")
    assert kept.detail == {"engines": {"triton-0": explained(IDLE), "triton-1": explained(second.report)}}
    is_in_control = False
    first.report = None
    await keeper.keep()
    assert standing(store) == [kept]
    with store.read() as connection:
        assert list_decisions(connection, "m") == []
        assert len(list_decisions(connection, "m", with_holds=True)) == 1
    access.close()


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            replace(BUSY, max_batch_size=11, inter_token_ms=ASKED, paused=4),
            "inter-token binds: 11 of 64 in the batch; 4 paused",
        ),
        (replace(IDLE, active=3), "nothing binds: 3 of 64 in the batch"),
        (replace(IDLE, active=70, waiting=6, paused=2), "the batch binds: 64 of 64 in the batch; 2 paused"),
        (replace(IDLE, active=9, used_blocks=990), "the KV cache binds: 990 of 1000 blocks in use"),
    ],
)
def test_one_line_says_what_binds(report: EngineReport, said: str) -> None:
    assert explained(report)["binds"] == said
