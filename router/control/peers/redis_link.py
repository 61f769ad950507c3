"""The way to Redis: one client a router, with limits on how long anything takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

from router.settings import SettingsError

TIMEOUT_S = 1.0
# A router that got no processor for a while has used up one of so many parts of the limit at most.
_PARTS = 10
# So long after an outage other routers may not have told yet that they are alive.
_GRACE_S = 3.0
_ALLOWED = "redis://:PASSWORD@HOST:PORT/NUMBER, rediss:// for TLS, or unix://PATH"


class RedisAway(Exception):
    """Redis is unreachable: the message says why."""


class RedisLink:
    """`prefix` of all keys separates deployments that use the same Redis."""

    def __init__(self, url: str, deployment: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed_s = -inf
        try:
            from redis import asyncio as redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError, ResponseError
        except ModuleNotFoundError as error:
            raise SettingsError("redis_url needs the package redis: pip install 'inflight[redis]'") from error
        self.away = (RedisError, OSError, asyncio.TimeoutError)
        self.refusal: type[Exception] = ResponseError  # by the server, of one command
        self.prefix = f"inflight:{deployment}:"
        try:
            made: Any = redis.Redis.from_url(
                url,
                # Theirs would go off after a stall of this process, before it has looked whether the answer
                # is there: `ask` has a limit that does not.
                socket_timeout=None,
                socket_connect_timeout=None,
                retry=Retry(NoBackoff(), 0),  # the caller decides when to retry
            )
            made.connection_pool.make_connection()  # which refuses unknown options
        except (ValueError, TypeError, RedisError) as error:
            # Without the text of the URL: a password may be in it.
            raise SettingsError(f"redis_url: expected {_ALLOWED}") from error
        self.redis = made

    @property
    def has_just_failed(self) -> bool:
        """Whether what is not in Redis may be missing there because it could not be written."""
        return self._clock() - self._failed_s < _GRACE_S

    async def ask(self, asked: Awaitable[Any]) -> Any:
        """Raises RedisAway where there is no answer in time.

        Whoever is cancelled as the answer comes has to hear of that: loops ask, too. `asyncio.wait_for` gives
        them the answer instead, before Python 3.12.
        """
        asking = asyncio.ensure_future(asked)
        asking.add_done_callback(_looked_at)
        try:
            for _ in range(_PARTS):
                await asyncio.wait([asking], timeout=TIMEOUT_S / _PARTS)
                if asking.done():
                    return asking.result()
            self._failed_s = self._clock()
            raise RedisAway("no answer in time")
        except self.refusal:
            raise
        except self.away as error:
            self._failed_s = self._clock()
            raise RedisAway(str(error) or type(error).__name__) from error
        finally:
            asking.cancel()

    async def close(self) -> None:
        await self.redis.aclose()


def _looked_at(asking: asyncio.Future[Any]) -> None:
    """Or asyncio complains of an error that nobody waits for any more."""
    if not asking.cancelled():
        asking.exception()
