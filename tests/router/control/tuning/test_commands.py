"""What the store knows of tuning, and who may change that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from python_backend.wire.tiers import Tier
from router.control.objectives.commands import ObjectiveCommands
from router.control.releases.states import State
from router.control.tuning import decisions as reading
from router.control.tuning.commands import TuningCommands
from router.control.tuning.decisions import TuningDecision, keep_decision, last_decisions, list_decisions
from router.core.objective import Metric
from router.core.tenant import Role
from router.store.database import Store, sqlite_url
from router.store.schema import audit
from router.tenants.audited import Forbidden
from router.tenants.keys import fingerprint
from router.tenants.rbac import SYSTEM, Actor
from router.tenants.records import NotFound
from tests.router.control.releases.stored import keep_release
from tests.router.tenants.values import PEPPER


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(sqlite_url(tmp_path / "store.db"))
    opened.prepare(fingerprint(PEPPER))
    keep_release(opened, "m", 1, State.READY)
    yield opened
    opened.close()


@pytest.fixture
def office(store: Store) -> TuningCommands:
    return TuningCommands(store, SYSTEM, lambda: 7.0)


def decision(action: str, sentence: str = "", triton_model: str = "m.1") -> TuningDecision:
    return TuningDecision(1.0, "m", 1, triton_model, None, action, sentence, {"delay_ms": 5.0})


def keep(store: Store, *decisions: TuningDecision) -> None:
    for each in decisions:
        with store.begin() as connection:
            keep_decision(each, connection)


def test_of_several_hold_decisions_the_last_one_is_kept(store: Store) -> None:
    other = decision("hold", "other", "m.1.other")
    keep(store, decision("hold", "first"), other, decision("hold", "second"), decision("raise", "up"))
    keep(store, decision("hold", "third"), decision("hold", "fourth"))
    with store.read() as connection:
        every = list_decisions(connection, with_holds=True)
        changes = list_decisions(connection)
        standing = last_decisions(connection, "m")
    assert [each.sentence for each in every] == ["fourth", "up", "second", "other"]
    assert [each.sentence for each in changes] == ["up"]
    assert [each.sentence for each in standing] == ["fourth", "other"]
    assert standing[0] == decision("hold", "fourth")


def test_a_bounded_number_of_decisions_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_KEPT", 3)
    keep(store, *(decision("raise", str(number)) for number in range(6)))
    with store.read() as connection:
        assert [each.sentence for each in list_decisions(connection)] == ["5", "4", "3"]


def test_an_explanation_has_the_standing_decisions_and_the_changes(
    store: Store, office: TuningCommands
) -> None:
    (found,) = office.explain("m")
    assert (found.has_objective, found.paused_s, found.standing, found.changes) == (False, None, (), ())
    ObjectiveCommands(store, SYSTEM).set("m", [Tier.STANDARD], {Metric.FIRST_TOKEN: 0.5})
    office.pause("m")
    keep(store, decision("raise", "up"), decision("hold", "as it is"))
    assert office.explain() == office.explain("m")
    (found,) = office.explain("m")
    assert (found.has_objective, found.paused_s) == (True, 7.0)
    assert [each.sentence for each in (*found.standing, *found.changes)] == ["as it is", "up"]


def test_a_pause_is_announced_once_and_audited(store: Store, office: TuningCommands) -> None:
    assert [office.pause("m", paused) for paused in (True, True, False, False)] == [True, False, True, False]
    with store.read() as connection:
        kept = connection.execute(sql.select(audit.c.action, audit.c.target, audit.c.allowed)).all()
    assert tuple(kept[-4]) == ("tuning.pause", "m", True)
    assert kept[-1].action == "tuning.resume"


def test_an_unknown_model_is_refused_with_the_known_ones(office: TuningCommands) -> None:
    for act in (office.explain, office.history, office.pause):
        with pytest.raises(NotFound, match="model x not found; there are: m"):
            act("x")
    assert office.history("m") == []


def test_only_the_platform_may_read_or_pause_tuning(store: Store) -> None:
    theirs = TuningCommands(store, Actor("someone", "org", Role.OWNER), lambda: 7.0)
    with pytest.raises(Forbidden):
        theirs.explain("m")
    with pytest.raises(Forbidden):
        theirs.pause("m")
    with store.read() as connection:
        kept = connection.execute(sql.select(audit.c.action, audit.c.allowed)).all()
    assert ("tuning.pause", False) in [tuple(each) for each in kept]
