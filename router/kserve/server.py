"""KServe v2 over gRPC, on a port of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from router.http.tls import HANDSHAKE_TIMEOUT_S
from router.kserve.methods import Methods

if TYPE_CHECKING:
    from router.kserve.door import Door
    from router.request.accounts import Accounts
    from router.request.identity import Doorkeeper

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
        self._methods = Methods(door, doorkeeper, accounts)
        self._max_message_bytes = max_message_bytes
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which the system chooses when 0 is asked for."""
        options = _options(self._max_message_bytes)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self._methods, server)
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
        # A port that is taken is an error, not a port that is shared.
        ("grpc.so_reuseport", 0),
        # Only what is not compressed: a small message could become a huge one.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Also for who connects and never says a word.
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
        # Finds clients that vanished, and drops those that ping without end.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 3),
        ("grpc.max_connection_idle_ms", 600_000),
    ]
