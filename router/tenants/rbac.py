"""Who may do what to which organisation: one table, one pure function."""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.core.actions import Action, Reach
from router.core.tenant import (
    NO_LIMITS,
    PLATFORM_SCOPES,
    ApiKey,
    Caller,
    Limits,
    Role,
    Scope,
    User,
)

_VIEWER = frozenset({Action.ORGANISATION_READ, Action.PRICE_READ, Action.USAGE_READ, Action.LIMITS_READ})
_MEMBER = _VIEWER | {Action.KEY_READ_OWN, Action.KEY_WRITE_OWN}
_ADMIN = _MEMBER | {
    Action.USER_READ,
    Action.USER_WRITE,
    Action.KEY_READ,
    Action.KEY_WRITE,
    Action.KEY_LIMITS_WRITE,
    Action.AUDIT_READ,
    Action.REQUEST_READ,
}
# What people wrote is for who may take all of it along.
_OWNER = _ADMIN | {Action.ORGANISATION_EXPORT, Action.CONTENT_READ}
TABLE = {Role.OWNER: _OWNER, Role.ADMIN: _ADMIN, Role.MEMBER: _MEMBER, Role.VIEWER: _VIEWER}
_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2, Role.OWNER: 3}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user, through a key with these scopes, or without one where `scopes` is None.

    The rest is of the key too, and `address` is where it came from.
    """

    user_id: str
    organisation_id: str | None
    role: Role
    platform_admin: bool = False
    scopes: frozenset[Scope] | None = None
    key_id: str = ""
    models: frozenset[str] | None = None
    expires_s: float | None = None
    limits: Limits = NO_LIMITS
    address: str = ""

    @classmethod
    def of(cls, user: User, scopes: frozenset[Scope] | None = None) -> Actor:
        return cls(user.id, user.organisation_id, user.role, user.platform_admin, scopes)

    @classmethod
    def calling(cls, caller: Caller, address: str) -> Actor:
        key, actor = caller.key, cls.of(caller.user, caller.key.scopes)
        return replace(
            actor,
            key_id=key.id,
            models=key.models,
            expires_s=key.expires_s,
            limits=caller.key_limits,
            address=address,
        )


# The command line on the machine that holds the store: who can read the file needs no key.
SYSTEM = Actor("system", None, Role.OWNER, platform_admin=True)


def allows(actor: Actor, action: Action, organisation_id: str | None) -> bool:
    """Whether the actor may do this to that organisation; None is the platform itself.

    A scope alone never reaches beyond the actor's own organisation, unless only the platform hands it out.
    """
    if action.scope is None:
        return True
    if actor.scopes is not None and action.scope not in actor.scopes:
        return False
    if actor.platform_admin:
        return True
    if action.scope in PLATFORM_SCOPES:
        return actor.scopes is not None
    if action.reach is Reach.PLATFORM or organisation_id is None or organisation_id != actor.organisation_id:
        return False
    return action.reach is Reach.OWN or action in TABLE[actor.role]


def may_act_for(actor: Actor, role: Role, platform_admin: bool) -> bool:
    """Whether the actor may make, change or hold the keys of a user like this one: never one above itself."""
    if actor.platform_admin:
        return True
    return not platform_admin and _RANK[role] <= _RANK[actor.role]


def beyond(actor: Actor, key: ApiKey, limits: Limits) -> str:
    """What a key with these limits may and the actor's own key may not, in words; empty where nothing."""
    if not actor.platform_admin and (platforms := key.scopes & PLATFORM_SCOPES):
        return f"only platform admins hand out {', '.join(sorted(platforms))}"
    if actor.scopes is None:
        return ""
    if more := key.scopes - actor.scopes:
        return f"it lacks the scopes {', '.join(sorted(more))}"
    if actor.models is not None and (key.models is None or key.models - actor.models):
        return f"it is limited to {', '.join(sorted(actor.models))}"
    if actor.expires_s is not None and (key.expires_s is None or key.expires_s > actor.expires_s):
        return "it expires earlier"
    return "it has its own limits" if limits.exceeds(actor.limits) else ""
