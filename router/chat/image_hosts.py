"""Images from hosts that the operator has named: fetched within limits, and never from this network."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import httpx

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.address import is_public
from router.core.fair_pool import FairPool
from router.request.decoding import invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    Resolve = Callable[[str], Awaitable[Sequence[str]]]

_FETCH_S = 10.0
_AT_ONCE, _WAITING_EACH = 16, 64
_PORTS = {"http": 80, "https": 443}


class ImageHosts:
    """A name is looked up once, and the connection goes to the address that was judged.

    Redirects are not followed, and no port but the scheme's own is asked.
    """

    def __init__(
        self,
        hosts: Collection[str],
        max_bytes: int,
        resolve: Resolve | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._hosts = frozenset(hosts)
        self._max_bytes = max_bytes
        self._resolve = resolve or addresses_of
        self._turns = FairPool("images to be fetched", _AT_ONCE, _WAITING_EACH)
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            transport=transport, limits=limits, trust_env=False, follow_redirects=False, timeout=_FETCH_S
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def fetch(self, url: str, tenant: str, where: str) -> bytes:
        try:
            async with self._turns.turn(tenant):
                return await asyncio.wait_for(self._fetch(url, where), _FETCH_S)
        except (asyncio.TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError):
            raise invalid(f"{where}: could not be fetched within {_FETCH_S:g} s", "messages") from None

    async def _fetch(self, url: str, where: str) -> bytes:
        asked = httpx.URL(url)
        host = asked.host.lower()
        if host not in self._hosts:
            allowed = ", ".join(sorted(self._hosts))
            message = f"{where}: images are not fetched from this host; allowed: {allowed}"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "messages")
        if asked.userinfo or asked.port not in (None, _PORTS[asked.scheme]):
            raise invalid(f"{where}: expected a url without a password and with the default port", "messages")
        address = await self._address(host, where)
        request = self._http.build_request(
            "GET",
            asked.copy_with(host=address),
            headers={"host": host, "accept": "image/*", "accept-encoding": "identity"},
            extensions={"sni_hostname": host},
        )
        response = await self._http.send(request, stream=True)
        try:
            return await self._content(response, where)
        finally:
            await response.aclose()

    async def _address(self, host: str, where: str) -> str:
        """One of those that it has, if all of them can be reached by everybody."""
        found = await self._resolve(host)
        if not found or not all(map(is_public, found)):
            raise invalid(f"{where}: its host has no public address", "messages")
        return found[0]

    async def _content(self, response: httpx.Response, where: str) -> bytes:
        if response.status_code != httpx.codes.OK:
            raise invalid(f"{where}: its host answered with status {response.status_code}", "messages")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > self._max_bytes:
                raise invalid(f"{where}: is larger than {self._max_bytes} bytes, the limit", "messages")
        return bytes(data)


async def addresses_of(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
