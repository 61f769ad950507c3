"""Values that the tests of tenancy share."""

from __future__ import annotations

from router.core.tenant import NO_LIMITS, ApiKey, Caller, Limits, Organisation, Role, Scope, UsageRecord, User
from router.tenants import keys

PEPPER = bytes(range(32))
NOW_S = 1_794_740_000.0  # 2026-11-15
MONTH = "2026-11"
DAY = "2026-11-15"


def caller(
    key_limits: Limits = NO_LIMITS,
    organisation_limits: Limits = NO_LIMITS,
    *,
    key_id: str = "key-1",
    organisation_id: str = "org-1",
) -> Caller:
    _, prefix = keys.mint()
    scopes = frozenset({Scope.INFERENCE})
    key = ApiKey(key_id, organisation_id, "user-1", "test", prefix, b"\1" * 32, scopes, NOW_S)
    user = User("user-1", organisation_id, "ann", Role.MEMBER, NOW_S)
    return Caller(key, user, Organisation(organisation_id, "acme", NOW_S), key_limits, organisation_limits)


def usage(
    request_id: str,
    cost: int = 10,
    *,
    organisation_id: str = "org-1",
    key_id: str = "key-1",
    model: str = "smol",
    started_s: float = NOW_S,
) -> UsageRecord:
    return UsageRecord(
        request_id=request_id,
        organisation_id=organisation_id,
        user_id="user-1",
        key_id=key_id,
        model=model,
        model_version="1",
        started_s=started_s,
        ended_s=started_s + 1.5,
        prompt_tokens=7,
        cached_tokens=2,
        completion_tokens=5,
        cost=cost,
        outcome="finished",
        stages={"queue_s": 0.25, "decode_s": 1.25},
    )
