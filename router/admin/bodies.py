"""What the administration is told: bodies and queries."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.control.releases.plan import (
    MOST_MIRRORED_PER_S,
    MOST_REPLAYED_PER_S,
    OnTimeout,
    Plan,
    Tolerance,
)
from router.control.releases.records import MOST_GOLDEN_TOKENS, GoldenPrompt
from router.core.json_answers import fault_of_schema
from router.core.manifest import LARGEST_VERSION
from router.core.tenant import HEAVIEST, LONGEST_CACHED_S, Role, Scope
from router.routing.split import Shadow, Sticky
from router.tenants.administration import GRACE_S

_Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_Id = Annotated[str, Meta(pattern=r"^[!-~]{1,64}$")]  # what a database can be asked for
_Amount = Annotated[int, Meta(ge=0)]
_Version = Annotated[int, Meta(ge=1, le=LARGEST_VERSION)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Rate = Annotated[float, Meta(ge=0, lt=1)]
_Ratio = Annotated[float, Meta(ge=1, le=1000)]
_Text = Annotated[str, Meta(max_length=20_000)]
_Reason = Annotated[str, Meta(pattern=r"^[^\x00-\x1f]{1,500}$")]
_STANDARD = Plan()


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class TenantBody(_Body, frozen=True, kw_only=True):
    name: str


class UserBody(_Body, frozen=True, kw_only=True):
    name: str
    role: Role = Role.MEMBER
    platform_admin: bool = False


class RoleBody(_Body, frozen=True, kw_only=True):
    role: Role


class KeyBody(_Body, frozen=True, kw_only=True):
    user_id: _Id
    name: str
    scopes: list[Scope] | None = None
    models: list[str] | None = None
    expires_at: _Amount | None = None


class RotateBody(_Body, frozen=True, kw_only=True):
    """For how long the present secret goes on; a day if not said."""

    grace_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = GRACE_S


class LimitsBody(_Body, frozen=True, kw_only=True):
    """What is left out is unlimited; a burst that is left out is one minute's worth.

    `weight`, `slot_percent` and `answers_cached_s` are for tenants alone: their part of a model that others
    want too, 1 if not said, the most of a model's places in the batch that they may take at a time, and for
    how long an answer may be cached for requests that ask for that, not at all if not said.
    """

    requests_per_min: _Amount | None = None
    request_burst: _Amount | None = None
    tokens_per_min: _Amount | None = None
    token_burst: _Amount | None = None
    concurrent_requests: _Amount | None = None
    monthly_budget_microdollars: _Amount | None = None
    budget_is_hard: bool = True
    weight: Annotated[int, Meta(ge=1, le=HEAVIEST)] | None = None
    slot_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    answers_cached_s: Annotated[int, Meta(ge=1, le=LONGEST_CACHED_S)] | None = None


class PriceBody(_Body, frozen=True, kw_only=True):
    """Micro-dollars per million tokens; cached ones cost as others if not said."""

    prompt: _Amount
    completion: _Amount
    cached_prompt: _Amount | None = None


class UsageQuery(_Body, frozen=True, kw_only=True):
    """Days of UTC, both included; from the first of this month until today if not said."""

    since: _Day | None = None
    until: _Day | None = None
    by: str = "day,model"


class AuditQuery(_Body, frozen=True, kw_only=True):
    tenant: _Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ArmBody(_Body, frozen=True, kw_only=True):
    version: _Version
    weight: _Share


class ShadowBody(_Body, frozen=True, kw_only=True):
    version: _Version
    share: Annotated[float, Meta(gt=0, le=1)]

    def value(self) -> Shadow:
        return Shadow(self.version, self.share)


class SplitBody(_Body, frozen=True, kw_only=True):
    """Replaces the split as a whole, but for whose requests stick, which stays if it is not said."""

    arms: Annotated[list[ArmBody], Meta(min_length=1, max_length=16)]
    sticky: Sticky | None = None
    shadow: ShadowBody | None = None


class ToleranceBody(_Body, frozen=True, kw_only=True):
    """What is left out is as it was set for the model."""

    error_rate: _Rate | None = None
    latency_ratio: _Ratio | None = None
    length_ratio: _Ratio | None = None
    refusal_rate: _Rate | None = None
    golden_failures: Annotated[int, Meta(ge=0, le=200)] | None = None
    error_margin: _Rate | None = None

    def value(self, usual: Tolerance) -> Tolerance:
        given = {name: each for name, each in msgspec.structs.asdict(self).items() if each is not None}
        return replace(usual, **given)


class GoldenBody(_Body, frozen=True, kw_only=True):
    """A prompt, and what its answer must be, of which one or more is given: contain, equal, match or be
    similar to a text, by at least `min_likeness`, or be JSON that is valid against a schema."""

    prompt: Annotated[str, Meta(min_length=1, max_length=20_000)]
    contains: _Text = ""
    equals: _Text = ""
    matches: Annotated[str, Meta(max_length=1_000)] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_GOLDEN_TOKENS)] = 64
    similar: _Text = ""
    min_likeness: Annotated[float, Meta(gt=0, le=1)] = 0.8
    schema: dict[str, Any] | bool | None = None

    def value(self) -> GoldenPrompt:
        if not (self.contains or self.equals or self.matches or self.similar) and self.schema is None:
            raise ValueError(
                "golden: each prompt needs what its answer contains, equals or matches, what it is similar "
                "to, or its JSON schema"
            )
        try:
            re.compile(self.matches)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"golden: matches is not a regular expression: {error}") from None
        if self.schema is not None and (fault := fault_of_schema(self.schema)) is not None:
            raise ValueError(f"golden: schema: {fault}")
        return GoldenPrompt(**msgspec.structs.asdict(self))


class CanaryBody(_Body, frozen=True, kw_only=True):
    """A release and the plan of its rollout; what is left out is as a rollout usually goes.

    `accept_slower` is how many times as slow as the stable release it may be, on purpose. With
    `min_likeness` so many answers that it gave as a shadow must be that much like those of the stable one.
    Unless it `is_rehearsed`, both are not measured beside each other before the canary gets traffic. Up to
    `mirror_per_s` requests of the stable release are copied to the canary, by each router; up to
    `replay_per_s` prompts of the prompt log are asked of both while nobody else asks.
    """

    version: _Version
    weights: Annotated[tuple[_Share, ...], Meta(min_length=1, max_length=20)] = _STANDARD.weights
    min_requests: Annotated[int, Meta(ge=0, le=1_000_000)] = _STANDARD.min_requests
    min_duration_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = _STANDARD.min_duration_s
    alpha: Annotated[float, Meta(gt=0, lt=1)] = _STANDARD.alpha
    tolerance: ToleranceBody = ToleranceBody()
    golden: Annotated[list[GoldenBody], Meta(max_length=200)] = []
    time_limit_s: Annotated[float, Meta(gt=0, le=365 * 86400)] = _STANDARD.time_limit_s
    on_timeout: OnTimeout = _STANDARD.on_timeout
    accept_slower: _Ratio | None = None
    min_likeness: _Share = _STANDARD.min_likeness
    min_shadow_answers: Annotated[int, Meta(ge=1, le=1_000_000)] = _STANDARD.min_shadow_answers
    is_rehearsed: bool = _STANDARD.is_rehearsed
    mirror_per_s: Annotated[float, Meta(ge=0, le=MOST_MIRRORED_PER_S)] = _STANDARD.mirror_per_s
    replay_per_s: Annotated[float, Meta(ge=0, le=MOST_REPLAYED_PER_S)] = _STANDARD.replay_per_s

    def plan(self, usual: Tolerance) -> Plan:
        tolerance = self.tolerance.value(usual)
        if self.accept_slower is not None:
            tolerance = tolerance.accepting(self.accept_slower)
        return Plan(
            self.weights,
            self.min_requests,
            self.min_duration_s,
            self.alpha,
            tolerance,
            self.time_limit_s,
            self.on_timeout,
            self.min_likeness,
            self.min_shadow_answers,
            self.is_rehearsed,
            self.mirror_per_s,
            self.replay_per_s,
        )


class PromoteBody(_Body, frozen=True, kw_only=True):
    """Without a version, the canary of the rollout under way."""

    version: _Version | None = None
    reason: _Reason = "by hand"


class RollBackBody(_Body, frozen=True, kw_only=True):
    reason: _Reason = "by hand"


class NewestQuery(_Body, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
