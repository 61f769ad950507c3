"""Who is calling: by key, or as the local tenant where there are no keys and nobody else can reach us."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.request.errors import HttpError
from router.request.web_pages import WebPages
from router.tenants.keys import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.core.tenant import Caller, Scope
    from router.routing.models import Registry, Served
    from router.tenants.tenancy import Tenancy

log = logging.getLogger(__name__)

_BEARER = "bearer "
_MISSING = (
    "You didn't provide an API key: send it as Authorization: Bearer YOUR_KEY, or as x-api-key: YOUR_KEY"
)


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


def bare_key(headers: Mapping[str, str]) -> str | None:
    """A key without a scheme, as Anthropic's clients send it, in the place of Authorization."""
    key = headers.get("x-api-key")
    return None if key is None else _BEARER + key


def models_for(caller: Caller, models: Registry) -> list[Served]:
    """The models that a caller may ask, each by its stable release."""
    allowed = caller.key.models
    return [
        lineup.stable
        for lineup in models.lineups.values()
        if lineup.stable is not None and (allowed is None or lineup.name in allowed)
    ]


def check_model_allowed(caller: Caller, model: str) -> None:
    allowed = caller.key.models
    if allowed is not None and model not in allowed:
        raise InflightError(ErrorKind.FORBIDDEN, f"this key is not for the model '{model}'", "model")
