"""Every gRPC call on the port: recorded, its caller identified, its end counted and logged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format

from python_backend.wire.errors import InflightError
from router.core.actions import Action
from router.core.record import Record, new_request_id
from router.core.stages import HEADER as DEADLINE
from router.core.stages import read_deadline
from router.kserve.calls import error_kind, grpc_code, http_status, status_of
from router.kserve.descriptions import NOT_OFFERED_METHODS
from router.kserve.service import Packed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from router.kserve.door import Door
    from router.request.accounts import Accounts
    from router.request.identity import Doorkeeper

    Describe = Callable[[Any, Record], Awaitable[dict[str, Any]]]

log = logging.getLogger(__name__)


_STREAMED = "grpc ModelStreamInfer"
# What each method of each service reads or does; one that is not here is not served.
ACTIONS = {
    **dict.fromkeys(("ServerLive", "ServerReady", "Check"), Action.HEALTH_READ),
    **dict.fromkeys(("ModelInfer", "ModelStreamInfer"), Action.INFERENCE_RUN),
    **dict.fromkeys(
        (
            *("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"),
            *("RepositoryIndex", "ServerReflectionInfo", *NOT_OFFERED_METHODS),
        ),
        Action.MODEL_READ,
    ),
}
# Far more than any question has that asks no model.
_MOST_QUESTION_BYTES = 64 << 10


class Reception:
    def __init__(self, door: Door, doorkeeper: Doorkeeper, accounts: Accounts) -> None:
        self._door = door
        self._doorkeeper = doorkeeper
        self._accounts = accounts

    def new_record(self, method: str, context: Any) -> Record:
        """The name of a route in logs and metrics."""
        record = Record(f"grpc {method}", new_request_id("infer"))
        self._accounts.begin_rpc(record, method, context.invocation_metadata() or ())
        return record

    def enter(self, record: Record, context: Any, method: str, asks_model: bool = False) -> None:
        """Identifies the caller and counts the request; what is open to everybody is not counted."""
        self.admit(record, context, method)
        if (scope := ACTIONS[method].scope) is not None:
            self._door.enter(record, scope, asks_model)

    def admit(self, record: Record, context: Any, method: str) -> None:
        """Who asks, and what the metadata say of the release that is to answer."""
        scope = ACTIONS[method].scope
        if scope is None:
            return
        given = context.invocation_metadata() or ()
        record.caller = self._doorkeeper.identify(_only("authorization", given), scope)
        record.user = record.caller.user.id
        record.pinned_release = _only("x-inflight-release", given) or ""
        record.conversation = _only("x-inflight-conversation", given) or ""
        record.deadline_s = read_deadline(_only(DEADLINE, given), context.time_remaining(), record.arrived_s)

    def account_for(self, record: Record, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, InflightError | asyncio.CancelledError):
            log.error("%s failed", record.request_id, exc_info=failure)
        if isinstance(failure, InflightError):
            self._door.uncount(record, failure)
            if record.route != _STREAMED:  # which goes on after a refusal
                self._door.hold_s(record, failure)
        record.error = error_kind(failure)
        self._accounts.end(record, http_status(failure), grpc_code(failure))

    @staticmethod
    async def abort(context: Any, record: Record, error: Exception) -> Any:
        """Ends a call that is accounted for; late, where whoever called keeps coming back at once."""
        if record.held_s:
            await asyncio.sleep(record.held_s)
        return await context.abort(*status_of(error, record.request_id))

    def refusal(self, method: str, metadata: Iterable[tuple[str, Any]]) -> tuple[Record, Exception] | None:
        """By what is known before a message is read: who calls, and whether that caller may now."""
        scope = ACTIONS[method].scope
        if scope is None:
            return None
        try:
            caller = self._doorkeeper.identify(_only("authorization", metadata), scope)
            if method != "ModelStreamInfer":  # whose requests are counted one by one
                self._door.foresee(caller, scope, asks_model=method == "ModelInfer")
        except InflightError as error:
            record = Record(f"grpc {method}", new_request_id("infer"))
            self._accounts.begin_rpc(record, method, tuple(metadata))
            self.account_for(record, error)
            return record, error
        return None

    def unpacked(self, request: Any) -> Any:
        """One that asks no model, which is small and read at once."""
        return request.unpack(_MOST_QUESTION_BYTES) if isinstance(request, Packed) else request

    def described(
        self, name: str, describe: Describe, answer: type[Any]
    ) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
        """A method that asks no model: admitted, answered, counted and logged."""

        async def call(request: Any, context: Any) -> Any:
            record = self.new_record(name, context)
            try:
                self.enter(record, context, name)
                told = json_format.ParseDict(await describe(self.unpacked(request), record), answer())
            except BaseException as error:
                self.account_for(record, error)
                if not isinstance(error, Exception):
                    raise
                return await self.abort(context, record, error)
            self.account_for(record, None)
            return told

        return call


def _only(name: str, metadata: Iterable[tuple[str, Any]]) -> str | None:
    found = [value for key, value in metadata if key == name]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


class AskFirst(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs alone
    """Ends the call of whoever is refused anyway before its message is read: it may be large."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        handler = await continuation(details)
        if handler is None:
            return None
        refused = self._reception.refusal(method, details.invocation_metadata or ())
        if refused is None:
            return handler

        async def abort(requests: AsyncIterator[Any], context: Any) -> None:
            await self._reception.abort(context, *refused)

        return grpc.stream_stream_rpc_method_handler(abort)
