from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from router.core.actions import Action
from router.core.tenant import ApiKey, Limits, Role, Scope
from router.tenants.rbac import SYSTEM, Actor, allows, beyond, may_act_for

# Written out, so that a change of the table has to be made twice, and thought about once more.
OPEN = {"health.read", "about.read", "session.use", "metrics.read_openly"}
OWN = {
    "inference.run": Scope.INFERENCE, "embedding.run": Scope.EMBEDDINGS, "model.read": Scope.INFERENCE,
    "conversation.read": Scope.INFERENCE, "conversation.write": Scope.INFERENCE,
    "request.read_own": Scope.INFERENCE, "file.read": Scope.FILES, "file.write": Scope.FILES,
    "batch.read": Scope.FILES, "batch.write": Scope.FILES,
}  # fmt: skip
VIEWER = {*OWN, "organisation.read", "price.read", "usage.read", "limits.read"}
MEMBER = VIEWER | {"key.read_own", "key.write_own"}
ADMIN = MEMBER | {
    "user.read", "user.write", "key.read", "key.write", "limits.write_key", "audit.read", "request.read",
}  # fmt: skip
OWNER = ADMIN | {"organisation.export", "request.read_content"}
WITHIN = {Role.VIEWER: VIEWER, Role.MEMBER: MEMBER, Role.ADMIN: ADMIN, Role.OWNER: OWNER}
READS = {
    "organisation.list", "organisation.read", "organisation.export", "user.read", "key.read", "key.read_own",
    "limits.read", "audit.read", "release.read", "objective.read", "now.read", "request.read",
    "request.read_content", "simulation.run",
}  # fmt: skip
SCOPES = [None, frozenset[Scope](), frozenset(Scope), *(frozenset({scope}) for scope in Scope)]


def scope_for(action: str) -> Scope:
    if action in OWN:
        return OWN[action]
    if action == "metrics.read":
        return Scope.METRICS_READ
    if action in ("usage.read", "usage.read_all", "price.read"):
        return Scope.USAGE_READ
    return Scope.ADMIN_READ if action in READS else Scope.ADMIN_WRITE


@pytest.mark.parametrize("action", Action)
def test_every_role_scope_and_target_follows_the_permission_table(action: Action) -> None:
    for role, platform, scopes, target in product(Role, (False, True), SCOPES, ("own", "other", None)):
        actor = Actor("user-1", "own", role, platform, scopes)
        if action.label in OPEN:
            assert allows(actor, action, target)
            continue
        by_role = platform or (target == "own" and action.label in WITHIN[role])
        if action.label == "metrics.read":  # whoever holds its scope has it from the platform
            by_role = platform or scopes is not None
        by_scope = scopes is None or scope_for(action.label) in scopes
        assert allows(actor, action, target) == (by_role and by_scope), (actor, target)


def test_an_actor_without_an_organisation_may_do_nothing_unless_it_is_the_platform() -> None:
    for action, role in product(Action, Role):
        assert allows(Actor("user-1", None, role), action, None) == (action.label in OPEN)
        assert allows(SYSTEM, action, None)


def test_no_actor_acts_for_a_user_of_a_higher_role() -> None:
    order = [Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER]
    for actor_role, role in product(order, order):
        actor = Actor("user-1", "own", actor_role)
        assert may_act_for(actor, role, False) == (order.index(role) <= order.index(actor_role))
        assert not may_act_for(actor, role, True)
        assert may_act_for(SYSTEM, role, True)


KEY = ApiKey(
    "key-1", "own", "user-1", "laptop", "", b"", frozenset({Scope.INFERENCE}), 0.0, frozenset({"smol"}), 100.0
)
LIMITED = Limits(requests_per_min=60, tokens_per_min=1000, concurrent_requests=2, monthly_budget=5)


def actor_with(**own: Any) -> Actor:
    scopes = frozenset({Scope.INFERENCE, Scope.ADMIN_WRITE})
    return Actor("user-1", "own", Role.OWNER, platform_admin=True, **{"scopes": scopes, **own})


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({}, ""),
        ({"scopes": None, "models": frozenset({"other"}), "expires_s": 1.0}, ""),
        ({"scopes": frozenset({Scope.ADMIN_WRITE})}, "lacks the scopes inference"),
        ({"models": frozenset({"smol", "other"})}, ""),
        ({"models": frozenset({"other"})}, "limited to other"),
        ({"expires_s": 100.0}, ""),
        ({"expires_s": 99.0}, "expires earlier"),
        ({"limits": LIMITED}, "its own limits"),
    ],
)
def test_a_key_may_nothing_that_the_key_that_makes_it_may_not(own: dict[str, Any], why: str) -> None:
    found = beyond(actor_with(**own), KEY, Limits())
    assert why in found
    assert bool(why) == bool(found)
    assert not beyond(SYSTEM, KEY, Limits())


@pytest.mark.parametrize("scopes", [None, frozenset(Scope)])
def test_only_platform_admins_hand_out_what_concerns_all_tenants(scopes: frozenset[Scope] | None) -> None:
    scraping = replace(KEY, scopes=frozenset({Scope.METRICS_READ}), models=None, expires_s=None)
    owner = Actor("user-1", "own", Role.OWNER, scopes=scopes)
    assert beyond(owner, scraping, Limits()) == "only platform admins hand out metrics:read"
    assert not beyond(replace(owner, platform_admin=True), scraping, Limits())


def test_a_key_without_bounds_exceeds_one_that_has_some() -> None:
    boundless = replace(KEY, models=None, expires_s=None)
    assert "limited to" in beyond(actor_with(models=frozenset({"smol"})), boundless, Limits())
    assert "earlier" in beyond(actor_with(expires_s=1e12), boundless, Limits())


@pytest.mark.parametrize(
    ("changed", "exceeds"),
    [
        ({}, False),
        ({"requests_per_min": 59, "tokens_per_min": 1, "concurrent_requests": 0, "monthly_budget": 4}, False),
        ({"requests_per_min": None}, True),
        ({"requests_per_min": 61}, True),
        ({"request_burst": 60}, False),
        ({"request_burst": 61}, True),
        ({"token_burst": 1001}, True),
        ({"concurrent_requests": 3}, True),
        ({"monthly_budget": 6}, True),
        ({"budget_is_hard": False}, True),
    ],
)
def test_limits_exceed_others_where_any_of_them_does(changed: dict[str, Any], exceeds: bool) -> None:
    assert replace(LIMITED, **changed).exceeds(LIMITED) is exceeds
    assert not replace(LIMITED, **changed).exceeds(Limits())


def test_every_action_has_a_label_of_its_own() -> None:
    assert len({action.label for action in Action}) == len(Action)
