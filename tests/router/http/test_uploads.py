"""Large bodies on a real connection: who may send them, how many, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from router.content.files.model import FileLimits
from router.core.tenant import Scope
from router.http.connection import Limits
from tests.pace import patience
from tests.router.raw import RawClient
from tests.router.running import RunningRouter, running_router

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
LIMITS = Limits(linger_s=0.1, max_uploads=4)
# Two thirds of what comes at the pace of the test below is enough, and what does not come is missed soon.
HURRIED = replace(
    LIMITS,
    body_timeout_s=patience(0.8),
    least_upload_bytes_per_s=round((1 << 19) / patience(1)),
    upload_grace_s=patience(0.6),
)


def form(content: bytes, purpose: str = "user_data") -> bytes:
    fields = f'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
    file = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    return fields.encode() + file.encode() + content + b"\r\n--x--\r\n"


def head(size: int, path: str = "/v1/files", more: str = "") -> bytes:
    kind = "Content-Type: multipart/form-data; boundary=x\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {size}\r\n{more}\r\n".encode()


@pytest.fixture
async def router() -> AsyncIterator[RunningRouter]:
    async with running_router(LIMITS, file_limits=FileLimits(max_file_bytes=3 << 20)) as running:
        yield running
        assert running.listener.upload_slots.taken == 0


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[RawClient]:
    connected = await RawClient.connect(router.port)
    yield connected
    await connected.close()
    await router.until(lambda: router.listener.upload_slots.taken == 0)


async def test_a_file_larger_than_other_bodies_may_be_is_accepted(client: RawClient) -> None:
    body = form(b"y" * (2 << 20))
    await client.send(head(len(body)) + body + LIVE)
    reply = await client.reply()
    assert (reply.status, json.loads(reply.body)["bytes"]) == (200, 2 << 20)
    assert (await client.reply()).status == 200


async def test_a_body_beyond_the_files_limit_is_refused_before_it_is_sent(client: RawClient) -> None:
    await client.send(head(4 << 20))
    assert (await client.reply()).status == 413


async def test_a_chunked_body_beyond_the_files_limit_is_refused(client: RawClient) -> None:
    kind = b"Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" + kind)
    await client.send((b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 8)
    assert (await client.reply()).status == 413


async def test_a_file_in_a_form_that_just_fits_is_still_too_large(client: RawClient) -> None:
    body = form(b"y" * ((3 << 20) + 1))
    await client.send(head(len(body)) + body)
    reply = await client.reply()
    assert reply.status == 413
    assert json.loads(reply.body)["error"]["param"] == "file"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files/file-1", "/nowhere"])
async def test_only_file_uploads_may_be_large(client: RawClient, path: str) -> None:
    await client.send(head(2 << 20, path))
    assert (await client.reply()).status == 413


async def test_without_a_valid_key_an_upload_has_the_ordinary_body_limit(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), frozenset({Scope.FILES}))
    for authorization, status in (("", 413), ("Authorization: Bearer sk-wrong\r\n", 413), (key, 200)):
        client = await RawClient.connect(router.port)
        body = form(b"y" * (2 << 20))
        more = f"Authorization: Bearer {key}\r\n" if authorization == key else authorization
        await client.send(head(len(body), more=more))
        if status == 200:
            await client.send(body)
        assert (await client.reply()).status == status
        await client.close()


async def test_a_client_that_offers_http_2_may_upload(client: RawClient, router: RunningRouter) -> None:
    body = form(b"y" * 1000)
    await client.send(head(len(body), more=OFFER) + body)
    assert (await client.reply()).status == 200


async def test_a_bounded_number_of_uploads_is_accepted_at_once(router: RunningRouter) -> None:
    clients = [await RawClient.connect(router.port) for _ in range(3)]
    for client in clients:
        await client.send(head(2 << 20))
    await router.until(lambda: router.listener.upload_slots.taken == 2)
    assert (await clients[2].reply()).status == 503
    for client in clients:
        await client.close()
    await router.until(lambda: router.listener.upload_slots.taken == 0)


async def test_slow_bodies_of_one_tenant_leave_slots_for_others() -> None:
    patient = Limits(linger_s=0.1, max_uploads=6)
    async with running_router(patient) as router:
        slow, other = [await router.new_key(await router.new_tenant(name)) for name in ("slow", "other")]
        clients = [await RawClient.connect(router.port) for _ in range(4)]
        for client in clients:
            await client.send(head(2 << 20, more=f"Authorization: Bearer {slow}\r\n") + b"--x")
        assert (await clients[3].reply()).status == 503
        assert router.listener.upload_slots.taken == 3
        body = form(b"hi")
        reply = await router.http.post(
            "/v1/files",
            content=body,
            headers={"authorization": f"Bearer {other}", "content-type": "multipart/form-data; boundary=x"},
        )
        assert reply.status_code == 200
        for client in clients:
            await client.close()
        await router.until(lambda: router.listener.upload_slots.taken == 0)


async def test_an_upload_must_keep_a_pace_from_its_beginning() -> None:
    """Otherwise a byte now and then would hold a slot for as long as any body may take."""
    limits = Limits(body_timeout_s=60, linger_s=0.1, upload_grace_s=0.2)
    async with running_router(limits) as router:
        client = await RawClient.connect(router.port)
        await client.send(head(2 << 20) + b"-")
        assert (await client.reply()).status == 408
        assert router.listener.upload_slots.taken == 0
        await client.close()


async def test_a_client_that_disconnects_mid_upload_leaves_nothing_behind(
    client: RawClient, router: RunningRouter
) -> None:
    await client.send(head(3 << 20) + b"x" * (2 << 20))
    await router.until(lambda: router.listener.upload_slots.taken == 1)


async def test_an_upload_that_goes_on_has_time_and_one_that_stalls_has_not() -> None:
    body = form(b"y" * (1 << 20))
    async with running_router(HURRIED, file_limits=FileLimits(max_file_bytes=3 << 20)) as router:
        client = await RawClient.connect(router.port)
        await client.send(head(len(body)))
        began_s = time.monotonic()
        for start in range(0, 1 << 20, 1 << 17):
            await client.send(body[start : start + (1 << 17)])
            await asyncio.sleep(patience(0.2))
        assert time.monotonic() - began_s > HURRIED.body_timeout_s * 1.5
        await client.send(body[1 << 20 : -1])
        assert (await client.reply()).status == 408
        await client.close()
