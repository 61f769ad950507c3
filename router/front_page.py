"""GET / and GET /version: what this is, what it serves, and where to read on."""

from __future__ import annotations

import html
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from router.core.actions import Action
from router.html_page import html_page, link, respond_page, table
from router.openai.models import describe
from router.request.errors import respond_json
from router.request.routes import Route

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.identity import Doorkeeper
    from router.routing.models import Registry

_VERSION = version("inflight")  # read from disk, once
# All that strangers learn once there are keys: it changes when clients have to.
API_VERSION = "v1"
_LINKS = {
    "console": "/ui",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/health",
    "metrics": "/metrics",
    "version": "/version",
}
_WORDS = {
    "console": "to watch, try and operate the server",
    "docs": "every endpoint, with its fields and their limits",
    "openapi": "the same, for programs",
    "models": "what is served, and what each model can do",
    "health": "whether requests would be served now",
    "metrics": "for Prometheus",
    "version": "of this API",
}


class FrontPage:
    """The models and the exact version are told while everybody may ask: once there are keys, to nobody."""

    def __init__(self, models: Registry | None, doorkeeper: Doorkeeper | None) -> None:
        self._models = models
        self._doorkeeper = doorkeeper

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        if "text/html" in exchange.request.headers.get("accept", ""):
            respond_page(exchange, record, self._page())
        else:
            value: dict[str, Any] = {"name": "Inflight", **self._versions, "links": _LINKS}
            shown = self._shown
            respond_json(exchange, record, value if shown is None else {**value, "models": shown})

    async def show_version(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, self._versions)

    @property
    def _is_open(self) -> bool:
        return self._doorkeeper is not None and not self._doorkeeper.asks_for_keys

    @property
    def _versions(self) -> dict[str, str]:
        api = {"api_version": API_VERSION}
        return {"version": _VERSION, **api} if self._is_open else api

    @property
    def _shown(self) -> list[dict[str, Any]] | None:
        if self._models is None or not self._is_open:
            return None
        stable = (lineup.stable for lineup in self._models.lineups.values())
        return [describe(model) for model in stable if model is not None]

    def _page(self) -> bytes:
        shown = self._shown
        if shown is None:
            models = "<p>Requests need a key: <code>Authorization: Bearer KEY</code>.</p>"
        else:
            models = table(("model", "serves", "context"), [_row(model) for model in shown])
        links = [(link(path), html.escape(_WORDS[name])) for name, path in _LINKS.items()]
        body = (
            "<p>LLM inference behind an OpenAI-compatible API: point a client's base URL at <code>/v1</code>."
            f"</p><h2>Models</h2>{models}<h2>More</h2>{table(('path', ''), links)}"
        )
        return html_page(f"Inflight {_VERSION}" if self._is_open else "Inflight", body)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    able = ", ".join(name.replace("_", " ") for name, is_able in model["capabilities"].items() if is_able)
    context = model.get("context_length")
    tokens = "" if context is None else f"{context:,} tokens"
    if "dimensions" in model:
        tokens += f", {model['dimensions']:,} dimensions"
    return f"<code>{html.escape(model['id'])}</code>", html.escape(able), tokens


def routes(models: Registry | None, doorkeeper: Doorkeeper | None) -> list[Route]:
    page = FrontPage(models, doorkeeper)
    return [
        Route(
            "GET",
            "/",
            page,
            "What is served, with links to the rest",
            None,
            "object or text/html",
            action=Action.ABOUT_READ,
        ),
        Route("GET", "/version", page.show_version, "The version of this API", action=Action.ABOUT_READ),
    ]
