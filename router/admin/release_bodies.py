"""What the administration is told of releases: bodies and queries."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from router.control.releases.plan import Plan, Tolerance
from router.control.releases.records import MOST_GOLDEN_TOKENS, GoldenPrompt
from router.core.manifest import LARGEST_VERSION
from router.routing.split import Shadow, Sticky

_Version = Annotated[int, Meta(ge=1, le=LARGEST_VERSION)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Rate = Annotated[float, Meta(ge=0, lt=1)]
_Ratio = Annotated[float, Meta(ge=1, le=1000)]
_Text = Annotated[str, Meta(max_length=20_000)]
_Reason = Annotated[str, Meta(pattern=r"^[^\x00-\x1f]{1,500}$")]
_STANDARD = Plan()


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


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
    error_rate: _Rate = _STANDARD.tolerance.error_rate
    latency_ratio: _Ratio = _STANDARD.tolerance.latency_ratio
    length_ratio: _Ratio = _STANDARD.tolerance.length_ratio
    refusal_rate: _Rate = _STANDARD.tolerance.refusal_rate
    golden_failures: Annotated[int, Meta(ge=0, le=200)] = _STANDARD.tolerance.golden_failures

    def value(self) -> Tolerance:
        return Tolerance(**msgspec.structs.asdict(self))


class GoldenBody(_Body, frozen=True, kw_only=True):
    """A prompt, and what its answer must contain, equal or match, of which one or more is given."""

    prompt: Annotated[str, Meta(min_length=1, max_length=20_000)]
    contains: _Text = ""
    equals: _Text = ""
    matches: Annotated[str, Meta(max_length=1_000)] = ""
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_GOLDEN_TOKENS)] = 64

    def value(self) -> GoldenPrompt:
        if not (self.contains or self.equals or self.matches):
            raise ValueError("golden: each prompt needs what its answer contains, equals or matches")
        try:
            re.compile(self.matches)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"golden: matches is not a regular expression: {error}") from None
        return GoldenPrompt(**msgspec.structs.asdict(self))


class CanaryBody(_Body, frozen=True, kw_only=True):
    """A release and the plan of its rollout; what is left out is as a rollout usually goes."""

    version: _Version
    weights: Annotated[tuple[_Share, ...], Meta(min_length=1, max_length=20)] = _STANDARD.weights
    min_requests: Annotated[int, Meta(ge=0, le=1_000_000)] = _STANDARD.min_requests
    min_duration_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = _STANDARD.min_duration_s
    alpha: Annotated[float, Meta(gt=0, lt=1)] = _STANDARD.alpha
    tolerance: ToleranceBody = ToleranceBody()
    golden: Annotated[list[GoldenBody], Meta(max_length=200)] = []

    def plan(self) -> Plan:
        tolerance = self.tolerance.value()
        return Plan(self.weights, self.min_requests, self.min_duration_s, self.alpha, tolerance)


class PromoteBody(_Body, frozen=True, kw_only=True):
    """Without a version, the canary of the rollout under way."""

    version: _Version | None = None
    reason: _Reason = "by hand"


class RollBackBody(_Body, frozen=True, kw_only=True):
    reason: _Reason = "by hand"


class NewestQuery(_Body, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
