"""A plain door on loopback for whoever watches over the router and has no certificate: health alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.request.error_shapes import error_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.http.exchange import Exchange

_OPEN = ("/health/live", "/health/ready")


class HealthDoor:
    """Passes two paths on to the whole router."""

    def __init__(self, app: Callable[[Exchange], Awaitable[object]]) -> None:
        self._app = app

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.request.path in _OPEN:
            await self._app(exchange)
        else:
            body = error_body(404, f"only {' and '.join(_OPEN)} are served on this port")
            exchange.respond(404, body, [("content-type", "application/json")])
