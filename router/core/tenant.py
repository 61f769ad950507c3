"""The nouns of tenants, and who is calling. Times in `_s` are wall-clock seconds, money is micro-dollars."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import msgspec

_MOST = 10**15  # a billion dollars; sums of it still fit 64 bits
_NAME_CHARS = 100
HEAVIEST = 1000
LONGEST_CACHED_S = 30 * 86400
_PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MODEL_NAME = re.compile(rf"{_PLAIN_NAME}(:{_PLAIN_NAME})?")


def check_name(what: str, name: str) -> None:
    if not (1 <= len(name) <= _NAME_CHARS and name.isprintable() and name == name.strip()):
        raise ValueError(f"{what}: expected 1 to {_NAME_CHARS} printable characters, got {name[:40]!r}")


def check_model(model: str) -> None:
    if not _MODEL_NAME.fullmatch(model):
        raise ValueError(f"model: {model[:40]!r} is not the name of a model")


def _check_amounts(terms: Limits | Price) -> None:
    for each in fields(terms):
        value = getattr(terms, each.name)
        if type(value) is int and not 0 <= value <= _MOST:
            raise ValueError(f"{each.name}: expected 0 to {_MOST}, got {value}")


class Role(str, Enum):
    """What a user may do within the own organisation, the most first."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Scope(str, Enum):
    """What a key may be used for, whatever its user may do."""

    INFERENCE = "inference"
    EMBEDDINGS = "embeddings"
    FILES = "files"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"
    USAGE_READ = "usage:read"
    RELEASES_PIN = "releases:pin"  # canaries, shadows and whatever else is loaded, beside the stable release
    METRICS_READ = "metrics:read"  # of all tenants


@dataclass(frozen=True, slots=True)
class Organisation:
    id: str
    name: str
    created_s: float
    deleted_s: float | None = None


@dataclass(frozen=True, slots=True)
class User:
    id: str
    organisation_id: str
    name: str
    role: Role
    created_s: float
    platform_admin: bool = False


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept: its secret is known to its holder alone.

    Rotation gives the same key a new secret; the previous one works on for `grace_s`.
    """

    id: str
    organisation_id: str
    user_id: str
    name: str
    prefix: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    created_s: float
    models: frozenset[str] | None = None
    expires_s: float | None = None
    revoked_s: float | None = None
    rotated_s: float | None = None
    grace_s: float = 0.0
    previous_prefix: str | None = None
    previous_digest: bytes | None = field(default=None, repr=False)

    @property
    def previous_ends_s(self) -> float:
        return 0.0 if self.rotated_s is None else self.rotated_s + self.grace_s


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost, in micro-dollars per million tokens."""

    model: str
    prompt: int
    cached_prompt: int
    completion: int

    def __post_init__(self) -> None:
        check_model(self.model)
        _check_amounts(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an organisation or a key may take; None is no limit. A burst left out is one minute's worth.

    `weight` is an organisation's part of a model that others want too, 1 if not said, and `slot_percent` the
    most of a model's places in the batch that it may take at a time. For `answers_cached_s` its answers may
    be kept, for requests that ask for that.
    """

    requests_per_min: int | None = None
    request_burst: int | None = None
    tokens_per_min: int | None = None
    token_burst: int | None = None
    concurrent_requests: int | None = None
    monthly_budget: int | None = None
    budget_is_hard: bool = True
    weight: int | None = None
    slot_percent: int | None = None
    answers_cached_s: int | None = None

    def __post_init__(self) -> None:
        _check_amounts(self)
        most_of = {"weight": HEAVIEST, "slot_percent": 100, "answers_cached_s": LONGEST_CACHED_S}
        for name, most in most_of.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name}: expected 1 to {most}, got {value}")

    def exceeds(self, ceiling: Limits) -> bool:
        """Whether anything is allowed here that is not there; what is organisations' alone does not count."""
        amounts = ("requests_per_min", "tokens_per_min", "concurrent_requests", "monthly_budget")
        pairs = [(getattr(self, name), getattr(ceiling, name)) for name in amounts]
        pairs += zip(self._bursts, ceiling._bursts, strict=True)
        hardens = ceiling.monthly_budget is not None and ceiling.budget_is_hard
        return any(most is not None and (own is None or own > most) for own, most in pairs) or (
            hardens and not self.budget_is_hard
        )

    @property
    def _bursts(self) -> tuple[int | None, int | None]:
        """As they are where they were left out; none where nothing is limited."""
        requests = self.requests_per_min if self.request_burst is None else self.request_burst
        tokens = self.tokens_per_min if self.token_burst is None else self.token_burst
        return (
            None if self.requests_per_min is None else requests,
            None if self.tokens_per_min is None else tokens,
        )


NO_LIMITS = Limits()


class UsageRecord(msgspec.Struct, frozen=True):
    """One request as it is billed; `request_id` is unique, so a record sent again does not count again."""

    request_id: str
    organisation_id: str
    user_id: str
    key_id: str
    model: str
    model_version: str
    started_s: float
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    outcome: str
    stages: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative act, done or refused; without a key and an address it is the command line's."""

    at_s: float
    actor: str
    organisation_id: str | None
    action: str
    target: str
    allowed: bool
    detail: dict[str, Any] = field(default_factory=dict)
    key_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Usage of one group: the day, model, key or organisation it was summed by."""

    group: tuple[str, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int


@dataclass(frozen=True, slots=True)
class Caller:
    """A key with everything the request path needs to know of it."""

    key: ApiKey
    user: User
    organisation: Organisation
    key_limits: Limits = NO_LIMITS
    organisation_limits: Limits = NO_LIMITS


# They concern all tenants: only the platform hands them out, to whomever it likes.
PLATFORM_SCOPES = frozenset({Scope.METRICS_READ})


# Whose request it is until somebody is identified: may do nothing.
_NOBODY = "nobody"
NOBODY = Caller(
    ApiKey(_NOBODY, _NOBODY, _NOBODY, _NOBODY, "", b"", frozenset(), created_s=0.0, models=frozenset()),
    User(_NOBODY, _NOBODY, _NOBODY, Role.VIEWER, created_s=0.0),
    Organisation(_NOBODY, _NOBODY, created_s=0.0),
    Limits(requests_per_min=0),
    Limits(requests_per_min=0),
)
# Who calls a router that has no keys and that this machine alone can reach.
LOCAL = "local"
LOCAL_CALLER = Caller(
    ApiKey(LOCAL, LOCAL, LOCAL, LOCAL, "", b"", frozenset(Scope), created_s=0.0),
    User(LOCAL, LOCAL, LOCAL, Role.OWNER, created_s=0.0, platform_admin=True),
    Organisation(LOCAL, LOCAL, created_s=0.0),
)
