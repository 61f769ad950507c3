"""API keys: how one is made and stored, and this process's copy of all, with limits and prices, in memory."""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.core.manifest import parent_of
from router.core.tenant import NO_LIMITS, Caller, Limits, Price
from router.store.schema import api_keys, organisations, prices, users
from router.tenants.records import all_of, has_keys, key_of, limits_in, organisation_of, price_of, user_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from router.store.database import Store

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_START = "ik-"
PREFIX_CHARS = 8
SECRET_CHARS = 40
_PREFIX_AT = len(_START)
_DASH_AT = _PREFIX_AT + PREFIX_CHARS
KEY_CHARS = _DASH_AT + 1 + SECRET_CHARS
_PEPPER_BYTES = 32


def mint() -> tuple[str, str]:
    """A new key as its holder sees it, once, and the prefix by which it is named from then on."""
    prefix = _random_text(PREFIX_CHARS)
    return f"{_START}{prefix}-{_random_text(SECRET_CHARS)}", prefix


def prefix_of(presented: str) -> str:
    """The prefix of what was presented; an empty one where it does not look like a key."""
    if len(presented) == KEY_CHARS and presented.startswith(_START) and presented[_DASH_AT] == "-":
        return presented[_PREFIX_AT:_DASH_AT]
    return ""


def digest(presented: str, pepper: bytes) -> bytes:
    """A secret has 238 random bits: one keyed SHA-256 is enough, a slow hash would only slow requests."""
    return hmac.digest(pepper, presented.encode("utf-8", "surrogatepass"), "sha256")


def load_pepper(path: Path) -> bytes:
    """Reads the secret of this installation, made on first use; without it no stored key can be tried out."""
    pepper = path.read_bytes() if path.exists() else b""
    if not pepper:
        pepper = _made_pepper(path)
    if len(pepper) != _PEPPER_BYTES:
        raise ValueError(f"{path}: expected {_PEPPER_BYTES} bytes, found {len(pepper)}")
    return pepper


def _made_pepper(path: Path) -> bytes:
    """Of several processes that start at once one makes it, and the others wait until it is written."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if found := file.read():
            return found
        pepper = secrets.token_bytes(_PEPPER_BYTES)
        file.write(pepper)
        file.flush()
        os.fsync(file.fileno())
    return pepper


def fingerprint(pepper: bytes) -> str:
    """Kept in the store, so that a router with another pepper says so instead of refusing every key."""
    return hmac.digest(pepper, b"inflight pepper fingerprint", "sha256").hex()[:16]


def _random_text(chars: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(chars))


class Reason(Enum):
    """Why a key was refused: for the log and the audit, not for the caller."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong secret"
    REVOKED = "revoked"
    REPLACED = "replaced"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Reason
    prefix: str

    @property
    def message(self) -> str:
        """Only who holds the secret learns that a key has expired; all else reads the same."""
        return f"the API key {'has expired' if self.reason is Reason.EXPIRED else 'is not valid'}"


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller
    digest: bytes
    replaced_s: float | None = None


_NOBODY = b"\0" * 32


class Keyring:
    """Read by the event loop, written by the store's thread: every change is a single dict operation.

    Each verification does the same work whatever comes of it: one digest, one lookup, one comparison that
    takes the same time wherever two digests differ.
    """

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._entries: dict[str, _Entry] = {}
        self._prefixes: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def verify(self, presented: str, now_s: float) -> Caller | Refused:
        prefix = prefix_of(presented)
        presented_digest = digest(presented[:KEY_CHARS], self._pepper)
        entry = self._entries.get(prefix)
        same = hmac.compare_digest(presented_digest, _NOBODY if entry is None else entry.digest)
        if entry is None:
            return Refused(Reason.UNKNOWN if prefix else Reason.MALFORMED, prefix)
        if not same:
            return Refused(Reason.WRONG_SECRET, prefix)
        key = entry.caller.key
        if key.revoked_s is not None:
            return Refused(Reason.REVOKED, prefix)
        if entry.replaced_s is not None and now_s >= entry.replaced_s:
            return Refused(Reason.REPLACED, prefix)
        if key.expires_s is not None and now_s >= key.expires_s:
            return Refused(Reason.EXPIRED, prefix)
        return entry.caller

    def holder(self, organisation_id: str, key_id: str, now_s: float) -> Caller | None:
        """The owner of a key, for work done later in its name; None if it is no longer valid."""
        for prefix in self._prefixes.get(organisation_id, ()):
            entry = self._entries.get(prefix)
            if entry is not None and entry.caller.key.id == key_id:
                key = entry.caller.key
                has_expired = key.expires_s is not None and now_s >= key.expires_s
                return None if key.revoked_s is not None or has_expired else entry.caller
        return None

    def replace(self, organisation_id: str, callers: Iterable[Caller]) -> None:
        """All keys of one organisation, as the store has them now; those no longer named are gone."""
        entries = {prefix: entry for caller in callers for prefix, entry in _entries(caller)}
        gone = self._prefixes.get(organisation_id, frozenset()) - entries.keys()
        self._entries.update(entries)
        for prefix in gone:
            self._entries.pop(prefix, None)
        self._prefixes[organisation_id] = frozenset(entries)


def _entries(caller: Caller) -> Iterable[tuple[str, _Entry]]:
    key = caller.key
    yield key.prefix, _Entry(caller, key.digest)
    if key.previous_prefix is not None and key.previous_digest is not None:
        yield key.previous_prefix, _Entry(caller, key.previous_digest, key.previous_ends_s)


# Of a tenant without settings of its own.
_EVEN = (1, 1.0)


class Catalogue:
    """Refreshed on the store's thread; `prices` and the keyring are read by the event loop."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._seen = -1
        self._shares: dict[str, tuple[int, float]] = {}
        self.prices: dict[str, Price] = {}
        self.has_keys = False

    def refresh(self) -> bool:
        """Reads the organisations changed since the last time, whole; answers whether there were any."""
        with self._store.read() as connection:
            newest = self._store.last_change(connection)
            if newest == self._seen:
                return False
            self.has_keys = has_keys(connection)
            # Prices first: no key works before the prices that were set before it was made.
            rows = connection.execute(sql.select(prices)).mappings()
            self.prices = {row["model"]: price_of(row) for row in rows}
            for row in _newer(connection, organisations, self._seen):
                allowed = limits_in(connection, row["id"])
                self._keyring.replace(row["id"], _callers(connection, row, allowed))
                self._note_share(row["id"], allowed.get(row["id"], NO_LIMITS))
            self._seen = newest
        return True

    def price_of(self, model: str) -> Price | None:
        """An adapter without a price of its own has its base's: it is computed by the same engine."""
        return self.prices.get(model) or self.prices.get(parent_of(model) or model)

    def weight(self, tenant: str) -> float:
        """Its weight among those that want the same model."""
        return self._shares.get(tenant, _EVEN)[0]

    def slot_share(self, tenant: str) -> float:
        """The most of a model's slots that it may take, as a share of all."""
        return self._shares.get(tenant, _EVEN)[1]

    def _note_share(self, organisation_id: str, whole: Limits) -> None:
        """Kept where it is not as others': a tenant that has gone leaves nothing behind."""
        share = (whole.weight or 1, (whole.slot_percent or 100) / 100)
        if share != _EVEN:
            self._shares[organisation_id] = share
        else:
            self._shares.pop(organisation_id, None)


def _newer(connection: Connection, table: sql.Table, seen: int) -> list[RowMapping]:
    rows = connection.execute(sql.select(table).where(table.c.version > seen))
    return list(rows.mappings())


def _callers(connection: Connection, row: RowMapping, allowed: dict[str, Limits]) -> list[Caller]:
    organisation = organisation_of(row)
    if organisation.deleted_s is not None:
        return []
    people = {each["id"]: user_of(each) for each in all_of(connection, users, organisation.id)}
    keys = [key_of(each) for each in all_of(connection, api_keys, organisation.id)]
    whole = allowed.get(organisation.id, NO_LIMITS)
    return [
        Caller(key, people[key.user_id], organisation, allowed.get(key.id, NO_LIMITS), whole) for key in keys
    ]
