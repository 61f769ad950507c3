"""`inflight tune`: what the commands say of a store, and do to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launcher.commands.release.control import NO_ROUTER
from launcher.commands.tune import tune
from python_backend.wire.tiers import Tier
from router.control.objectives.commands import ObjectiveCommands
from router.control.releases.states import State
from router.control.tuning.decisions import STEPS, TuningDecision, keep_decision, paused_models
from router.core.objective import Metric
from router.store.database import Store
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_store, tenancy_settings
from tests.router.control.releases.stored import keep_release

DETAIL = {
    "delay_ms": 20.0,
    "servers": {"triton-0": 20.0, "triton-1": 0.0},
    "requests_per_s": 200.5,
    "mean_batch": 5.7,
    "p95_ms": 31.0,
    "objective_ms": 100.0,
    "cost": {"base_ms": 4.0, "row_ms": 0.5, "batches": 1200, "error": 0.034, "is_frozen": False},
}


@pytest.fixture
def store(own_data_dir: Path) -> Iterator[Store]:
    with open_store(tenancy_settings(own_data_dir)) as opened:
        keep_release(opened, "m", 1, State.READY)
        yield opened


@pytest.fixture
def inflight(store: Store, own_data_dir: Path) -> Callable[..., Result]:
    def ask(*words: str) -> Result:
        return CliRunner().invoke(tune, [*words, "--data-dir", str(own_data_dir)])

    return ask


@pytest.fixture
def tuned(store: Store) -> None:
    ObjectiveCommands(store, SYSTEM).set("m", [Tier.STANDARD], {Metric.FIRST_TOKEN: 1.0})
    engines = {"engines": {"triton-0": {"sentence": "up to 64 sequences"}}}
    for triton_model, action, sentence, detail in (
        ("preprocessing", "raise", "queue delay 0 -> 20 ms: many ask", DETAIL),
        ("preprocessing", "hold", "queue delay stays 20 ms: all is well", DETAIL),
        ("tensorrt_llm", STEPS, "up to 64 sequences", engines),
    ):
        with store.begin() as connection:
            keep_decision(
                TuningDecision(0.0, "m", 1, triton_model, None, action, sentence, detail), connection
            )


def test_explain_shows_the_delay_in_force_the_measurements_and_why(
    inflight: Callable[..., Result], tuned: None
) -> None:
    said = inflight("explain", "m").stdout
    for words in (
        "0 ms / 20 ms",
        "200",
        "5.7",
        "31 ms",
        "100 ms",
        "preprocessing of m@1, 1970-01-01 00:00 UTC: queue delay stays 20 ms: all is well. A batch of n rows "
        "takes 4 + 0.5 n ms: learned from 1,200 batches, 3% off on average.",
        "raise: queue delay 0 -> 20 ms: many ask.",
        "Engine of m@1 on triton-0, 1970-01-01 00:00 UTC: up to 64 sequences.",
        NO_ROUTER,
    ):
        assert words in said
    (shown,) = json.loads(inflight("explain", "m", "--json").stdout)
    assert shown["standing"][0]["detail"] == DETAIL


def test_explain_says_when_there_is_no_objective_or_decision(
    inflight: Callable[..., Result], store: Store
) -> None:
    assert "so no queue delay is tuned" in inflight("explain").stdout
    ObjectiveCommands(store, SYSTEM).set("m", [Tier.STANDARD], {Metric.FIRST_TOKEN: 1.0})
    assert "No queue delay has been chosen yet" in inflight("explain", "m").stdout
    assert inflight("history", "m").stdout == "No queue delay of m has been changed yet.\n"
    assert inflight("history").stdout == "No queue delay has been changed yet.\n"


def test_history_lists_changes_alone(inflight: Callable[..., Result], tuned: None) -> None:
    said = inflight("history").stdout
    assert "many ask" in said
    assert "all is well" not in said
    assert [each["action"] for each in json.loads(inflight("history", "m", "--json").stdout)] == ["raise"]


def test_tuning_of_a_model_is_paused_and_resumed(inflight: Callable[..., Result], store: Store) -> None:
    assert inflight("pause", "m").stdout == "m is left alone.\n"
    assert inflight("pause", "m").stdout == "m is already left alone.\n"
    assert "Tuning is paused since" in inflight("explain", "m").stdout
    with store.read() as connection:
        assert list(paused_models(connection)) == ["m"]
    assert inflight("resume", "m").stdout == "m is tuned.\n"
    assert inflight("resume", "m").stdout == "m is already tuned.\n"


def test_an_unknown_model_is_one_line_and_status_2(inflight: Callable[..., Result]) -> None:
    for words in (("explain", "x"), ("history", "x"), ("pause", "x"), ("resume", "../x")):
        result = inflight(*words)
        assert result.exit_code == 2
        assert result.stderr.startswith("inflight: ")
        assert result.stderr.count("\n") == 1
