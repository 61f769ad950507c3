"""An endpoint of the administration: one act on the store's threads, and what it comes to over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.actions import Action
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.decoding import decode_query, decode_small, invalid
from router.request.errors import respond_encoded
from router.request.routes import Route
from router.store.database import StoreAway
from router.tenants.administration import Administration
from router.tenants.audited import AlreadyThere, Forbidden
from router.tenants.rbac import Actor
from router.tenants.records import NotFound
from router.tenants.tenancy import Tenancy

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """One act: who, on what, with which body or query."""

    admin: Administration
    actor: Actor
    values: dict[str, str]
    given: Any

    @property
    def tenant(self) -> str:
        return self.values["tenant"]


Act = Callable[[Asked], Any]


class Administer:
    """An endpoint that does one act on the store's thread and shows what came of it."""

    def __init__(self, tenancy: Tenancy, act: Act, takes: type[Any] | None, status: int = 200) -> None:
        self._tenancy = tenancy
        self._act = act
        self._takes = takes
        self._decoder = None if takes is None else msgspec.json.Decoder(takes)
        self._status = status

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        respond_encoded(exchange, record, await self._answer(exchange, record), self._status)

    async def _answer(self, exchange: Exchange, record: Record) -> bytes:
        """Made of values where the act is done: an export may be large."""
        caller = record.caller
        actor = Actor.calling(caller, exchange.peer)
        given = self._given(exchange)
        values = {"tenant": caller.organisation.id, **record.values}
        reads = exchange.request.method in ("GET", "HEAD")
        do = self._tenancy.consult if reads else self._tenancy.administer
        return await consulted(
            do(
                lambda admin: msgspec.json.encode(self._act(Asked(admin, actor, values, given))),
                caller.organisation.id,
            )
        )

    def _given(self, exchange: Exchange) -> Any:
        if self._decoder is None or self._takes is None:
            return None
        if exchange.request.method in ("GET", "HEAD", "DELETE"):
            return decode_query(exchange.request.query, self._takes)
        return decode_small(self._decoder, exchange.request.body or b"{}")


async def consulted(doing: Awaitable[Result]) -> Result:
    """What came of an act; where nothing did, the error is told as the API tells errors."""
    try:
        return await doing
    except Forbidden as error:
        raise InflightError(ErrorKind.FORBIDDEN, str(error)) from None
    except NotFound as error:
        raise InflightError(ErrorKind.NOT_FOUND, str(error)) from None
    except AlreadyThere as error:
        raise InflightError(ErrorKind.CONFLICT, str(error)) from None
    except ValueError as error:
        raise invalid(str(error)) from None
    except StoreAway:
        raise InflightError(ErrorKind.OVERLOADED, "the store cannot be reached at the moment") from None


def listed(values: Any) -> dict[str, Any]:
    return {"object": "list", "data": [asdict(value) for value in values]}


def admin_route(
    tenancy: Tenancy,
    action: Action,
    method: str,
    path: str,
    summary: str,
    act: Act,
    takes: type[msgspec.Struct] | None = None,
    status: int | None = None,
) -> Route:
    """`takes` is the body of what changes something, and the query of what does not."""
    changes = method not in ("GET", "DELETE")
    status = status or (201 if method == "POST" else 200)
    body, query = (takes, None) if changes else (None, takes)
    return Route(
        method,
        path,
        Administer(tenancy, act, takes, status),
        summary,
        body,
        action=action,
        takes="application/json" if body is not None else "",
        query=query,
        status=status,
    )
