"""Who is calling: by key, or as the local tenant where there are no keys and nobody else can reach us."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.tenant import LOCAL_CALLER
from router.request.errors import HttpError
from router.request.web_pages import WebPages
from router.tenants.keys import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.core.tenant import Caller, Scope
    from router.tenants.tenancy import Tenancy

log = logging.getLogger(__name__)

_BEARER = "bearer "
_MISSING = "You didn't provide an API key: send it as Authorization: Bearer YOUR_KEY"


class Doorkeeper:
    """`is_private`: only this machine reaches the router."""

    def __init__(self, tenancy: Tenancy, is_private: bool, pages: WebPages | None = None) -> None:
        self._tenancy = tenancy
        self._is_private = is_private
        self.pages = pages or WebPages()

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuses what a web page that is a stranger here has made a browser send."""
        asks_for_keys = not self._is_private or self._tenancy.catalogue.has_keys
        refusal = self.pages.refusal(method, headers, asks_for_keys)
        if refusal is not None:
            raise HttpError(*refusal)

    def identify(self, authorization: str | None, scope: Scope) -> Caller:
        """Raises INVALID_KEY or FORBIDDEN; never tells an unknown key from a revoked one."""
        if self._is_private and not self._tenancy.catalogue.has_keys:
            return LOCAL_CALLER
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
