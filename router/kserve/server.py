"""KServe v2 over gRPC: the methods of Triton's service, and the server on a port of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from python_backend.wire.errors import ErrorKind, InflightError
from router.http.tls import HANDSHAKE_TIMEOUT_S
from router.kserve import descriptions
from router.kserve.calls import Departure, Outbox, SingleAnswer, Stream, StreamedAnswer, status_of
from router.kserve.descriptions import NOT_OFFERED_METHODS
from router.kserve.messages import read_request
from router.kserve.reception import AskFirst, Reception
from router.kserve.service import Packed, handler_of
from router.kserve.standard_services import HEALTH, INFERENCE, REFLECTION, Health, Reflection
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from router.core.record import Record
    from router.kserve.door import Door
    from router.kserve.offers import Asked, Delivery, Offer
    from router.kserve.reception import Describe
    from router.request.accounts import Accounts
    from router.request.identity import Doorkeeper


class Methods:
    """Those of Triton's service, by their names there."""

    def __init__(self, door: Door, reception: Reception, max_message_bytes: int) -> None:
        self._door = door
        self._reception = reception
        self._max_message_bytes = max_message_bytes
        self._running: set[asyncio.Task[None]] = set()
        self._streams: set[Stream] = set()
        described: dict[str, Describe] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            **{name: partial(_refuse, why) for name, why in NOT_OFFERED_METHODS.items()},
        }
        for name, describe in described.items():
            answer = getattr(service_pb2, f"{name}Response")
            setattr(self, name, reception.described(name, describe, answer))

    # Descriptions

    async def _live(self, request: Any, record: Record) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, request: Any, record: Record) -> dict[str, Any]:
        return {"ready": await self._door.all_ready()}

    async def _server(self, request: Any, record: Record) -> dict[str, Any]:
        return descriptions.server()

    async def _model_ready(self, request: Any, record: Record) -> dict[str, Any]:
        try:
            served = self._offer(request, record).served
        except InflightError as error:
            if error.kind is not ErrorKind.MODEL_NOT_FOUND:
                raise
            return {"ready": False}  # as Triton has it
        return {"ready": await self._door.is_ready(served)}

    async def _metadata(self, request: Any, record: Record) -> dict[str, Any]:
        offer = self._offer(request, record)
        return descriptions.metadata(offer, request.name, self._door.offers.versions(offer))

    async def _config(self, request: Any, record: Record) -> dict[str, Any]:
        return {"config": self._door.tell_config(request.name, request.version, record.caller)}

    async def _statistics(self, request: Any, record: Record) -> dict[str, Any]:
        return self._door.tell_statistics(request.name, request.version, record.caller)

    async def _index(self, request: Any, record: Record) -> dict[str, Any]:
        return {"models": await self._door.index(record.caller)}

    def _offer(self, request: Any, record: Record) -> Offer:
        return self._door.offers.find(request.name, request.version, record.caller)

    # Inference

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        record = self._reception.new_record("ModelInfer", context)
        try:
            asked = await self._understand(record, "ModelInfer", request, context)
        except Exception as error:
            return await self._reception.abort(context, record, error)
        answer, departure = SingleAnswer(asked), Departure()
        self._run(self._infer(record, asked, True, answer, departure))
        try:
            return await asyncio.shield(answer.response)
        except asyncio.CancelledError:
            departure.leave()
            raise
        except Exception as error:
            return await self._reception.abort(context, record, error)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        async def start(request: Any, outbox: Outbox, departure: Departure) -> asyncio.Task[None]:
            record = self._reception.new_record("ModelStreamInfer", context)
            asked = await self._understand(record, "ModelStreamInfer", request, context)
            return self._run(self._infer(record, asked, False, StreamedAnswer(outbox, asked), departure))

        record = self._reception.new_record("ModelStreamInfer", context)
        try:
            self._reception.admit(record, context, "ModelStreamInfer")
        except InflightError as error:
            self._reception.account_for(record, error)
            await context.abort(*status_of(error, record.request_id))
        stream = Stream(start, context)
        self._streams.add(stream)
        try:
            await stream.serve(requests)
        except InflightError as error:
            code, message, _ = status_of(error, "")
            await context.abort(code, message)
        finally:
            self._streams.discard(stream)

    async def _understand(self, record: Record, method: str, request: Any, context: Any) -> Asked:
        """Refuses by an error that is counted; a key is looked at again for each request of a stream."""
        try:
            self._reception.enter(record, context, method, asks_model=True)
            if isinstance(request, Packed):
                most_bytes = self._max_message_bytes
                size = len(request.raw) if request.is_plain else most_bytes
                request = await self._door.understand(record, size, request.unpack, most_bytes)
            offer = self._door.offers.choose(request.model_name, request.model_version, record)
            read = partial(read_request, request)
            return await self._door.understand(record, request.ByteSize(), read, offer)
        except BaseException as error:
            self._reception.account_for(record, error)
            raise

    async def _infer(
        self, record: Record, asked: Asked, whole: bool, delivery: Delivery, departure: Departure
    ) -> None:
        """Runs in a task of its own that nobody cancels: who leaves has the request cut instead."""
        failure: Exception | None = None
        try:
            await self._door.infer(record, asked, whole, delivery, departure.on_leave)
        except Exception as error:
            failure = error
            delivery.fail(error)
        finally:
            self._reception.account_for(record, failure)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self) -> None:
        """Waits until every request is settled; all of them were cut, or had ended."""
        if self._running:
            await asyncio.wait(self._running)

    def close_idle_streams(self) -> None:
        for stream in list(self._streams):
            stream.close_if_idle()


async def _refuse(why: str, request: Any, record: Record) -> dict[str, Any]:
    raise InflightError(ErrorKind.FORBIDDEN, why)


_MAX_ANSWER_BYTES = 64 << 20
_MAX_STREAMS_PER_CONNECTION = 1024
_MAX_CALLS = 8192


class KserveServer:
    """Listens from `start` to `stop`; requests are refused while the router drains, as everywhere."""

    def __init__(
        self,
        door: Door,
        doorkeeper: Doorkeeper,
        accounts: Accounts,
        max_message_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._reception = reception = Reception(door, doorkeeper, accounts)
        self._methods = Methods(door, reception, max_message_bytes)
        self._handlers = [
            handler_of(INFERENCE, self._methods),
            handler_of(HEALTH, Health(door, reception)),
            handler_of(REFLECTION, Reflection(reception)),
        ]
        self._max_message_bytes = max_message_bytes
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which the system chooses when 0 is asked for."""
        options = _options(self._max_message_bytes)
        server = grpc.aio.server(
            interceptors=[AskFirst(self._reception)], options=options, maximum_concurrent_rpcs=_MAX_CALLS
        )
        server.add_generic_rpc_handlers(self._handlers)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}") from error
        await server.start()
        self._server = server
        return int(bound)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ends streams that wait for nothing at once, and others after a while."""
        if self._server is not None:
            self._methods.close_idle_streams()
            await self._server.stop(grace_s)
            await self._methods.finish()


def _options(max_message_bytes: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", _MAX_ANSWER_BYTES),
        ("grpc.max_concurrent_streams", _MAX_STREAMS_PER_CONNECTION),
        ("grpc.max_metadata_size", 16 << 10),
        # Of calls that nobody has looked at yet, on all connections: beyond that the library cancels new ones
        # by chance, whoever made them. By default 1,000 and 3,000, which streams that are reset soon fill.
        ("grpc.server.max_pending_requests", _MAX_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_CALLS),
        # A port that is taken is an error, not a port that is shared.
        ("grpc.so_reuseport", 0),
        # All that it knows, and left as it came: the library would unpack a message however large it becomes.
        ("grpc.compression_enabled_algorithms_bitset", 0b111),
        ("grpc.per_message_decompression", 0),
        # Also for who connects and never says a word.
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
        # Finds clients that vanished, and drops those that ping without end.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 3),
        ("grpc.max_connection_idle_ms", 600_000),
    ]
