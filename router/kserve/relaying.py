"""Requests by the ensemble's contract on their way through Triton; stopped as any other generation is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.grpc.status import GrpcError, StatusCode
from router.triton_client import TritonGeneration
from router.triton_messages import is_final

if TYPE_CHECKING:
    from router.grpc.call import Call


class RelayedGeneration(TritonGeneration):
    """Gives the responses themselves: with several rows or sequences, one that finishes is not the last."""

    def _delta(self, response: Any) -> Any:
        if is_final(response):
            self._expect_end()
        return response

    async def _read(self, call: Call) -> Any:
        try:
            return await super()._read(call)
        except InflightError as error:
            cause = error.__cause__
            if isinstance(cause, GrpcError) and cause.code is StatusCode.RESOURCE_EXHAUSTED:
                message = "the answer is larger than can be passed on: ask for fewer tokens, or for no logits"
                raise InflightError(ErrorKind.INVALID_REQUEST, message) from None
            raise
