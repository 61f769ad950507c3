"""Floods of HTTP/2 frames at the router's gRPC port: whoever sends them, others are served."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress

import grpc
import pytest
from hpack import Encoder
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.pace import patience
from tests.router.kserve.running import RunningKserve

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RESET, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9
END_OF_HEADERS = 4


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def head() -> bytes:
    path = "/inference.GRPCInferenceService/ModelInfer"
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    return bytes(Encoder().encode([*fields, ("content-type", "application/grpc"), ("te", "trailers")]))


def resets(count: int) -> bytes:
    block = head()
    return b"".join(
        frame(HEADERS, END_OF_HEADERS, stream, block) + frame(RESET, stream=stream, body=struct.pack(">I", 8))
        for stream in range(1, 2 * count, 2)
    )


FLOODS = {
    "streams that are reset at once": resets(2_000),
    "settings": frame(SETTINGS) * 5_000,
    "pings": frame(PING, body=b"12345678") * 5_000,
    "headers without end": frame(HEADERS, 0, 1, head())
    + frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\x80\x07" + b"b" * 1_000) * 5_000,
}


def pour(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=patience(30)) as client:

        def read() -> None:
            with suppress(OSError):
                while client.recv(1 << 16):
                    pass

        reading = threading.Thread(target=read)
        reading.start()
        with suppress(OSError):  # it is refused in the middle
            client.sendall(PREFACE + frame(SETTINGS) + data)
            client.shutdown(socket.SHUT_WR)
        reading.join()


@pytest.mark.parametrize("name", FLOODS)
async def test_others_are_served_during_a_flood_of_frames_and_after_it(
    kserve: RunningKserve, name: str
) -> None:
    port = int(kserve.grpc_url.rpartition(":")[2])
    floods = [asyncio.ensure_future(asyncio.to_thread(pour, port, FLOODS[name])) for _ in range(2)]
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for wait in (False, True):
            if wait:
                await asyncio.gather(*floods)
            for _ in range(4):
                assert (await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=patience(30))).live
    assert kserve.triton.requests == []
