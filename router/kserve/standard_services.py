"""What tools ask of any gRPC server: whether it serves, and which methods it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.calls import status_of
from router.kserve.tensors import shown
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.core.record import Record
    from router.kserve.door import Door
    from router.kserve.reception import Reception

INFERENCE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
SERVICES = tuple(service.full_name for service in (INFERENCE, HEALTH, REFLECTION))
_WHOLE_SERVER = ""


class Health:
    """Asked by probes, without a key. No Watch, as in Triton: whoever has no key could hold calls open."""

    def __init__(self, door: Door, reception: Reception) -> None:
        self._door = door
        self.Check = reception.described("Check", self._check, health_pb2.HealthCheckResponse)

    async def _check(self, request: Any, record: Record) -> dict[str, Any]:
        if request.service not in (_WHOLE_SERVER, *SERVICES):
            message = f"service '{shown(request.service)}' does not exist; there are {', '.join(SERVICES)}"
            raise InflightError(ErrorKind.NOT_FOUND, message)
        return {"status": "SERVING" if await self._door.all_ready() else "NOT_SERVING"}


class Reflection:
    """For grpcurl and its like; a stream stays open as long as the client likes, so it takes a key."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._answers: Any = reflection.ReflectionServicer(SERVICES)

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        record = self._reception.new_record("ServerReflectionInfo", context)
        failure: BaseException | None = None
        try:
            self._reception.enter(record, context, "ServerReflectionInfo")
            async for request in requests:
                asked = self._reception.unpacked(request)
                for answer in self._answers.ServerReflectionInfo(iter([asked]), context):
                    yield answer
        except Exception as error:
            failure = error
            await context.abort(*status_of(error, record.request_id))
        finally:
            self._reception.account_for(record, failure)
