"""All keys in memory: a request is authenticated without asking the store."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from router.core.tenant import Caller
from router.tenants import keys

if TYPE_CHECKING:
    from collections.abc import Iterable


class Reason(Enum):
    """Why a key was refused: for the log and the audit, not for the caller."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong secret"
    REVOKED = "revoked"
    REPLACED = "replaced"
    EXPIRED = "expired"


_NOT_VALID = "the API key is not valid"
_EXPIRED = "the API key has expired"


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Reason
    prefix: str

    @property
    def message(self) -> str:
        """Only who holds the secret learns that a key has expired; all else reads the same."""
        return _EXPIRED if self.reason is Reason.EXPIRED else _NOT_VALID


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
        prefix = keys.prefix_of(presented)
        digest = keys.digest(presented[: keys.KEY_CHARS], self._pepper)
        entry = self._entries.get(prefix)
        same = hmac.compare_digest(digest, _NOBODY if entry is None else entry.digest)
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
