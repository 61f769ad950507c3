"""Requests that could be read in two ways, or cost more than they may: refused, and the connection closed."""

from __future__ import annotations

import json

import pytest

from tests.router.raw import RawClient, chat_request
from tests.router.running import RunningRouter

HOST = b"Host: localhost\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\nHost:\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\n" + HOST + b"host: evil.example\r\n\r\n", 400),
        (LIVE[:-2] + b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400),
        (POST + b"Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n", 400),
        (LIVE[:-2] + b"Origin: http://localhost\r\nOrigin: https://evil.example\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
        (POST + b"Transfer-Encoding:\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (LIVE[:-2] + b"A: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (LIVE[:-2] + b"A: b\r\n" * 10_000 + b"\r\n", 431),
        # What was refused before, too.
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length:\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (LIVE[:-2] + b"A: b\rC: d\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 400),
    ],
)
async def test_a_request_that_two_readers_would_read_differently_is_refused(
    router: RunningRouter, request_bytes: bytes, status: int
) -> None:
    client = await RawClient.connect(router.port)
    await client.send(request_bytes)
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert json.loads(reply.body)["error"]["message"]
    assert await client.closed()
    await client.close()
    assert router.pipeline.calls == []


async def test_a_header_that_just_fits_is_read(router: RunningRouter) -> None:
    client = await RawClient.connect(router.port)
    await client.send(LIVE[:-2] + b"A: " + b"x" * 32_000 + b"\r\n\r\n" + LIVE)
    assert [(await client.reply()).status for _ in range(2)] == [200, 200]
    await client.close()


async def test_large_pipelined_requests_are_all_answered(router: RunningRouter) -> None:
    client = await RawClient.connect(router.port)
    large = chat_request(messages=[{"role": "user", "content": "x" * 400_000}])
    await client.send(large * 8)
    assert [(await client.reply()).status for _ in range(8)] == [200] * 8
    await client.close()
