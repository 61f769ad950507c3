"""Where routers leave messages for each other; in Redis, one key a router, which expires."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from router.control.peers.redis_link import RedisAway, RedisLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

# A router without a message for so long is gone, and its share is the others'.
LASTS_S = 2.0


class BoardAway(Exception):
    """The board is unreachable: the message says why."""


class Board(Protocol):
    """A message stays for LASTS_S, unless it is renewed."""

    async def swap(self, router: str, told: bytes) -> Mapping[str, bytes]:
        """Leaves this router's message and returns those of the others; raises BoardAway."""

    async def close(self, router: str) -> None:
        """Removes its message."""


class RedisBoard:
    """`deployment` separates deployments that use the same Redis."""

    def __init__(self, url: str, deployment: str) -> None:
        self.link = RedisLink(url, deployment)
        self._redis, self._prefix = self.link.redis, self.link.prefix

    async def swap(self, router: str, told: bytes) -> Mapping[str, bytes]:
        found: Mapping[str, bytes] = await self._ask(self._swap(router, told))
        return found

    async def ping(self) -> None:
        """Raises BoardAway where Redis is unreachable."""
        await self._ask(self._redis.ping())

    async def close(self, router: str) -> None:
        with suppress(BoardAway):  # else it expires
            await self._ask(self._redis.delete(self._prefix + router))
        await self.link.close()

    async def _ask(self, asked: Awaitable[Any]) -> Any:
        try:
            return await self.link.ask(asked)
        except (RedisAway, self.link.refusal) as error:
            raise BoardAway(str(error)) from error

    async def _swap(self, router: str, told: bytes) -> Mapping[str, bytes]:
        """All names are in a set; a router whose key has expired is removed by the first that sees it."""
        names = self._prefix + "routers"
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(self._prefix + router, told, px=int(1000 * LASTS_S))
            pipe.sadd(names, router)
            pipe.pexpire(names, int(10_000 * LASTS_S))
            pipe.smembers(names)
            found = (await pipe.execute())[-1]
        others = sorted(name.decode("ascii", "replace") for name in found if name != router.encode())
        if not others:
            return {}
        values = await self._redis.mget([self._prefix + name for name in others])
        gone = [name for name, value in zip(others, values, strict=True) if value is None]
        if gone:
            await self._redis.srem(names, *gone)
        return {name: value for name, value in zip(others, values, strict=True) if value is not None}
