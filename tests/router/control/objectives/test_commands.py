from __future__ import annotations

import json

import pytest
import sqlalchemy as sql

from python_backend.wire.tiers import Tier
from router.control.objectives import records
from router.control.objectives.commands import ALL_TIERS, ObjectiveCommands
from router.control.objectives.standing import Figures, Verdict
from router.control.releases.states import State
from router.core.manifest import Kind
from router.core.objective import Metric
from router.core.tenant import Role, Scope
from router.store.database import Store, read_counters
from router.store.schema import audit, objective_figures, objectives
from router.tenants.audited import Forbidden
from router.tenants.rbac import SYSTEM, Actor
from router.tenants.records import NotFound
from tests.router.control.releases.values import MODEL, manifest, put
from tests.router.control.releases.values import office as releases
from tests.router.tenants.values import NOW_S


def office_of(store: Store, actor: Actor = SYSTEM) -> ObjectiveCommands:
    return ObjectiveCommands(store, actor, lambda: NOW_S)


@pytest.fixture
def office(lite: Store) -> ObjectiveCommands:
    """There are smol, which generates text, and vectors, which does not."""
    releases(lite).add(manifest())
    releases(lite).add(manifest(model="vectors", kind=Kind.EMBEDDINGS))
    return office_of(lite)


def entries(store: Store) -> list[tuple[str, str, bool, dict[str, object]]]:
    with store.read() as connection:
        rows = connection.execute(sql.select(audit).order_by(audit.c.id))
        found = [(row.action, row.target, row.allowed, json.loads(row.detail)) for row in rows]
    return [each for each in found if each[0].startswith("objective.")]


def measure(store: Store, router: str, tier: Tier, counts: dict[int, int], at_s: float = NOW_S) -> None:
    figures = records.figures_to_json(Figures({Metric.FIRST_TOKEN: counts}))
    row = {"router": router, "model": MODEL, "tier": tier.label, "at_s": at_s, "figures": figures}
    with store.begin() as connection:
        connection.execute(store.insert_or_update(objective_figures, row))


def test_an_objective_is_set_shown_and_cleared_in_each_kind_of_store(store: Store) -> None:
    releases(store).add(manifest())
    office = office_of(store)
    office.set(MODEL, ALL_TIERS, {Metric.FIRST_TOKEN: 0.5})
    office.set(MODEL, [Tier.STANDARD], {Metric.INTER_TOKEN: 0.05}, keeps_others=True)
    office.set(MODEL, [Tier.BATCH], {Metric.INTER_TOKEN: 0.2})
    measure(store, "a", Tier.STANDARD, {500: 30})
    measure(store, "b", Tier.STANDARD, {500: 12, 600: 1})
    (found,) = office.show()
    assert (found.model, found.kind) == (MODEL, Kind.TEXT)
    asked = {(each.tier, each.metric): each.objective_s for each in found.standings if each.objective_s}
    assert asked == {
        (Tier.INTERACTIVE, Metric.FIRST_TOKEN): 0.5,
        (Tier.STANDARD, Metric.FIRST_TOKEN): 0.5,
        (Tier.STANDARD, Metric.INTER_TOKEN): 0.05,
        (Tier.BATCH, Metric.INTER_TOKEN): 0.2,
    }
    (measured,) = (each for each in found.standings if each.samples)
    assert (measured.tier, measured.samples, measured.verdict) == (Tier.STANDARD, 43, Verdict.KEPT)
    gone = office.clear(MODEL, [Tier.INTERACTIVE, Tier.STANDARD])
    assert [each.tier for each in gone] == [Tier.INTERACTIVE, Tier.STANDARD]
    office.set(MODEL, [Tier.BATCH], {Metric.INTER_TOKEN: None}, keeps_others=True)
    with store.read() as connection:
        assert connection.execute(sql.select(objectives)).all() == [], "what asks for nothing is not kept"


def test_every_change_is_in_the_audit_log_with_its_values(office: ObjectiveCommands, lite: Store) -> None:
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    office.clear(MODEL)
    assert entries(lite) == [
        ("objective.set", MODEL, True, {"tiers": ["standard"], "first_token_s": 0.5}),
        ("objective.clear", MODEL, True, {"tiers": ["batch", "interactive", "standard"]}),
    ]


def test_an_act_that_is_refused_leaves_nothing_behind(office: ObjectiveCommands, lite: Store) -> None:
    with pytest.raises(
        ValueError, match=r"smol generates text: .* first token and inter-token, not end to end"
    ):
        office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5, Metric.END_TO_END: 0.1})
    with pytest.raises(
        ValueError, match=r"vectors is for embeddings and has no tokens: .* end to end, not first"
    ):
        office.set("vectors", [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    with pytest.raises(ValueError, match=r"first_token_s: expected 0.001 to 3600 seconds"):
        office.set(MODEL, ALL_TIERS, {Metric.FIRST_TOKEN: 1e-9})
    with pytest.raises(NotFound, match="model smoll not found; there are: smol, vectors"):
        office.set("smoll", [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    with pytest.raises(NotFound, match="model smoll not found; there are: smol, vectors"):
        office.show("smoll")
    with pytest.raises(NotFound, match="smol has no objective for batch"):
        office.clear(MODEL, [Tier.BATCH])
    assert entries(lite) == []
    with lite.read() as connection:
        assert read_counters(connection).get(records.COUNTER, 0) == 0
        assert records.list_objectives(connection) == []


def test_without_models_setting_an_objective_says_to_start_the_stack_first(lite: Store) -> None:
    with pytest.raises(NotFound, match="there are no models yet: run `inflight up` first"):
        office_of(lite).set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    assert office_of(lite).show() == []


def test_the_objective_of_a_model_that_has_gone_is_still_shown_and_can_be_cleared(
    office: ObjectiveCommands, lite: Store
) -> None:
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    put(lite, 1, State.GONE)
    (gone, _) = office.show()
    assert (gone.model, gone.kind, len(gone.standings)) == (MODEL, None, 1)
    office.clear(MODEL)
    assert [each.model for each in office.show()] == ["vectors"]


def test_measurements_of_a_router_that_is_gone_do_not_count(office: ObjectiveCommands, lite: Store) -> None:
    office.set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    measure(lite, "dead", Tier.STANDARD, {500: 30}, NOW_S - records.FRESH_S - 1)
    (found,) = office.show(MODEL)
    assert all(each.samples == 0 for each in found.standings)


def test_only_platform_administrators_may_see_or_set_objectives(
    office: ObjectiveCommands, lite: Store
) -> None:
    owner = Actor("user-1", "org-1", Role.OWNER)
    reader = Actor("user-2", None, Role.OWNER, platform_admin=True, scopes=frozenset({Scope.ADMIN_READ}))
    with pytest.raises(Forbidden):
        office_of(lite, owner).show()
    for actor in (owner, reader):
        with pytest.raises(Forbidden):
            office_of(lite, actor).set(MODEL, [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
        with pytest.raises(Forbidden):
            office_of(lite, actor).clear(MODEL)
    assert {each[:3] for each in entries(lite)} == {
        ("objective.read", "", False),
        ("objective.set", MODEL, False),
        ("objective.clear", MODEL, False),
    }
    assert office_of(lite, reader).show(MODEL)
