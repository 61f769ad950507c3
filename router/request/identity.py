"""Who is calling: by key, or as the local tenant where there are no keys and nobody else can reach us."""

from __future__ import annotations

import hmac
import logging
import time
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.request.errors import HttpError
from router.request.web_pages import WebPages
from router.tenants.keys import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.core.tenant import Caller, Scope
    from router.routing.models import Registry, Served
    from router.tenants.sessions import Session
    from router.tenants.tenancy import Tenancy

log = logging.getLogger(__name__)

_BEARER = "bearer "
_MISSING = (
    "You didn't provide an API key: send it as Authorization: Bearer YOUR_KEY, or as x-api-key: YOUR_KEY"
)
SESSION_COOKIE = "inflight_session"
CSRF_HEADER = "x-inflight-csrf"
_CHANGES_NOTHING = ("GET", "HEAD")
_OWN_PAGES = ("none", "same-origin")


class Doorkeeper:
    """`is_private`: only this machine reaches the router. `keyless` is who calls it there while there are no
    keys; without one, everybody needs a key.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        is_private: bool,
        pages: WebPages | None = None,
        keyless: Caller | None = None,
    ) -> None:
        self._tenancy = tenancy
        self._is_private = is_private
        self._keyless = keyless if is_private else None
        self.pages = pages or WebPages()

    @property
    def asks_for_keys(self) -> bool:
        return not self._is_private or self._tenancy.catalogue.has_keys

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuses what a web page that is a stranger here has made a browser send."""
        refusal = self.pages.refusal(method, headers, self.asks_for_keys)
        if refusal is not None:
            raise HttpError(*refusal)

    def caller_of(self, method: str, headers: Mapping[str, str], scope: Scope) -> Caller:
        """By the key, or by the session of a browser that sends none; raises as `identify`."""
        given = headers.get("authorization") or bare_key(headers)
        if given is None and (session := self.session_of(method, headers)) is not None:
            check_scope(session.caller, scope)
            return session.caller
        return self.identify(given, scope)

    def session_of(self, method: str, headers: Mapping[str, str]) -> Session | None:
        """Raises FORBIDDEN where something is to be changed and the session's token is not sent along.

        Pages of other origins have no session: a cookie does not tell the ports of a host apart.
        """
        if "cookie" not in headers or headers.get("sec-fetch-site", "none") not in _OWN_PAGES:
            return None
        session = self._tenancy.sessions.find(_session_cookie(headers["cookie"]), time.time())
        if session is not None and method not in _CHANGES_NOTHING:
            sent = headers.get(CSRF_HEADER, "").encode()
            if not hmac.compare_digest(sent, session.csrf_token.encode()):
                message = f"changes in a session need its csrf_token in the header {CSRF_HEADER}"
                raise InflightError(ErrorKind.FORBIDDEN, message)
        return session

    def identify(self, authorization: str | None, scope: Scope) -> Caller:
        """Raises INVALID_KEY or FORBIDDEN; never tells an unknown key from a revoked one."""
        if not self._tenancy.catalogue.has_keys and (keyless := self.keyless) is not None:
            return keyless
        if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise InflightError(ErrorKind.INVALID_KEY, _MISSING)
        found = self._tenancy.keyring.verify(authorization[len(_BEARER) :].strip(), time.time())
        if isinstance(found, Refused):
            raise _refused(found)
        check_scope(found, scope)
        return found

    def verify(self, key: str) -> Caller:
        """Whatever it is for; raises INVALID_KEY."""
        found = self._tenancy.keyring.verify(key, time.time())
        if isinstance(found, Refused):
            raise _refused(found)
        return found

    @property
    def keyless(self) -> Caller | None:
        """Who everybody is here while there are no keys."""
        return None if self._tenancy.catalogue.has_keys else self._keyless


def _refused(key: Refused) -> InflightError:
    log.info("a key was refused: %s", key.reason.value)
    return InflightError(ErrorKind.INVALID_KEY, key.message)


def check_scope(caller: Caller, scope: Scope) -> None:
    if scope not in caller.key.scopes:
        raise InflightError(ErrorKind.FORBIDDEN, f"this key lacks the scope {scope.value}")


def _session_cookie(cookies: str) -> str:
    try:
        found = SimpleCookie(cookies).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def bare_key(headers: Mapping[str, str]) -> str | None:
    """A key without a scheme, as Anthropic's clients send it, in the place of Authorization."""
    key = headers.get("x-api-key")
    return None if key is None else _BEARER + key


def models_for(caller: Caller, models: Registry) -> list[Served]:
    """The models that a caller may ask, each by its stable release."""
    allowed = caller.key.models
    return [served for names, served in models.offered() if allowed is None or names <= allowed]


def check_model_allowed(caller: Caller, model: str) -> None:
    allowed = caller.key.models
    if allowed is not None and model not in allowed:
        raise InflightError(
            ErrorKind.FORBIDDEN, f"this key has no permission for the model '{model}'", "model"
        )
