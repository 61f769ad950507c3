from __future__ import annotations

import time

from python_backend.wire.tiers import Tier
from router.control.objectives.records import figures_to_json
from router.control.objectives.standing import Figures
from router.core.objective import Metric
from router.store.schema import objective_figures
from tests.launcher.commands.release.conftest import Shell


def asked(shell: Shell, requests: int, tier: Tier = Tier.STANDARD) -> None:
    """What a router writes of the last five minutes."""
    figures = figures_to_json(Figures({Metric.FIRST_TOKEN: {100: requests}, Metric.INTER_TOKEN: {90: 9999}}))
    row = {"router": "one", "model": "m", "tier": tier.label, "at_s": time.time(), "figures": figures}
    with shell.store() as store, store.begin() as connection:
        connection.execute(store.insert_or_update(objective_figures, row))


def test_a_canary_is_told_beforehand_how_long_it_takes_at_the_present_rate(served: Shell) -> None:
    asked(served, 100)
    asked(served, 50, Tier.BATCH)
    expected = "At 0.5 requests per second, as in the last minutes, it takes about 23 min if nothing is wrong"
    assert expected in served("canary", "m@2", "--steps", "50%,100%")
    assert expected in served("status", "m", "--once")
    (model,) = served.json("status", "m")["models"]
    assert 1300 <= model["rollout"]["expected_s"] <= 1500


def test_a_model_that_nobody_asks_for_waits_for_requests(served: Shell) -> None:
    said = "The model had no requests in the last minutes: the rollout waits for some."
    assert said in served("canary", "m@2")
    (model,) = served.json("status", "m")["models"]
    assert model["rollout"]["expected_s"] is None
