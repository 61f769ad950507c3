"""`inflight slo`, on an installation of its own."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from launcher.commands.output import keep_showing
from launcher.commands.slo import slo
from python_backend.wire.tiers import Tier
from router.control.objectives.monitor import ObjectiveMonitor
from router.control.objectives.recorder import ObjectiveRecorder
from router.control.releases.adoption import adopt
from router.control.releases.lease import Lease
from router.core.manifest import Kind
from router.store.database import StoreAccess
from router.tenants.tenancy import open_store, tenancy_settings
from tests.launcher import shell
from tests.router.control.releases.values import built_in, manifest, office

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Shell(shell.Shell):
    commands = slo

    def json(self, *words: str) -> Any:
        return json.loads(self("show", *words, "--json"))

    def measure(self, note: Callable[[ObjectiveMonitor], None]) -> None:
        """As a router would have."""
        monitor = ObjectiveMonitor()
        note(monitor)
        with open_store(tenancy_settings(self.data_dir)) as store:
            access = StoreAccess(store)
            asyncio.run(ObjectiveRecorder(access, monitor).write())
            access.close()


@pytest.fixture
def bare(own_data_dir: Path) -> Shell:
    return Shell(own_data_dir)


@pytest.fixture
def inflight(bare: Shell) -> Shell:
    """There are smol, which generates text, and vectors, which does not."""
    with open_store(tenancy_settings(bare.data_dir)) as store:
        adopt(store, built_in())
        office(store).add(manifest(model="vectors", kind=Kind.EMBEDDINGS))
    return bare


def quick_and_slow(monitor: ObjectiveMonitor) -> None:
    for _ in range(100):
        monitor.first_token("smol", Tier.STANDARD, 0.25)
        monitor.inter_token("smol", Tier.STANDARD, 0.08)
    monitor.first_token("smol", Tier.BATCH, 3.0)


def test_without_models_slo_tells_the_next_step(bare: Shell) -> None:
    assert "There are no models yet: `inflight up`" in bare("show")
    assert "there are no models yet: run `inflight up`" in bare.refusal("set", "smol", "--first-token", "1s")


def test_a_model_without_an_objective_is_offered_one_it_can_keep(inflight: Shell) -> None:
    shown = inflight("show")
    assert "inflight slo set smol --first-token 500ms --inter-token 50ms" in shown
    assert "inflight slo set vectors --end-to-end 100ms" in shown
    assert "No router is running (`inflight up`)" in shown
    inflight.measure(quick_and_slow)
    shown = inflight("show", "smol")
    assert "inflight slo set smol --first-token 320ms --inter-token 110ms" in shown
    assert "vectors" not in shown


def test_an_objective_is_set_limit_by_limit_and_cleared(inflight: Shell) -> None:
    said = inflight("set", "smol", "--first-token", "500ms")
    assert "smol, standard: 95 of 100 get the first token within 500 ms.\n" in said
    assert "inflight slo show smol" in said
    said = inflight("set", "smol", "--inter-token", "50ms")
    assert "the first token within 500 ms and each further token within 50 ms." in said
    assert inflight("set", "smol", "--tier", "all", "--first-token", "1.5s").count("1.5 s") == 3
    said = inflight("set", "smol", "--first-token", "none", "--inter-token", "none")
    assert "smol, standard: no objective any more." in said
    assert inflight("clear", "smol") == "smol no longer has an objective for interactive, batch.\n"
    assert "smol has no objective" in inflight.refusal("clear", "smol")


def test_show_lists_objectives_measurements_and_advice(inflight: Shell) -> None:
    inflight("set", "smol", "--tier", "all", "--first-token", "500ms")
    inflight("set", "smol", "--inter-token", "50ms")
    inflight.measure(quick_and_slow)
    with open_store(tenancy_settings(inflight.data_dir)) as store:
        lease = Lease(store)
        assert lease.seek()
        shown = inflight("show", "smol")
        lease.release()
    rows = {line.split()[0]: line for line in shown.splitlines() if line}
    assert "nothing measured" in rows["interactive"]
    assert " ".join(rows["standard"].split()).startswith("standard first token 500 ms 25")
    assert "100.0%" in rows["standard"]
    assert "kept, 4" in rows["standard"]
    assert "missed by 6" in rows["inter-token"]
    assert "1 of 20 needed" in rows["batch"]
    assert "Nothing was measured for interactive: send some requests." in shown
    assert "inflight tune explain smol" in shown
    assert "No router is running" not in shown


def test_without_measurements_in_the_standard_tier_show_suggests_a_command(inflight: Shell) -> None:
    inflight("set", "smol", "--first-token", "500ms")
    assert "inflight ask --model smol" in inflight("show", "smol")
    inflight("set", "vectors", "--end-to-end", "20ms")
    assert "Nothing was measured for standard: send some requests." in inflight("show", "vectors")


def test_slo_show_prints_the_same_as_json(inflight: Shell) -> None:
    inflight("set", "smol", "--first-token", "500ms")
    inflight.measure(quick_and_slow)
    (found,) = inflight.json("smol")
    assert (found["model"], found["kind"]) == ("smol", "text")
    by = {(each["tier"], each["metric"]): each for each in found["standings"]}
    assert by["standard", "first_token"]["verdict"] == "kept"
    assert by["standard", "first_token"]["samples"] == 100
    assert by["standard", "inter_token"]["verdict"] == "no objective"
    assert len(inflight.json()) == 2


def test_an_invalid_slo_option_is_one_line_that_names_what_is_allowed(inflight: Shell) -> None:
    assert "such as 500ms, 1.5s or 2m" in inflight.refusal("set", "smol", "--first-token", "fast")
    assert "1ms to 60m" in inflight.refusal("set", "smol", "--first-token", "0s")
    assert "allowed: interactive, standard, batch, all" in inflight.refusal(
        "set", "smol", "--tier", "fast", "--first-token", "1s"
    )
    assert "one or more of --first-token, --inter-token, --end-to-end" in inflight.refusal("set", "smol")
    assert "not end to end" in inflight.refusal("set", "smol", "--end-to-end", "1s")
    assert "has no tokens" in inflight.refusal("set", "vectors", "--first-token", "1s")
    assert "there are: smol, vectors" in inflight.refusal("show", "other")
    assert "cannot be the name of a model" in inflight.refusal("show", "../x")


def test_watching_redraws_until_it_is_interrupted() -> None:
    drawn: list[float] = []

    def draw() -> str:
        drawn.append(time.monotonic())
        return "table"

    def sleep(pause_s: float) -> None:
        if len(drawn) == 3:
            raise KeyboardInterrupt

    with Console(quiet=True) as console:
        keep_showing(console, draw, sleep)
    assert len(drawn) == 3
