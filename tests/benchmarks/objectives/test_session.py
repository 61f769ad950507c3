from __future__ import annotations

from dataclasses import dataclass

from benchmarks.objectives.session import homes_of
from loadtest.replay.plan import plan_of
from loadtest.traces import TracedRequest
from router.routing.replica_choice import Opening, choose, opening_of


@dataclass(frozen=True)
class Idle:
    name: str
    outstanding_tokens: int = 0
    begun: int = 0


def test_a_prompts_home_is_the_replica_that_an_idle_router_would_choose() -> None:
    plan = plan_of([TracedRequest(0.0, 10, 5, "t", "standard")] * 40, run=7)
    names = ["one", "two"]
    openings = [Opening(opening_of(each.prompt.token_ids()), 10) for each in plan]  # type: ignore[union-attr]
    chosen = [choose([Idle(name) for name in names], each) for each in openings]
    homes = homes_of(plan, names)
    assert [names[home] for home in homes] == [each.name for each in chosen if each is not None]
    assert set(homes) == {0, 1}


def test_without_names_nothing_is_known_of_homes() -> None:
    assert homes_of(plan_of([TracedRequest(0.0, 10, 5, "t", "standard")]), []) == []
