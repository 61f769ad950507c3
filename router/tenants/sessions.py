"""Sessions of people in a browser: a key shown once, then a signed cookie that stands for it."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from router.core.tenant import Caller
from router.tenants.keys import prefix_of

if TYPE_CHECKING:
    from router.tenants.keys import Keyring

LASTS_S = 12 * 3600
_MOST_ENDED = 10_000
_MOST_CHARS = 1000


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    """What a cookie says; of no use to who holds it but to be sent back."""

    organisation_id: str
    key_id: str
    prefix: str  # of the secret that was shown: a new secret ends the sessions of the old one
    expires_s: float
    nonce: str


@dataclass(frozen=True, slots=True)
class Session:
    """`csrf_token` has to be sent with whatever changes something: a page of another site cannot read it."""

    token: str
    caller: Caller
    csrf_token: str
    expires_s: float


class Sessions:
    """Signed, not stored: all routers that share the pepper know them, and a restart ends none.

    What a session may do is what its key may do at that moment: a key that is revoked, replaced or expired
    ends its sessions. Signing out is remembered by the router that was told; the cookie is gone everywhere.
    """

    def __init__(self, keyring: Keyring, pepper: bytes) -> None:
        self._keyring = keyring
        self._secret = hmac.digest(pepper, b"inflight sessions", "sha256")
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, caller: Caller, presented: str, now_s: float) -> Session:
        """For a key that was just verified."""
        expires_s = now_s + LASTS_S
        if caller.key.expires_s is not None:
            expires_s = min(expires_s, caller.key.expires_s)
        signed = _Signed(
            caller.organisation.id, caller.key.id, prefix_of(presented), expires_s, secrets.token_hex(16)
        )
        token = self._seal(msgspec.json.encode(signed))
        return Session(token, caller, self._csrf_token(token), expires_s)

    def find(self, token: str, now_s: float) -> Session | None:
        """None for what was not signed here, is over, or stands for a key that is no longer valid."""
        if len(token) > _MOST_CHARS or token in self._ended:
            return None
        payload, dot, _ = token.partition(".")
        try:
            body = urlsafe_b64decode(payload)
            if not dot or not hmac.compare_digest(self._seal(body), token):
                return None
            signed = msgspec.json.decode(body, type=_Signed)
        except (ValueError, TypeError):
            return None
        caller = self._keyring.holder(signed.organisation_id, signed.key_id, now_s)
        if caller is None or now_s >= signed.expires_s or not _is_current(caller, signed.prefix, now_s):
            return None
        return Session(token, caller, self._csrf_token(token), signed.expires_s)

    def end(self, token: str) -> None:
        self._ended[token] = None
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _seal(self, body: bytes) -> str:
        mark = hmac.digest(self._secret, b"session " + body, "sha256")
        return f"{urlsafe_b64encode(body).decode()}.{mark.hex()}"

    def _csrf_token(self, token: str) -> str:
        return hmac.digest(self._secret, b"csrf " + token.encode(), "sha256").hex()


def _is_current(caller: Caller, prefix: str, now_s: float) -> bool:
    key = caller.key
    return prefix == key.prefix or (prefix == key.previous_prefix and now_s < key.previous_ends_s)
