"""Signing in with a browser: a key is exchanged for a cookie, and both are the same caller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.actions import Action, Reach
from router.request.decoding import decode_small
from router.request.errors import respond_json
from router.request.identity import SESSION_COOKIE, bare_key
from router.request.routes import Route
from router.tenants.rbac import Actor, allows
from router.tenants.sessions import Session, Sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.core.record import Record
    from router.core.tenant import Caller
    from router.http.exchange import Exchange
    from router.request.identity import Doorkeeper

_NOT_SIGNED_IN = "not signed in: POST /admin/session with a key, or send Authorization: Bearer KEY"


class SessionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    key: Annotated[str, Meta(max_length=200)]


class SessionDoor:
    """What is told here is about the one who asks, and nothing else."""

    def __init__(self, sessions: Sessions, doorkeeper: Doorkeeper) -> None:
        self._sessions = sessions
        self._doorkeeper = doorkeeper
        self._decoder = msgspec.json.Decoder(SessionBody)

    async def sign_in(self, exchange: Exchange, record: Record) -> None:
        key = decode_small(self._decoder, exchange.request.body or b"{}").key
        caller = self._doorkeeper.verify(key)
        session = self._sessions.begin(caller, key, time.time())
        headers = exchange.request.headers
        exchange.extra_headers = [*exchange.extra_headers, ("set-cookie", _cookie(session, headers))]
        respond_json(exchange, record, _shown(caller, session), 201)

    async def show(self, exchange: Exchange, record: Record) -> None:
        headers = exchange.request.headers
        session = self._doorkeeper.session_of("GET", headers)
        given = headers.get("authorization") or bare_key(headers)
        caller = None if session is None else session.caller
        caller = caller or self._doorkeeper.keyless
        if caller is None and given is not None:
            caller = self._doorkeeper.verify(given.partition(" ")[2].strip())
        if caller is None:
            raise InflightError(ErrorKind.INVALID_KEY, _NOT_SIGNED_IN)
        respond_json(exchange, record, _shown(caller, session))

    async def sign_out(self, exchange: Exchange, record: Record) -> None:
        session = self._doorkeeper.session_of("DELETE", exchange.request.headers)
        if session is not None:
            self._sessions.end(session.token)
        gone = f"{SESSION_COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
        exchange.extra_headers = [*exchange.extra_headers, ("set-cookie", gone)]
        respond_json(exchange, record, {"deleted": True})


def _cookie(session: Session, headers: Mapping[str, str]) -> str:
    """Over TLS alone where the page came that way, through a proxy or not: a browser names its origin."""
    lasts_s = max(round(session.expires_s - time.time()), 0)
    secure = "; Secure" if headers.get("origin", "").startswith("https://") else ""
    return f"{SESSION_COOKIE}={session.token}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"


def _shown(caller: Caller, session: Session | None) -> dict[str, Any]:
    user, key, organisation = caller.user, caller.key, caller.organisation
    actor = Actor.calling(caller, "")
    return {
        "object": "session",
        "user": {"id": user.id, "name": user.name, "role": user.role.value},
        "tenant": {"id": organisation.id, "name": organisation.name},
        "platform_admin": user.platform_admin,
        "scopes": sorted(key.scopes),
        "models": sorted(key.models) if key.models is not None else None,
        # What of the administration is open to it, within its own tenant.
        "may": [
            each.label
            for each in Action
            if each.reach in (Reach.TENANT, Reach.PLATFORM) and allows(actor, each, organisation.id)
        ],
        "csrf_token": None if session is None else session.csrf_token,
        "expires_s": None if session is None else session.expires_s,
    }


def routes(sessions: Sessions, doorkeeper: Doorkeeper) -> list[Route]:
    door, path = SessionDoor(sessions, doorkeeper), "/admin/session"
    return [
        Route("POST", path, door.sign_in, "Exchange a key for a session cookie", SessionBody,
              action=Action.SESSION_USE,
              status=201),
        Route("GET", path, door.show, "Who is signed in, and what they may do", action=Action.SESSION_USE),
        Route("DELETE", path, door.sign_out, "Sign out", action=Action.SESSION_USE, takes=""),
    ]  # fmt: skip
