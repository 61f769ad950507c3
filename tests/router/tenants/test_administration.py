from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy import Connection

from router.core.tenant import (
    PLATFORM_SCOPES,
    ApiKey,
    Caller,
    Limits,
    Organisation,
    Price,
    Role,
    Scope,
    User,
)
from router.store.database import Store
from router.store.schema import METADATA
from router.tenants import records
from router.tenants.administration import Administration
from router.tenants.audited import AlreadyThere, Forbidden
from router.tenants.keys import Catalogue, Keyring, Reason, Refused
from router.tenants.rbac import SYSTEM, Actor
from router.tenants.records import NotFound
from router.tenants.treasury import Treasury
from tests.router.control.releases.stored import keep_release
from tests.router.tenants.values import DAY, NOW_S, PEPPER, usage


@dataclass
class Office:
    """An administration, the copy of the store that its process keeps, and an organisation to work on."""

    store: Store
    administration: Administration
    catalogue: Catalogue
    keyring: Keyring
    organisation: Organisation
    owner: User
    admin: User
    member: User
    now_s: float = NOW_S

    def verify(self, text: str) -> Caller | Refused:
        return self.keyring.verify(text, self.now_s)


@pytest.fixture
def office(store: Store) -> Office:
    keyring = Keyring(PEPPER)
    catalogue = Catalogue(store, keyring)
    administration = Administration(store, PEPPER, catalogue.refresh, lambda: made.now_s)
    setup = Administration(store, PEPPER)
    organisation = setup.create_organisation(SYSTEM, "acme")
    people = {
        role: setup.create_user(SYSTEM, organisation.id, role.value, role)
        for role in (Role.OWNER, Role.ADMIN, Role.MEMBER)
    }
    made = Office(
        store,
        administration,
        catalogue,
        keyring,
        organisation,
        people[Role.OWNER],
        people[Role.ADMIN],
        people[Role.MEMBER],
    )
    return made


def share_of(office: Office) -> tuple[float, float]:
    tenant = office.organisation.id
    return office.catalogue.weight(tenant), office.catalogue.slot_share(tenant)


def new_key(office: Office, user: User, expires_s: float | None = None) -> tuple[str, str]:
    key, text = office.administration.create_key(
        Actor.of(user), user.organisation_id, user.id, "laptop", expires_s=expires_s
    )
    return key.id, text


def test_a_new_key_works_at_once_and_its_secret_is_not_in_the_store(office: Office) -> None:
    key_id, text = new_key(office, office.member)
    found = office.verify(text)
    assert isinstance(found, Caller)
    assert (found.key.id, found.user, found.organisation) == (key_id, office.member, office.organisation)
    with office.store.read() as connection:
        for table in METADATA.sorted_tables:
            for row in connection.execute(sql.select(table)):
                assert text.split("-")[2] not in repr(row)


def test_a_revoked_key_is_refused_at_once_and_stays_so(office: Office) -> None:
    key_id, text = new_key(office, office.member)
    office.administration.revoke_key(Actor.of(office.member), office.organisation.id, key_id)
    refused = office.verify(text)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.REVOKED
    with pytest.raises(NotFound):
        office.administration.revoke_key(Actor.of(office.member), office.organisation.id, key_id)
    with pytest.raises(NotFound):
        office.administration.rotate_key(Actor.of(office.member), office.organisation.id, key_id)


def test_a_rotated_key_keeps_its_id_and_its_old_secret_for_the_grace_period(office: Office) -> None:
    key_id, first = new_key(office, office.member)
    actor, organisation_id = Actor.of(office.member), office.organisation.id
    rotated, second = office.administration.rotate_key(actor, organisation_id, key_id, grace_s=60)
    assert rotated.id == key_id
    assert isinstance(office.verify(first), Caller)
    assert isinstance(office.verify(second), Caller)
    office.now_s += 60
    assert isinstance(office.verify(first), Refused)
    _, third = office.administration.rotate_key(actor, organisation_id, key_id, grace_s=60)
    assert [isinstance(office.verify(text), Caller) for text in (first, second, third)] == [False, True, True]
    assert len(office.keyring) == 2


def test_an_expired_key_is_refused_without_further_action(office: Office) -> None:
    _, text = new_key(office, office.member, expires_s=NOW_S + 10)
    assert isinstance(office.verify(text), Caller)
    office.now_s += 10
    assert isinstance(office.verify(text), Refused)


def test_other_processes_learn_of_a_change_at_their_next_refresh(office: Office) -> None:
    elsewhere = Keyring(PEPPER)
    catalogue = Catalogue(office.store, elsewhere)
    assert catalogue.refresh()
    key_id, text = new_key(office, office.member)
    assert isinstance(elsewhere.verify(text, NOW_S), Refused)
    assert catalogue.refresh()
    assert isinstance(elsewhere.verify(text, NOW_S), Caller)
    office.administration.revoke_key(SYSTEM, office.organisation.id, key_id)
    office.administration.set_price(SYSTEM, Price("smol", 1, 2, 3))
    assert catalogue.refresh()
    assert isinstance(elsewhere.verify(text, NOW_S), Refused)
    assert catalogue.prices == {"smol": Price("smol", 1, 2, 3)}
    assert not catalogue.refresh()


def test_limits_and_roles_reach_the_callers(office: Office) -> None:
    key_id, text = new_key(office, office.member)
    organisation_id = office.organisation.id
    whole, own = (
        Limits(tokens_per_min=100, monthly_budget=5, budget_is_hard=False),
        Limits(requests_per_min=3),
    )
    office.administration.set_limits(SYSTEM, organisation_id, Limits(requests_per_min=1))
    office.administration.set_limits(SYSTEM, organisation_id, whole)
    office.administration.set_limits(Actor.of(office.admin), organisation_id, own, key_id)
    office.administration.set_role(Actor.of(office.owner), organisation_id, office.member.id, Role.VIEWER)
    found = office.verify(text)
    assert isinstance(found, Caller)
    assert (found.organisation_limits, found.key_limits, found.user.role) == (whole, own, Role.VIEWER)
    listed = office.administration.list_limits(Actor.of(office.member), organisation_id)
    assert listed == {organisation_id: whole, key_id: own}


def test_a_tenants_share_reaches_the_catalogue_and_is_removed_with_it(office: Office) -> None:
    organisation_id, do = office.organisation.id, office.administration
    key_id, _ = new_key(office, office.member)
    assert share_of(office) == (1, 1.0)
    do.set_limits(SYSTEM, organisation_id, Limits(weight=3, slot_percent=25))
    assert share_of(office) == (3, 0.25)
    assert do.list_limits(SYSTEM, organisation_id)[organisation_id] == Limits(weight=3, slot_percent=25)
    with pytest.raises(ValueError, match="are limits of a tenant"):
        do.set_limits(SYSTEM, organisation_id, Limits(slot_percent=50), key_id)
    do.delete_organisation(SYSTEM, organisation_id)
    assert share_of(office) == (1, 1.0)
    assert office.catalogue.weight("org-nowhere") == 1


def test_no_actor_can_raise_its_own_rights(office: Office) -> None:
    """Neither by making a user, nor a role, nor a key of somebody with more rights, nor by rotating one."""
    admin, organisation_id = Actor.of(office.admin), office.organisation.id
    key_id, _ = new_key(office, office.owner)
    do = office.administration
    for attempt in (
        lambda: do.create_user(admin, organisation_id, "eve", Role.OWNER),
        lambda: do.create_user(
            Actor.of(office.owner), organisation_id, "eve", Role.VIEWER, platform_admin=True
        ),
        lambda: do.set_role(admin, organisation_id, office.member.id, Role.OWNER),
        lambda: do.set_role(admin, organisation_id, office.owner.id, Role.VIEWER),
        lambda: do.create_key(admin, organisation_id, office.owner.id, "mine now"),
        lambda: do.rotate_key(admin, organisation_id, key_id),
        lambda: do.revoke_key(admin, organisation_id, key_id),
        lambda: do.set_limits(admin, organisation_id, Limits(requests_per_min=0), key_id),
        lambda: do.rotate_key(Actor.of(office.member), organisation_id, key_id),
        lambda: do.revoke_key(Actor.of(office.member), organisation_id, key_id),
        lambda: do.create_key(Actor.of(office.member), organisation_id, office.admin.id, "mine now"),
        lambda: do.set_limits(Actor.of(office.owner), organisation_id, Limits()),
        lambda: do.set_price(Actor.of(office.owner), Price("smol", 0, 0, 0)),
    ):
        with pytest.raises(Forbidden):
            attempt()
    assert {user.name for user in do.list_users(SYSTEM, organisation_id)} == {"owner", "admin", "member"}
    refusals = [entry for entry in do.audit_log(SYSTEM, None) if not entry.allowed]
    assert len(refusals) == 13


def test_another_organisation_is_out_of_reach_whether_it_exists_or_not(office: Office) -> None:
    other = office.administration.create_organisation(SYSTEM, "other")
    owner = Actor.of(office.owner)
    texts = set()
    for organisation_id in (other.id, "org-nowhere"):
        with pytest.raises(Forbidden) as refused:
            office.administration.list_keys(owner, organisation_id)
        texts.add(str(refused.value))
    assert len(texts) == 1
    do = office.administration
    for attempt in (
        lambda: do.create_user(SYSTEM, "org-nowhere", "ann", Role.OWNER),
        lambda: do.list_users(SYSTEM, "org-nowhere"),
        lambda: do.list_keys(SYSTEM, "org-nowhere"),
        lambda: do.list_limits(SYSTEM, "org-nowhere"),
        lambda: do.export_organisation(SYSTEM, "org-nowhere"),
    ):
        with pytest.raises(NotFound):
            attempt()
    key_id, _ = new_key(office, office.member)
    with pytest.raises(NotFound):
        office.administration.set_limits(SYSTEM, other.id, Limits(), key_id)


def test_a_member_sees_only_the_own_keys_and_an_admin_all(office: Office) -> None:
    mine, _ = new_key(office, office.member)
    theirs, _ = new_key(office, office.owner)
    do, organisation_id = office.administration, office.organisation.id
    assert [key.id for key in do.list_keys(Actor.of(office.member), organisation_id)] == [mine]
    assert {key.id for key in do.list_keys(Actor.of(office.admin), organisation_id)} == {mine, theirs}


def test_a_key_without_the_scope_does_not_administer_whatever_its_holders_role(office: Office) -> None:
    actor = Actor.of(office.owner, frozenset({Scope.INFERENCE, Scope.ADMIN_READ}))
    office.administration.list_users(actor, office.organisation.id)
    with pytest.raises(Forbidden):
        office.administration.create_user(actor, office.organisation.id, "ann", Role.VIEWER)


def test_names_are_unique_and_a_change_that_fails_is_not_in_the_audit_log(office: Office) -> None:
    before = office.administration.audit_log(SYSTEM, None)
    with pytest.raises(AlreadyThere):
        office.administration.create_organisation(SYSTEM, "acme")
    with pytest.raises(AlreadyThere):
        office.administration.create_user(SYSTEM, office.organisation.id, "owner", Role.VIEWER)
    with pytest.raises(ValueError, match="name: expected"):
        office.administration.create_organisation(SYSTEM, "")
    with pytest.raises(ValueError, match="not the name of a model"):
        office.administration.create_key(
            SYSTEM, office.organisation.id, office.owner.id, "k", models=frozenset({"a b"})
        )
    assert office.administration.audit_log(SYSTEM, None) == before


def test_every_change_is_in_the_audit_log_with_actor_and_target(office: Office) -> None:
    key_id, text = new_key(office, office.member)
    actor = Actor.of(office.member)
    office.administration.rotate_key(actor, office.organisation.id, key_id)
    office.administration.revoke_key(actor, office.organisation.id, key_id)
    entries = office.administration.audit_log(Actor.of(office.admin), office.organisation.id, most=3)
    assert [(entry.action, entry.target, entry.actor, entry.allowed) for entry in entries] == [
        ("key.revoke", key_id, office.member.id, True),
        ("key.rotate", key_id, office.member.id, True),
        ("key.write_own", key_id, office.member.id, True),
    ]
    assert entries[2].detail["prefix"] == text.split("-")[1]
    assert entries[2].at_s == NOW_S


def test_a_tenant_can_be_exported_and_deleted_and_its_bill_and_audit_stay(office: Office) -> None:
    organisation_id, owner = office.organisation.id, Actor.of(office.owner)
    key_id, text = new_key(office, office.member)
    other = office.administration.create_organisation(SYSTEM, "other")
    Treasury(office.store, "one").charge(
        [
            usage("request-1", organisation_id=organisation_id, key_id=key_id),
            usage("request-2", organisation_id=other.id, key_id="key-2"),
        ]
    )
    exported = office.administration.export_organisation(owner, organisation_id)
    assert [key["id"] for key in exported["api_keys"]] == [key_id]
    assert [record["request_id"] for record in exported["usage"]] == ["request-1"]
    assert "digest" not in json.dumps(exported)
    with pytest.raises(Forbidden):
        office.administration.delete_organisation(owner, organisation_id)
    assert isinstance(office.verify(text), Caller)
    office.administration.delete_organisation(SYSTEM, organisation_id)
    assert isinstance(office.verify(text), Refused)
    assert office.administration.list_organisations(SYSTEM) == [other]
    with office.store.read() as connection:
        left = {
            table.name: [
                tuple(row) for row in connection.execute(sql.select(table)) if organisation_id in row
            ]
            for table in METADATA.sorted_tables
        }
    kept = {name: rows for name, rows in left.items() if rows}
    assert kept.keys() == {"organisations", "audit", "usage", "spending"}
    actions = [each.action for each in office.administration.audit_log(SYSTEM, organisation_id)]
    assert actions[:2] == ["organisation.delete", "organisation.delete"], "done, and refused before"
    assert "key.write_own" in actions
    Treasury(office.store, "one").charge([usage("request-3", organisation_id=organisation_id, key_id=key_id)])
    billed = office.administration.usage(SYSTEM, None, ("organisation",), DAY, DAY)
    assert {each.group: (each.requests, each.cost) for each in billed} == {
        (organisation_id,): (2, 20),  # with one that was running meanwhile
        (other.id,): (1, 10),
    }
    assert office.administration.create_organisation(SYSTEM, "acme").id != organisation_id
    with pytest.raises(NotFound):
        office.administration.delete_organisation(SYSTEM, organisation_id)


def test_the_store_is_writable_while_a_tenant_is_exported(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(connection: Connection, organisation_id: str) -> dict[str, Any]:
        office.administration.create_user(SYSTEM, organisation_id, "meanwhile", Role.VIEWER)
        return {"organisation": organisation_id}

    monkeypatch.setattr(records, "export", export)
    owner = Actor.of(office.owner)
    office.administration.export_organisation(owner, office.organisation.id)
    _, entry = office.administration.audit_log(SYSTEM, office.organisation.id, most=2)
    assert (entry.action, entry.actor) == ("organisation.export", owner.user_id)


@pytest.mark.parametrize("expires_s", [NOW_S - 1, 1e18])
def test_a_keys_expiry_must_be_in_the_future_and_representable(office: Office, expires_s: float) -> None:
    with pytest.raises(ValueError, match="expires: expected a time in the future"):
        office.administration.create_key(
            SYSTEM, office.organisation.id, office.owner.id, "k", expires_s=expires_s
        )


@pytest.mark.parametrize("day", ["yesterday", "2026-02-30", "2026-2-3", "", "٢٠٢٦-٠١-٠١"])
def test_usage_of_an_invalid_day_is_refused(office: Office, day: str) -> None:
    with pytest.raises(ValueError, match="since: expected a day as YYYY-MM-DD"):
        office.administration.usage(SYSTEM, None, (), day, "2026-12-01")


def test_prices_are_set_by_the_platform_and_readable_by_all(office: Office) -> None:
    for completion in (5, 6):
        office.administration.set_price(SYSTEM, Price("smol", 1, 2, completion))
    assert office.administration.list_prices(Actor.of(office.member)) == [Price("smol", 1, 2, 6)]
    assert office.catalogue.prices["smol"].completion == 6


def test_an_adapter_has_the_price_of_its_base_unless_it_has_its_own(office: Office) -> None:
    office.administration.set_price(SYSTEM, Price("smol", 1, 2, 3))
    office.administration.set_price(SYSTEM, Price("smol:dear", 4, 5, 6))
    assert office.catalogue.price_of("smol:sql") == Price("smol", 1, 2, 3)
    assert office.catalogue.price_of("smol:dear") == Price("smol:dear", 4, 5, 6)
    assert office.catalogue.price_of("other:sql") is None


def test_a_price_is_for_a_model_that_exists_and_can_be_taken_back(office: Office) -> None:
    office.administration.set_price(SYSTEM, Price("before", 1, 1, 1))  # nothing was ever served
    keep_release(office.store, "smol", 1)
    with pytest.raises(NotFound, match="there is no model 'smal'; there are smol"):
        office.administration.set_price(SYSTEM, Price("smal", 1, 2, 3))
    office.administration.set_price(SYSTEM, Price("smol", 1, 2, 3))
    with pytest.raises(Forbidden):
        office.administration.delete_price(Actor.of(office.owner), "smol")
    office.administration.delete_price(SYSTEM, "before")
    assert office.catalogue.prices == {"smol": Price("smol", 1, 2, 3)}
    with pytest.raises(NotFound, match="no price for the model 'before'"):
        office.administration.delete_price(SYSTEM, "before")
    actions = [entry.action for entry in office.administration.audit_log(SYSTEM, None)]
    assert "price.delete" in actions


def calling(office: Office, user: User, text: str) -> Actor:
    found = office.verify(text)
    assert isinstance(found, Caller)
    assert found.user == user
    return Actor.calling(found, "203.0.113.7")


def test_a_key_makes_none_that_may_more_than_itself(office: Office) -> None:
    do, owner, organisation_id = office.administration, office.owner, office.organisation.id
    scopes = frozenset({Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN_WRITE})
    models, expires_s = frozenset({"smol"}), NOW_S + 100
    strong, _ = do.create_key(SYSTEM, organisation_id, owner.id, "strong", frozenset(Scope))
    weak, text = do.create_key(SYSTEM, organisation_id, owner.id, "weak", scopes, models, expires_s)
    actor = calling(office, owner, text)

    def make(**wanted: Any) -> tuple[ApiKey, str]:
        return do.create_key(actor, organisation_id, owner.id, "mine", **wanted)

    for wanted in (
        {"scopes": frozenset({Scope.FILES})},
        {"models": frozenset({"smol", "large"})},
        {"expires_s": NOW_S + 101},
    ):
        with pytest.raises(Forbidden, match="more permissions than its own"):
            make(**wanted)
    with pytest.raises(Forbidden, match="more permissions than its own"):
        do.rotate_key(actor, organisation_id, strong.id)
    made, _ = make()  # what is left out is as the maker's own
    assert (made.scopes, made.models, made.expires_s) == (frozenset({Scope.INFERENCE}), models, expires_s)
    assert do.rotate_key(actor, organisation_id, weak.id)[0].id == weak.id
    assert do.rotate_key(actor, organisation_id, made.id)[0].scopes == made.scopes


def test_a_limited_key_gets_round_its_limits_by_no_other_key(office: Office) -> None:
    do, owner, organisation_id = office.administration, office.owner, office.organisation.id
    usual = frozenset(Scope) - PLATFORM_SCOPES
    free, _ = do.create_key(SYSTEM, organisation_id, owner.id, "free", usual)
    own, text = do.create_key(SYSTEM, organisation_id, owner.id, "limited", usual)
    do.set_limits(SYSTEM, organisation_id, Limits(requests_per_min=1), own.id)
    office.catalogue.refresh()
    actor = calling(office, owner, text)
    for attempt in (
        lambda: do.create_key(actor, organisation_id, owner.id, "another"),
        lambda: do.rotate_key(actor, organisation_id, free.id),
        lambda: do.set_limits(actor, organisation_id, Limits(), own.id),
        lambda: do.set_limits(actor, organisation_id, Limits(requests_per_min=2), free.id),
    ):
        with pytest.raises(Forbidden):
            attempt()
    do.set_limits(actor, organisation_id, Limits(requests_per_min=1), free.id)
    do.rotate_key(actor, organisation_id, free.id)  # it may no more than the other now


def test_the_audit_log_names_the_key_and_the_address(office: Office) -> None:
    do, owner, organisation_id = office.administration, office.owner, office.organisation.id
    key, text = do.create_key(SYSTEM, organisation_id, owner.id, "k", frozenset(Scope))
    actor = calling(office, owner, text)
    do.create_user(actor, organisation_id, "ann", Role.VIEWER)
    with pytest.raises(Forbidden):
        do.list_organisations(actor)
    refused, done, by_hand = do.audit_log(SYSTEM, None, most=3)
    assert (refused.key_id, refused.address, refused.allowed) == (key.id, "203.0.113.7", False)
    assert (done.key_id, done.address, done.allowed) == (key.id, "203.0.113.7", True)
    assert (by_hand.actor, by_hand.key_id, by_hand.address) == ("system", "", "")


def test_who_is_refused_again_and_again_fills_no_disk(office: Office) -> None:
    """Whatever it asks for: other targets are no other entries."""
    do, eve = office.administration, Actor.of(office.member)

    def refusals() -> list[dict[str, Any]]:
        entries = do.audit_log(SYSTEM, None, most=1000)
        return [entry.detail for entry in reversed(entries) if not entry.allowed]

    for number in range(250):
        with pytest.raises(Forbidden):
            do.list_users(eve, f"org-{number}")
    times = [*range(1, 11), 100]
    assert [each.get("times", 1) for each in refusals()] == times
    with pytest.raises(Forbidden):
        do.create_organisation(eve, "mine")
    assert len(refusals()) == len(times) + 1, "another act is another entry"
    office.now_s += 3600
    with pytest.raises(Forbidden):
        do.list_users(eve, "org-1")
    assert len(refusals()) == len(times) + 2, "and so is another hour"
