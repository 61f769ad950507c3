from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat import image_hosts
from router.chat.image_hosts import ImageHosts

PUBLIC = "93.184.215.14"


class Web:
    """Answers by path, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        path = request.url.path
        if path == "/moved.png":
            return httpx.Response(302, headers={"location": "http://169.254.169.254/"})
        if path == "/broken.png":
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=pieces(2000 if path == "/large.png" else 10))


async def pieces(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes // 10):
        yield b"x" * 10


async def fetch(url: str, web: Web, addresses: Sequence[str] = (PUBLIC,)) -> bytes:
    async def resolve(host: str) -> Sequence[str]:
        return addresses

    hosts = ImageHosts(["cdn.example.org"], 1000, resolve, httpx.MockTransport(web))
    try:
        return await hosts.fetch(url, "acme", "image 1")
    finally:
        await hosts.close()


async def test_an_image_is_fetched_from_the_address_that_was_judged_by_the_name_that_was_asked() -> None:
    web = Web()
    assert await fetch("https://cdn.example.org/a.png?size=2", web) == b"x" * 10
    (request,) = web.asked
    assert str(request.url) == f"https://{PUBLIC}/a.png?size=2"
    assert request.headers["host"] == "cdn.example.org"
    assert request.extensions["sni_hostname"] == "cdn.example.org"


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("https://other.org/a.png", ErrorKind.UNSUPPORTED, "allowed: cdn.example.org"),
        ("https://cdn.example.org.evil.org/a.png", ErrorKind.UNSUPPORTED, "allowed: cdn.example.org"),
        ("https://cdn.example.org:8443/a.png", ErrorKind.INVALID_REQUEST, "the default port"),
        ("https://me:secret@cdn.example.org/a.png", ErrorKind.INVALID_REQUEST, "without a password"),
        ("https://cdn.example.org/moved.png", ErrorKind.INVALID_REQUEST, "answered with status 302"),
        ("https://cdn.example.org/large.png", ErrorKind.INVALID_REQUEST, "larger than 1000 bytes"),
        ("https://cdn.example.org/broken.png", ErrorKind.INVALID_REQUEST, "could not be fetched"),
        ("https://[::1", ErrorKind.INVALID_REQUEST, "could not be fetched"),
    ],
)
async def test_what_is_not_fetched_is_refused_and_named(url: str, kind: ErrorKind, said: str) -> None:
    with pytest.raises(InflightError, match=said) as caught:
        await fetch(url, Web())
    assert caught.value.kind is kind
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "addresses", [(), ("10.0.0.7",), (PUBLIC, "127.0.0.1"), ("::127.0.0.1",), ("fec0::1",)]
)
async def test_a_host_with_a_private_address_is_never_asked(addresses: tuple[str, ...]) -> None:
    web = Web()
    with pytest.raises(InflightError, match="no public address"):
        await fetch("https://cdn.example.org/a.png", web, addresses)
    assert web.asked == []


async def test_a_host_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_hosts, "_FETCH_S", 0.05)

    async def resolve(host: str) -> Sequence[str]:
        await asyncio.sleep(60)
        return ()

    hosts = ImageHosts(["cdn.example.org"], 1000, resolve)
    with pytest.raises(InflightError, match=r"could not be fetched within 0.05 s"):
        await hosts.fetch("https://cdn.example.org/a.png", "acme", "image 1")
    await hosts.close()
