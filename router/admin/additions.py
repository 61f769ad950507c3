"""Adding releases from a browser: what the server knows a place for, and the one that is being added."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.admin.endpoint import Asked, admin_route, consulted
from router.control.releases.additions import Addition, AdditionOrder, CannotAdd
from router.control.releases.commands import ReleaseCommands
from router.control.releases.sources import list_sources
from router.core.actions import Action
from router.core.manifest import LARGEST_VERSION, MODEL_NAME
from router.request.decoding import decode_small
from router.request.errors import respond_json
from router.request.routes import Route
from router.tenants.rbac import Actor

if TYPE_CHECKING:
    from router.control.releases.additions import Additions
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.tenants.tenancy import Tenancy

# Words and numbers alone: no path, not even of one word, no JSON, nothing of which a runtime could make code.
_Parameter = Annotated[str, Meta(pattern=r"^(?!\w*_(dir|path)\Z)[a-z][a-z0-9_]{0,63}\Z")]
_Value = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._,+-]{0,63}\Z")]


class AdditionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`source` is one of GET /admin/release-sources; without a version it is one more than the highest."""

    model: Annotated[str, Meta(pattern=rf"^{MODEL_NAME.pattern}\Z")]
    source: Annotated[str, Meta(max_length=300)]
    version: Annotated[int, Meta(ge=1, le=LARGEST_VERSION)] | None = None
    parameters: Annotated[dict[_Parameter, _Value], Meta(max_length=50)] = {}
    notes: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{0,500}\Z")] = ""


class AdditionDoor:
    """What is asked for is on record before it is begun, and so is who asked for it."""

    def __init__(self, additions: Additions, tenancy: Tenancy) -> None:
        self._additions = additions
        self._tenancy = tenancy
        self._decoder = msgspec.json.Decoder(AdditionBody)

    async def begin(self, exchange: Exchange, record: Record) -> None:
        body = decode_small(self._decoder, exchange.request.body or b"{}")
        actor = Actor.calling(record.caller, exchange.peer)
        try:
            self._additions.refuse_if_not_now()
            order = await consulted(
                self._tenancy.administer(lambda admin: self._order(actor, body), record.tenant)
            )
            addition = self._additions.begin(order)
        except CannotAdd as error:
            raise InflightError(ErrorKind.CONFLICT, str(error)) from None
        respond_json(exchange, record, _shown(addition), 202)

    async def show(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, _shown(self._find(record)))

    async def list_all(self, exchange: Exchange, record: Record) -> None:
        data = [_shown(each) for each in self._additions.newest()]
        respond_json(exchange, record, {"object": "list", "data": data})

    async def stop(self, exchange: Exchange, record: Record) -> None:
        addition = self._find(record)
        await self._additions.stop(addition)
        respond_json(exchange, record, _shown(addition))

    def _order(self, actor: Actor, body: AdditionBody) -> AdditionOrder:
        commands = ReleaseCommands(self._tenancy.store, actor)
        with commands.look() as connection:
            found = {each.name: each for each in list_sources(connection, self._additions.folders)}
        if body.source not in found:
            raise ValueError("source: not found; GET /admin/release-sources lists all sources")
        detail = {"source": body.source, "parameters": body.parameters}
        commands.note_addition(body.model, body.version, detail)
        return AdditionOrder(body.model, found[body.source], body.version, body.parameters, body.notes)

    def _find(self, record: Record) -> Addition:
        found = self._additions.find(record.values["addition"])
        if found is None:
            message = "addition not found; GET /admin/additions lists the latest ones of this router"
            raise InflightError(ErrorKind.NOT_FOUND, message)
        return found


def _sources(additions: Additions, tenancy: Tenancy, asked: Asked) -> dict[str, Any]:
    with ReleaseCommands(tenancy.store, asked.actor).look() as connection:
        found = list_sources(connection, additions.folders)
    data = [{"name": each.name, "what": each.what, "release": each.of or None} for each in found]
    return {"object": "list", "can_add": additions.is_possible, "data": data}


def _shown(addition: Addition) -> dict[str, Any]:
    order = addition.order
    return {
        "object": "addition",
        "id": addition.id,
        "model": order.model,
        "source": order.source.name,
        "parameters": order.parameters,
        "notes": order.notes,
        "state": addition.state.value,
        "release": addition.release or None,
        "reason": addition.reason,
        "said": list(addition.said),
        "began_s": addition.began_s,
        "ended_s": addition.ended_s,
    }


def routes(additions: Additions, tenancy: Tenancy) -> list[Route]:
    door = AdditionDoor(additions, tenancy)
    one, read, write = "/admin/additions/{addition}", Action.RELEASE_READ, Action.RELEASE_WRITE
    return [
        admin_route(tenancy, read, "GET", "/admin/release-sources", "Sources for releases on the server",
                    partial(_sources, additions, tenancy)),
        Route("POST", "/admin/releases", door.begin, "Add a release from a source on the server",
              AdditionBody, action=write, status=202),
        Route("GET", "/admin/additions", door.list_all, "Additions of releases on this router",
              action=read),
        Route("GET", one, door.show, "The progress of an addition", action=read),
        Route("DELETE", one, door.stop, "Stop adding a release", action=write, takes=""),
    ]  # fmt: skip
