"""What the router answers: one table, by which requests are dispatched and the API is described."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.core.actions import Action, Reach
from router.core.record import Record
from router.http.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable

    import msgspec

    from router.core.tenant import Scope

Endpoint = Callable[[Exchange, Record], Coroutine[Any, Any, None]]
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; `{name}` in the path stands for any one segment.

    Where `takes_rest`, the name at the end stands for all that is left, slashes too.
    `action` says what it reads or changes, and so who may; where `asks_model`, its caller must owe no tokens.
    `takes` is the content type of the body, an empty one where there need not be a body. `answer` names a
    schema, or is the type of what else comes,
    or both with " or " between; `status` is that of an answer where all went well. `query` is what may
    follow the path.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: str = "object"
    streams: bool = False
    takes: str = JSON
    request_id_prefix: str = "req"
    request_id_header: str = ""  # one more for the id, where clients look for it by another name
    takes_rest: bool = False
    query: type[msgspec.Struct] | None = None
    status: int = 200
    asks_model: bool = False
    is_paid_later: bool = False  # what it asks for costs something, though not at once
    action: Action = field(kw_only=True)

    @property
    def scope(self) -> Scope | None:
        """What a key needs; None where everybody may."""
        return self.action.scope

    def concerns(self, values: dict[str, str], own: str) -> str | None:
        """The tenant that a caller of the tenant `own` wants to do something to, None for all of them."""
        return values.get("tenant", None if self.action.reach is Reach.PLATFORM else own)

    @property
    def takes_keys(self) -> bool:
        """Whether it does once what is asked for twice with one Idempotency-Key."""
        return self.method == "POST" and (self.asks_model or self.is_paid_later)

    @property
    def reads_for_client(self) -> bool:
        """Whether, asked by GET, it is given up when its client leaves: it looks something up for it."""
        return self.scope is not None and not self.streams

    @property
    def names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class RouteTable:
    """Finds by the whole path first, then segment by segment; paths with names never shadow plain ones."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self.plain: dict[str, dict[str, Route]] = {}
        self._named: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        self._with_rest: dict[str, tuple[str, dict[str, Route]]] = {}
        for route in self.routes:
            methods = self._methods(route.path)
            if route.takes_rest:
                self._with_rest[route.path.rpartition("{")[0]] = (route.names[-1], methods)
            if route.method in methods:
                raise ValueError(f"{route.method} {route.path} is there twice")
            methods[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """The methods of a path and the values of its names, or None where there is nothing.

        A slash at its end is forgiven.
        """
        found = self._find(path)
        return self._find(path.rstrip("/")) if found is None and path.endswith("/") else found

    def _find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        plain = self.plain.get(path)
        if plain is not None:
            return plain, {}
        parts = path.split("/")
        for pattern, methods in self._named.get(len(parts), ()):
            values = _match(pattern, parts)
            if values is not None:
                return methods, values
        for start, (name, methods) in self._with_rest.items():
            if path.startswith(start) and len(path) > len(start):
                return methods, {name: path[len(start) :]}
        return None

    def _methods(self, path: str) -> dict[str, Route]:
        if "{" not in path:
            return self.plain.setdefault(path, {})
        pattern = tuple(path.split("/"))
        alike = self._named.setdefault(len(pattern), [])
        for there, methods in alike:
            if there == pattern:
                return methods
        alike.append((pattern, {}))
        return alike[-1][1]


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{") and part.isprintable() and part:
            values[expected[1:-1]] = part
        elif expected != part:
            return None
    return values
