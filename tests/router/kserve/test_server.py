from __future__ import annotations

import pytest

from router.identity import Doorkeeper
from router.kserve.server import KserveServer
from tests.router.kserve.running import RunningKserve


async def test_a_port_that_is_taken_is_an_error_and_not_shared(kserve: RunningKserve) -> None:
    doorkeeper = Doorkeeper(kserve.router.service.tenancy, is_private=True)
    second = KserveServer(kserve.door, doorkeeper, 1 << 20)
    with pytest.raises(OSError, match="cannot listen for gRPC"):
        await second.start("127.0.0.1", int(kserve.grpc_url.rpartition(":")[2]))
    await second.stop()
