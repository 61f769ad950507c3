"""An answer that is kept instead of sent: whoever reads it, now or later, reads it from the log."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.http import sse
from router.http.exchange import Exchange
from router.http.inner_exchange import InnerWire, Turn
from router.request.error_shapes import shape_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from router.core.record import Record
    from router.http.exchange import Headers
    from router.resume.event_log import EventSink
    from router.resume.retelling import Retelling

log = logging.getLogger(__name__)

_SSE = "text/event-stream"


class Head(msgspec.Struct, frozen=True, array_like=True):
    """How an answer begins; the first thing that is kept of it."""

    status: int
    headers: list[tuple[str, str]]
    is_whole: bool

    @property
    def is_sse(self) -> bool:
        return any(name == "content-type" and value.startswith(_SSE) for name, value in self.headers)

    @property
    def release(self) -> str:
        return dict(self.headers).get("x-inflight-release", "")


encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode


class _Wire(InnerWire):
    def __init__(self, peer: str) -> None:
        super().__init__()
        self._peer = peer

    def peer(self) -> str:
        return self._peer


class KeptExchange(Exchange):
    """Events get numbers from 1, the head is 0. What was `told` before is compared, and not kept again.

    `failure` is what the client is told of an error in the middle of the answer: it is no part of that.
    `client_left` ends it where nobody reads it any more.
    """

    __slots__ = ("_number", "_record", "_retelling", "_sink", "_streams_sse", "_told", "failure")

    def __init__(
        self,
        behind: Exchange,
        record: Record,
        sink: EventSink,
        told: Sequence[bytes],
        retelling: Retelling | None,
    ) -> None:
        super().__init__(behind.request, _Wire(behind.peer))
        self._record = record
        self._sink = sink
        self._told = deque(told)
        self._retelling = retelling
        self._number = 0
        self._streams_sse = False
        self.failure: bytes | None = None

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        head = Head(status, list(headers), False)
        self.started, self.status, self._streams_sse = True, status, head.is_sse
        self._keep([encode_head(head)], is_head=True)

    def send(self, data: bytes) -> Awaitable[None]:
        self._keep(self._numbered(data))
        return Turn()

    def fill_silence(self, data: bytes) -> None:
        """Its readers are kept alive each by itself."""

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.started, self.status = True, status
        if status >= 400 and self._told:  # nobody gets a second head
            request = self.request
            self.failure = shape_for(request.path, request.headers).event(body)
        else:
            self._keep([encode_head(Head(status, list(headers), True)), body], is_head=True)
        self._over()

    def end(self, data: bytes = b"") -> None:
        if self._record.error:
            self.failure = data
        else:
            self._keep(self._numbered(data))
        self._over()

    def cut(self) -> None:
        self.failure = b""
        self._over()

    def keep_failure(self) -> None:
        """It is the caller's own, and would come again."""
        if self.failure:
            self._keep(self._numbered(self.failure))

    def _over(self) -> None:
        self.ended = True
        self._callbacks.clear()

    def _numbered(self, data: bytes) -> list[bytes]:
        if not self._streams_sse:
            return [data] if data else []
        events = []
        for event in sse.split(data):
            self._number += 1
            events.append(b"id: %d\n%b" % (self._number, event))
        return events

    def _keep(self, events: Sequence[bytes], is_head: bool = False) -> None:
        news = events
        if self._told:
            news = self._not_told(events, is_head)
        if self._retelling is None:
            self._sink.add(news)
            return
        self._retelling.has_begun = self._retelling.has_begun or self.status < 400
        if news:
            self._sink.add(news, self._retelling.take_news())

    def _not_told(self, events: Sequence[bytes], is_head: bool) -> list[bytes]:
        news = []
        for event in events:
            if not self._told:
                news.append(event)
            elif self._told.popleft() != event and self._streams_sse and not is_head:
                log.error("%s: event %d differs from the stored one", self._record.request_id, self._number)
                self._told.clear()
                raise InflightError(ErrorKind.ENGINE_FAILED, "the answer could not be continued")
        return news
