"""GET / and GET /version: what this is, what it serves, and where to read on."""

from __future__ import annotations

import html
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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
    "version": "of this server",
}


class FrontPage:
    """Names of models are for those alone who may ask for them."""

    def __init__(self, models: Registry | None, doorkeeper: Doorkeeper | None) -> None:
        self._models = models
        self._doorkeeper = doorkeeper

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        if "text/html" in exchange.request.headers.get("accept", ""):
            respond_page(exchange, record, self._page())
        else:
            value: dict[str, Any] = {"name": "Inflight", "version": _VERSION, "links": _LINKS}
            shown = self._shown
            respond_json(exchange, record, value if shown is None else {**value, "models": shown})

    @property
    def _shown(self) -> list[dict[str, Any]] | None:
        if self._models is None or self._doorkeeper is None or self._doorkeeper.asks_for_keys:
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
        return html_page(f"Inflight {_VERSION}", body)


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    able = ", ".join(name.replace("_", " ") for name, is_able in model["capabilities"].items() if is_able)
    context = model.get("context_length")
    tokens = "" if context is None else f"{context:,} tokens"
    if "dimensions" in model:
        tokens += f", {model['dimensions']:,} dimensions"
    return f"<code>{html.escape(model['id'])}</code>", html.escape(able), tokens


async def show_version(exchange: Exchange, record: Record) -> None:
    respond_json(exchange, record, {"version": _VERSION})


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
            scope=None,
        ),
        Route("GET", "/version", show_version, "The version of this server", scope=None),
    ]
