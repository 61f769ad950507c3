"""Who is calling: by key, or as the local tenant where there are no keys and nobody else can reach us."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.tenants.keys import Refused

if TYPE_CHECKING:
    from router.core.tenant import Caller, Scope
    from router.request.routes import Route
    from router.tenants.tenancy import Tenancy

log = logging.getLogger(__name__)

_BEARER = "bearer "
_MISSING = "You didn't provide an API key: send it as Authorization: Bearer YOUR_KEY"


class Doorkeeper:
    """`is_private`: only this machine reaches the router. `keyless` is who calls it there while there are no
    keys; without one, everybody needs a key.
    """

    def __init__(self, tenancy: Tenancy, is_private: bool, keyless: Caller | None = None) -> None:
        self._tenancy = tenancy
        self._is_private = is_private
        self._keyless = keyless if is_private else None

    def scope_in_public(self, route: Route) -> Scope | None:
        """What a key needs where others than this machine reach the router; None is open to everybody."""
        return None if self._is_private else route.scope_in_public

    def identify(self, authorization: str | None, scope: Scope) -> Caller:
        """Raises INVALID_KEY or FORBIDDEN; never tells an unknown key from a revoked one."""
        if self._keyless is not None and not self._tenancy.catalogue.has_keys:
            return self._keyless
        if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise InflightError(ErrorKind.INVALID_KEY, _MISSING)
        found = self._tenancy.keyring.verify(authorization[len(_BEARER) :].strip(), time.time())
        if isinstance(found, Refused):
            log.info("a key was refused: %s", found.reason.value)
            raise InflightError(ErrorKind.INVALID_KEY, found.message)
        if scope not in found.key.scopes:
            raise InflightError(ErrorKind.FORBIDDEN, f"this key lacks the scope {scope.value}")
        return found


def check_model_allowed(caller: Caller, model: str) -> None:
    allowed = caller.key.models
    if allowed is not None and model not in allowed:
        raise InflightError(ErrorKind.FORBIDDEN, f"this key is not for the model '{model}'", "model")
