"""KServe v2 over HTTP, on the router's own port."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from router.core.actions import Action
from router.http import sse
from router.http.connection import Limits
from router.kserve import descriptions, messages
from router.kserve.answers import Answer, Output, join
from router.kserve.compression import ENCODINGS, IDENTITY, inflate
from router.kserve.descriptions import NOT_OFFERED
from router.kserve.offers import Asked, Offer, understand
from router.kserve.tensors import refuse, shown
from router.request.errors import HttpError, respond_json, write_error
from router.request.routes import Endpoint, Route
from router.request.text import patience_with

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import msgspec

    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.kserve.door import Door

_MODEL = "/v2/models/{name}"
_VERSION = "/v2/models/{name}/versions/{version}"
_SSE = "text/event-stream"
_MAX_BODY_BYTES = Limits().max_body_bytes
Understood = TypeVar("Understood")


class WholeAnswer:
    """Collects everything and answers once."""

    def __init__(
        self, exchange: Exchange, record: Record, render: Callable[[Sequence[Output]], None]
    ) -> None:
        self._exchange = exchange
        self._record = record
        self._render = render
        self._answers: list[Answer] = []

    async def take(self, answer: Answer) -> None:
        self._answers.append(answer)
        if answer.final:
            self._render(join(self._answers))

    def fail(self, error: Exception) -> None:
        write_error(self._exchange, self._record, error)


class EventStream:
    """Each answer an event as it comes; until the first one an error still has a status."""

    def __init__(self, exchange: Exchange, record: Record, asked: Asked) -> None:
        self._exchange = exchange
        self._record = record
        self._asked = asked

    async def take(self, answer: Answer) -> None:
        exchange = self._exchange
        if not exchange.started:
            exchange.start(200, [*sse.HEADERS, *self._record.headers()])
        if answer.outputs:
            await exchange.send(b"data: " + messages.render_fields(self._asked, answer.outputs) + b"\n\n")
        if answer.final:
            exchange.end()

    def fail(self, error: Exception) -> None:
        write_error(self._exchange, self._record, error)


class HttpDoor:
    """The endpoints; each of those of a model exists with and without a version."""

    def __init__(self, door: Door, max_body_bytes: int) -> None:
        self._door = door
        self._max_body_bytes = max_body_bytes

    def _offer(self, record: Record) -> Offer:
        values = record.values
        return self._door.offers.find(values["name"], values.get("version", ""), record.caller)

    def _choose(self, record: Record) -> Offer:
        return self._door.offers.choose(record.values["name"], record.values.get("version", ""), record)

    async def server(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, descriptions.server())

    async def live(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, {"live": True})

    async def ready(self, exchange: Exchange, record: Record) -> None:
        ready = await self._door.all_ready()
        respond_json(exchange, record, {"ready": ready}, 200 if ready else 503)

    async def model_ready(self, exchange: Exchange, record: Record) -> None:
        ready = await self._door.is_ready(self._offer(record).served)
        body = {"name": record.values["name"], "ready": ready}
        respond_json(exchange, record, body, 200 if ready else 503)

    async def metadata(self, exchange: Exchange, record: Record) -> None:
        offer = self._offer(record)
        versions = self._door.offers.versions(offer)
        respond_json(exchange, record, descriptions.metadata(offer, record.values["name"], versions))

    async def config(self, exchange: Exchange, record: Record) -> None:
        name, version = record.values["name"], record.values.get("version", "")
        respond_json(exchange, record, self._door.tell_config(name, version, record.caller))

    async def statistics(self, exchange: Exchange, record: Record) -> None:
        name, version = record.values.get("name", ""), record.values.get("version", "")
        respond_json(exchange, record, self._door.tell_statistics(name, version, record.caller))

    async def index(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, await self._door.index(record.caller))

    async def infer(self, exchange: Exchange, record: Record) -> None:
        header_length = exchange.request.headers.get(messages.HEADER_LENGTH)
        understand = partial(_understand_infer, header_length, record.values["name"])
        asked, binary = await self._understand(exchange, record, understand)
        await self._run(
            exchange,
            record,
            asked,
            WholeAnswer(exchange, record, lambda found: _respond(exchange, record, asked, found, binary)),
        )

    async def generate(self, exchange: Exchange, record: Record) -> None:
        asked = await self._understand(exchange, record, partial(_understand_fields, record.values["name"]))

        def respond(outputs: Sequence[Output]) -> None:
            headers = [("content-type", "application/json"), *record.headers()]
            exchange.respond(200, messages.render_fields(asked, outputs), headers)

        await self._run(exchange, record, asked, WholeAnswer(exchange, record, respond))

    async def generate_stream(self, exchange: Exchange, record: Record) -> None:
        asked = await self._understand(exchange, record, partial(_understand_fields, record.values["name"]))
        exchange.set_patience(lambda: patience_with(record, time.monotonic()))
        await self._run(exchange, record, asked, EventStream(exchange, record, asked))

    async def _understand(
        self, exchange: Exchange, record: Record, read: Callable[[Offer, bytes], Understood]
    ) -> Understood:
        """What the body asks of the release that answers; nobody knows how much is in a compressed one."""
        offer, body = self._choose(record), exchange.request.body
        encoding = exchange.request.headers.get("content-encoding", IDENTITY).lower()
        if encoding not in ENCODINGS:
            raise HttpError(415, f"this Content-Encoding is not accepted; allowed are {', '.join(ENCODINGS)}")

        def read_inflated(given: bytes) -> Understood:
            return read(offer, inflate(given, encoding, self._max_body_bytes))

        size_bytes = len(body) if encoding == IDENTITY else self._max_body_bytes
        return await self._door.understand(record, size_bytes, read_inflated, body)

    async def _run(
        self, exchange: Exchange, record: Record, asked: Asked, delivery: WholeAnswer | EventStream
    ) -> None:
        whole = isinstance(delivery, WholeAnswer)
        await self._door.infer(record, asked, whole, delivery, exchange.on_disconnect)


def _understand_infer(
    header_length: str | None, name: str, offer: Offer, body: bytes
) -> tuple[Asked, Collection[str] | None]:
    head, inputs = messages.read_body(body, header_length)
    if head.model_name not in ("", name):
        said, path = f"'{shown(head.model_name)}'", f"'{shown(name)}'"
        raise refuse(f"model_name is {said}, and the path names {path}", "model_name")
    outputs = [output.name for output in head.outputs]
    asked = understand(offer, name, head.id, inputs, outputs, head.parameters)
    return asked, messages.binary_outputs(head, asked.parameters.binary_output)


def _understand_fields(name: str, offer: Offer, body: bytes) -> Asked:
    has_rows = offer.max_batch_size > 0
    client_id, inputs, parameters = messages.read_fields(body, offer.inputs, has_rows)
    return understand(offer, name, client_id, inputs, (), parameters)


def _respond(
    exchange: Exchange,
    record: Record,
    asked: Asked,
    outputs: Sequence[Output],
    binary: Collection[str] | None,
) -> None:
    body, header_length = messages.render(asked, outputs, binary)
    kind = "application/json" if header_length is None else "application/octet-stream"
    headers = [("content-type", kind), *record.headers()]
    if header_length is not None:
        headers.append((messages.HEADER_LENGTH, str(header_length)))
    exchange.respond(200, body, headers)


def _refusal(why: str) -> Endpoint:
    async def refuse(exchange: Exchange, record: Record) -> None:
        raise HttpError(403, why)

    return refuse


def routes(door: Door, max_body_bytes: int = _MAX_BODY_BYTES) -> list[Route]:
    http = HttpDoor(door, max_body_bytes)
    body, generate = messages.InferBody, messages.GenerateBody
    of_models: list[tuple[str, str, Endpoint, str, type[msgspec.Struct] | None, str]] = [
        ("GET", "", http.metadata, "The inputs and outputs of a model", None, "object"),
        ("GET", "/ready", http.model_ready, "Readiness of a model", None, "object"),
        ("GET", "/config", http.config, "The config of a model", None, "object"),
        ("GET", "/stats", http.statistics, "How often you called a model", None, "object"),
        ("POST", "/infer", http.infer, "Tensors in, tensors out", body, "object or application/octet-stream"),
        ("POST", "/generate", http.generate, "Fields in, an answer out", generate, "object"),
        ("POST", "/generate_stream", http.generate_stream, "Fields in, an answer in events", generate, _SSE),
    ]
    found = [
        Route("GET", "/v2", http.server, "The server", action=Action.MODEL_READ),
        Route(
            "GET", "/v2/health/live", http.live, "Liveness: the process answers", action=Action.HEALTH_READ
        ),
        Route(
            "GET",
            "/v2/health/ready",
            http.ready,
            "Readiness: requests would be served now",
            action=Action.HEALTH_READ,
        ),
        Route(
            "GET",
            "/v2/models/stats",
            http.statistics,
            "How often you called each model",
            action=Action.MODEL_READ,
        ),
        Route(
            "POST",
            "/v2/repository/index",
            http.index,
            "The models",
            None,
            "TritonModels",
            takes="",
            action=Action.MODEL_READ,
        ),
    ]
    for base in (_MODEL, _VERSION):
        for method, rest, endpoint, summary, wanted, answer in of_models:
            asks_model = wanted is not None
            action = Action.INFERENCE_RUN if asks_model else Action.MODEL_READ
            add = partial(Route, takes="", asks_model=asks_model, action=action)
            found.append(add(method, base + rest, endpoint, summary, wanted, answer))
    for methods, path, why in NOT_OFFERED:
        refuse = _refusal(why)
        found += [
            Route(method, path, refuse, "Not offered", takes="", action=Action.MODEL_READ)
            for method in methods
        ]
    return found
