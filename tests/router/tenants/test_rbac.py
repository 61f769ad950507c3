from __future__ import annotations

from itertools import product

import pytest

from router.core.tenant import Role, Scope
from router.tenants.rbac import SYSTEM, Action, Actor, allows, may_act_for

# Written out, so that a change of the table has to be made twice, and thought about once more.
VIEWER = {"organisation.read", "price.read", "usage.read", "limits.read"}
MEMBER = VIEWER | {"key.read_own", "key.write_own"}
ADMIN = MEMBER | {"user.read", "user.write", "key.read", "key.write", "limits.write_key", "audit.read"}
OWNER = ADMIN | {"organisation.export", "organisation.delete"}
WITHIN = {Role.VIEWER: VIEWER, Role.MEMBER: MEMBER, Role.ADMIN: ADMIN, Role.OWNER: OWNER}
READS = {
    "organisation.list", "organisation.read", "organisation.export", "user.read", "key.read", "key.read_own",
    "limits.read", "audit.read", "release.read", "objective.read",
}  # fmt: skip
SCOPES = [None, frozenset[Scope](), frozenset(Scope), *(frozenset({scope}) for scope in Scope)]


def scope_for(action: str) -> Scope:
    if action in ("usage.read", "price.read"):
        return Scope.USAGE_READ
    return Scope.ADMIN_READ if action in READS else Scope.ADMIN_WRITE


@pytest.mark.parametrize("action", Action)
def test_every_role_scope_and_target_follows_the_permission_table(action: Action) -> None:
    for role, platform, scopes, target in product(Role, (False, True), SCOPES, ("own", "other", None)):
        actor = Actor("user-1", "own", role, platform, scopes)
        by_role = platform or (target == "own" and action.label in WITHIN[role])
        by_scope = scopes is None or scope_for(action.label) in scopes
        assert allows(actor, action, target) == (by_role and by_scope), (actor, target)


def test_an_actor_without_an_organisation_may_do_nothing_unless_it_is_the_platform() -> None:
    for action, role in product(Action, Role):
        assert not allows(Actor("user-1", None, role), action, None)
        assert allows(SYSTEM, action, None)


def test_no_actor_acts_for_a_user_of_a_higher_role() -> None:
    order = [Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER]
    for actor_role, role in product(order, order):
        actor = Actor("user-1", "own", actor_role)
        assert may_act_for(actor, role, False) == (order.index(role) <= order.index(actor_role))
        assert not may_act_for(actor, role, True)
        assert may_act_for(SYSTEM, role, True)


def test_every_action_has_a_label_of_its_own() -> None:
    assert len({action.label for action in Action}) == len(Action)
