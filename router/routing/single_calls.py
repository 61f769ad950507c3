"""Requests with one response each, which may be asked again wherever the first replica failed."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Failure
from router.grpc.status import GrpcError
from router.routing.attempts import Failed, find_replica, to_avoid
from router.routing.replay import may_go_on
from router.triton.client import read_once
from router.triton.failures import UNAVAILABLE, TritonError, cut_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.grpc.call import Call
    from router.routing.replicas import FleetSettings, Replica, ReplicaSet

Answer = TypeVar("Answer")


class SingleCall:
    """One ModelInfer on one replica, for which it counts as long as it is under way."""

    def __init__(self, replica: Replica, tokens: int, began_s: float) -> None:
        self.outstanding_tokens = 0
        self._began_s = began_s
        self._replica = replica
        self._tokens = tokens
        self._call: Call | None = None
        self._is_cut = False

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        """Raises GrpcError; TritonError where it was given up."""
        replica = self._replica
        replica.began(self, self._tokens, self._began_s)
        call = self._call = replica.connection.begin_once(request, timeout_s)
        call.on_end(partial(replica.ended, self))
        try:
            return await read_once(call)
        except GrpcError:
            if self._is_cut:
                raise cut_error() from None
            raise

    async def ready(self, model: str) -> bool:
        return await self._replica.connection.ready(model)

    def give_up(self, reason: str) -> None:
        self._is_cut = True
        if self._call is not None:
            self._call.cancel()


async def ask(
    replicas: ReplicaSet,
    settings: FleetSettings,
    tokens: int,
    make: Callable[[SingleCall], Awaitable[Answer]],
) -> Answer:
    """What `make` makes of a call, on the first replica that answers it; raises InflightError."""
    replicas.budget.requested()
    failed: Failed = ()
    attempts = 0
    while True:
        replica = await find_replica(replicas, None, to_avoid(failed), settings.revive_wait_s)
        if replica is None:
            raise InflightError(ErrorKind.ENGINE_FAILED, UNAVAILABLE)
        attempts += 1
        if attempts > 1:
            replicas.retries += 1
        began_s = time.monotonic()
        try:
            answer = await make(SingleCall(replica, tokens, began_s))
        except TritonError as error:
            replica.failed(error.failure, time.monotonic(), began_s)
            if not (may_go_on(error.failure, attempts) and replicas.budget.take()):
                raise
            if error.failure is not Failure.CUT:
                failed += ((replica, began_s),)
        else:
            replica.answered(time.monotonic(), began_s)
            return answer
