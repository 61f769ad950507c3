"""The methods of Triton's gRPC service: each call let in, answered, counted and logged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.record import Record, new_request_id
from router.core.stages import HEADER as DEADLINE
from router.core.stages import read_deadline
from router.core.tenant import Scope
from router.kserve import descriptions
from router.kserve.calls import (
    Departure,
    SingleAnswer,
    StreamedAnswer,
    error_kind,
    grpc_code,
    http_status,
    status_of,
)
from router.kserve.messages import read_request
from router.kserve.refusals import NOT_OFFERED_METHODS
from router.kserve.streams import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from router.kserve.calls import Outbox
    from router.kserve.door import Door
    from router.kserve.offers import Asked, Delivery, Offer
    from router.request.accounts import Accounts
    from router.request.identity import Doorkeeper

log = logging.getLogger(__name__)


class Methods(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped base
    def __init__(self, door: Door, doorkeeper: Doorkeeper, accounts: Accounts) -> None:
        self._door = door
        self._accounts = accounts
        self._doorkeeper = doorkeeper
        self._running: set[asyncio.Task[None]] = set()
        self._streams: set[Stream] = set()
        for method, why in NOT_OFFERED_METHODS.items():
            setattr(self, method, self._refusal(method, why))

    # Descriptions

    async def ServerLive(self, request: Any, context: Any) -> Any:
        async def live(record: Record) -> Any:
            return service_pb2.ServerLiveResponse(live=True)

        return await self._describe("ServerLive", context, live, scope=None)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        async def ready(record: Record) -> Any:
            return service_pb2.ServerReadyResponse(ready=await self._door.all_ready())

        return await self._describe("ServerReady", context, ready, scope=None)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        async def metadata(record: Record) -> Any:
            return service_pb2.ServerMetadataResponse(**descriptions.server())

        return await self._describe("ServerMetadata", context, metadata)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        async def ready(record: Record) -> Any:
            served = self._offer(request, record).served
            return service_pb2.ModelReadyResponse(ready=await self._door.is_ready(served))

        return await self._describe("ModelReady", context, ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        async def metadata(record: Record) -> Any:
            offer = self._offer(request, record)
            found = descriptions.metadata(offer, request.name, self._door.offers.versions(offer))
            return json_format.ParseDict(found, service_pb2.ModelMetadataResponse())

        return await self._describe("ModelMetadata", context, metadata)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        async def config(record: Record) -> Any:
            found = descriptions.config(self._offer(request, record), request.name)
            return json_format.ParseDict({"config": found}, service_pb2.ModelConfigResponse())

        return await self._describe("ModelConfig", context, config)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        async def statistics(record: Record) -> Any:
            told = self._door.tell_statistics(request.name, request.version, record.caller)
            return json_format.ParseDict(told, service_pb2.ModelStatisticsResponse())

        return await self._describe("ModelStatistics", context, statistics)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        async def index(record: Record) -> Any:
            told = {"models": await self._door.index(record.caller)}
            return json_format.ParseDict(told, service_pb2.RepositoryIndexResponse())

        return await self._describe("RepositoryIndex", context, index)

    def _offer(self, request: Any, record: Record) -> Offer:
        return self._door.offers.find(request.name, request.version, record.caller)

    def _refusal(self, method: str, why: str) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
        async def refuse(request: Any, context: Any) -> Any:
            async def act(record: Record) -> Any:
                raise InflightError(ErrorKind.FORBIDDEN, why)

            return await self._describe(method, context, act)

        return refuse

    async def _describe(
        self,
        method: str,
        context: Any,
        act: Callable[[Record], Awaitable[Any]],
        scope: Scope | None = Scope.INFERENCE,
    ) -> Any:
        """One call that asks no model: let in, answered, counted and logged."""
        record = self._new_record(method, context)
        failure: BaseException | None = None
        try:
            if scope is not None:
                self._let_in(record, context, scope)
            return await act(record)
        except Exception as error:
            failure = error
            return await context.abort(*status_of(error, record.request_id))
        finally:
            self._account_for(record, failure)

    # Inference

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        record = self._new_record("ModelInfer", context)
        try:
            asked = self._understand(record, request, context)
        except Exception as error:
            return await context.abort(*status_of(error, record.request_id))
        answer, departure = SingleAnswer(asked), Departure()
        self._run(self._infer(record, asked, True, answer, departure))
        try:
            return await asyncio.shield(answer.response)
        except asyncio.CancelledError:
            departure.leave()
            raise
        except Exception as error:
            return await context.abort(*status_of(error, record.request_id))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        def start(request: Any, outbox: Outbox, departure: Departure) -> asyncio.Task[None]:
            record = self._new_record("ModelStreamInfer", context)
            asked = self._understand(record, request, context)
            return self._run(self._infer(record, asked, False, StreamedAnswer(outbox, asked), departure))

        record = self._new_record("ModelStreamInfer", context)
        try:
            self._let_in(record, context)
        except InflightError as error:
            self._account_for(record, error)
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

    def _understand(self, record: Record, request: Any, context: Any) -> Asked:
        """Refuses by an error that is counted; a key is looked at again for each request of a stream."""
        try:
            self._let_in(record, context)
            return read_request(self._door.offers, record, request)
        except Exception as error:
            self._account_for(record, error)
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
            self._account_for(record, failure)

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

    def _new_record(self, method: str, context: Any) -> Record:
        """The name of a route in logs and metrics."""
        record = Record(f"grpc {method}", new_request_id("infer"))
        self._accounts.begin_rpc(record, method, context.invocation_metadata() or ())
        return record

    def _let_in(self, record: Record, context: Any, scope: Scope = Scope.INFERENCE) -> None:
        """Who asks, and what the metadata say of the release that is to answer."""
        given = context.invocation_metadata() or ()
        record.caller = self._doorkeeper.identify(_only("authorization", given), scope)
        record.user = record.caller.user.id
        record.pinned_release = _only("x-inflight-release", given) or ""
        record.conversation = _only("x-inflight-conversation", given) or ""
        record.deadline_s = read_deadline(_only(DEADLINE, given), context.time_remaining(), record.arrived_s)

    def _account_for(self, record: Record, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, InflightError | asyncio.CancelledError):
            log.error("%s failed", record.request_id, exc_info=failure)
        record.error = error_kind(failure)
        self._accounts.end(record, http_status(failure), grpc_code(failure))


def _only(name: str, metadata: Iterable[tuple[str, Any]]) -> str | None:
    found = [value for key, value in metadata if key == name]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None
