"""Where routers leave messages for each other; in Redis, one key a router, which expires."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from router.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A router without a message for so long is gone, and its share is the others'.
LASTS_S = 2.0
_TIMEOUT_S = 1.0
_ALLOWED = "redis://:PASSWORD@HOST:PORT/NUMBER, rediss:// for TLS, or unix://PATH"


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
        try:
            from redis import asyncio as redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ModuleNotFoundError as error:
            raise SettingsError("redis_url needs the package redis: pip install 'inflight[redis]'") from error
        self._away = (RedisError, OSError, asyncio.TimeoutError)
        self._prefix = f"inflight:{deployment}:"
        try:
            made: Any = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # the caller decides when to retry
            )
            made.connection_pool.make_connection()  # which refuses unknown options
        except (ValueError, TypeError, RedisError) as error:
            # Without the text of the URL: a password may be in it.
            raise SettingsError(f"redis_url: expected {_ALLOWED}") from error
        self._redis = made

    async def swap(self, router: str, told: bytes) -> Mapping[str, bytes]:
        try:
            return await asyncio.wait_for(self._swap(router, told), 2 * _TIMEOUT_S)
        except self._away as error:
            raise BoardAway(str(error) or type(error).__name__) from error

    async def ping(self) -> None:
        """Raises BoardAway where Redis is unreachable."""
        try:
            await asyncio.wait_for(self._redis.ping(), 2 * _TIMEOUT_S)
        except self._away as error:
            raise BoardAway(str(error) or type(error).__name__) from error

    async def close(self, router: str) -> None:
        with suppress(*self._away):  # else it expires
            await asyncio.wait_for(self._redis.delete(self._prefix + router), _TIMEOUT_S)
        await self._redis.aclose()

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
