"""One client connection: reads requests off a socket one at a time and writes their answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote

import httptools

from router.http.exchange import Exchange, Request, render_head
from router.http.message_head import ONLY_ONCE, Refused, check_head
from router.http.upload import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from router.http.body_shares import BodyShares, BodyTerms
    from router.http.exchange import Refusal

# From this size on a body is asked about before it is read.
_LARGE_BYTES = 32 << 10
# Of a body; a large one that comes as fast as it is read has fewer.
_MOST_PIECES = 64
# Read at once: whatever is in so many bytes is parsed within some milliseconds. But the rest of a body whose
# length is known is one piece to the parser.
_SLICE_BYTES = 16 << 10
# Of the parser, for one connection before others have their turn: headers, pieces of bodies, requests.
_EVENTS_A_TURN = 500
# Of an answer: more is sent at once, and does not wait for the answers of others.
_MOST_UNSENT_BYTES = 16 << 10
_UPGRADE_HEADERS = ("connection", "upgrade", "http2-settings")
_FORM = "multipart/form-data"
# Who holds room for a body, and how many bytes.
_Held = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may cost."""

    max_body_bytes: int = 1 << 20
    max_header_bytes: int = 32 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    write_stall_timeout_s: float = 30.0
    linger_s: float = 2.0
    write_buffer_bytes: int = 64 << 10
    max_pipelined_requests: int = 8
    max_uploads: int = 64
    # Of large bodies that are arriving, or wait behind another request; one tenant has half at most.
    max_arriving_bytes: int = 256 << 20
    # A large body may take longer than others, as long as it comes at this pace from its beginning.
    least_upload_bytes_per_s: int = 16 << 10
    upload_grace_s: float = 5.0


class Host(Protocol):
    """The listener, as a connection sees it."""

    limits: Limits
    # Status, message, and path and headers, as far as they were read.
    refuse: Callable[[int, str, str, dict[str, str]], Refusal]
    # Method, path and headers -> the terms of a large body; raises Refused where its head is enough for that.
    body_terms: Callable[[str, str, dict[str, str]], BodyTerms]
    upload_slots: BodyShares
    memory: BodyShares  # for bodies that no handler has yet
    date: str  # the current time as a Date header
    handler: Callable[[Exchange], Coroutine[Any, Any, object]]
    tasks: set[asyncio.Task[object]]  # those that run it

    def opened(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection) -> None: ...
    def handled(self, exchange: Exchange, task: asyncio.Task[object]) -> None:
        """The handler is done, or failed."""

    def written(self, connection: Connection) -> None:
        """It has something to flush; the listener flushes all of them together, soon."""


class Connection(asyncio.Protocol):
    """Parses strictly (llhttp), bounds every buffer, and never reads ahead of a handful of requests.

    Reading goes on while an answer is being made: the end of input is how a client's leaving is noticed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limits = host.limits
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, _Held | None]] = deque()
        self._active: Exchange | None = None
        self._unsent = b""
        self._now: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._now.set_result(None)
        self._writable = self._now  # another one while the client is slow to read
        self._read_deadline_s: float | None = None
        self._write_deadline_s: float | None = None
        self._discarding = False
        self._message_bytes = 0
        self._unread = b""  # what was received and is not parsed yet, from `_read_to` on
        self._read_to = 0
        self._events = 0
        self._awaits_disk = False
        self._upload: Upload | None = None
        self._held: _Held | None = None
        self.on_message_begin()

    @property
    def is_idle(self) -> bool:
        return self._active is None and not self._waiting

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self._read_deadline_s = time.monotonic() + self._limits.header_timeout_s
        self._host.opened(self)

    def data_received(self, data: bytes, is_slice: bool = False) -> None:
        if not is_slice and (len(data) > _SLICE_BYTES or self._unread):
            self._transport.pause_reading()
            self._unread = self._unread[self._read_to :] + data
            self._read_to = 0
            self._read_on()
            return
        while data and not self._discarding:
            self._message_bytes += len(data)
            try:
                self._parser.feed_data(data)
                if self._message_bytes > self._limits.max_header_bytes:
                    self._check_size()
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            except (httptools.HttpParserError, Refused) as error:
                self._refuse_message(error)
                return

    def _read_on(self) -> None:
        """Parses what was received slice by slice, then lets more come, unless something is in the way."""
        self._events = 0
        while self._may_read:
            if self._read_to >= len(self._unread):
                self._unread = b""
                self._transport.resume_reading()
                return
            if self._events > _EVENTS_A_TURN:
                asyncio.get_running_loop().call_soon(self._read_on)
                return
            size = max(_SLICE_BYTES, self._length - self._body_bytes)
            piece = self._unread[self._read_to : self._read_to + size]
            self._read_to += size
            self.data_received(piece, is_slice=True)

    @property
    def _may_read(self) -> bool:
        """What is in the way calls `_read_on` when it no longer is."""
        if self._discarding:
            self._unread = b""
        is_full = len(self._waiting) >= self._limits.max_pipelined_requests
        return not (is_full or self._awaits_disk or self._transport.is_closing())

    def _refuse_message(self, error: Exception) -> None:
        refused = error if isinstance(error, Refused) else error.__context__  # raised inside the parser
        if isinstance(refused, Refused):
            self._refuse(refused.status, refused.message, refused.answer)
        else:
            self._refuse(400, f"not a valid HTTP/1.1 request: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.closed(self)
        self._unread = self._unsent = b""
        self._drop_body()
        while self._waiting:
            request, self._held = self._waiting.popleft()
            self._upload = request.upload
            self._drop_body()
        self.resume_writing()
        del self._parser  # each holds the other: nothing should have to wait for the collector
        if self._active is not None:
            self._active.client_left()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        limit_s = self._limits.write_stall_timeout_s
        if self._active is not None:
            limit_s = min(limit_s, self._active.patience_s)
        self._write_deadline_s = time.monotonic() + limit_s

    def resume_writing(self) -> None:
        self._write_deadline_s = None
        slow, self._writable = self._writable, self._now
        if not slow.done():
            slow.set_result(None)

    # The parser

    def on_message_begin(self) -> None:
        self._read_deadline_s = time.monotonic() + self._limits.header_timeout_s
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._headers_done = False
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._length = 0
        self._body_limit = self._limits.max_body_bytes
        self._upload = None
        self._held = None

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._events += 1
        if self._headers_done:
            return  # trailers carry nothing we need
        if b"_" in name:
            raise Refused(400, "header names with underscores are not accepted")
        # As it is read: a head that comes whole has ended before its size is looked at from outside.
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.max_header_bytes:
            raise Refused(431, self._head_too_large)
        key = name.decode("latin-1").lower()
        if key in self._headers and key in ONLY_ONCE:
            raise Refused(400, f"the header {key} is given twice")
        self._headers[key] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._headers_done = True
        self._read_deadline_s = time.monotonic() + self._limits.body_timeout_s
        parser, headers = self._parser, self._headers
        method, version = parser.get_method(), parser.get_http_version()
        # As nearly all are; the others are looked at closely.
        is_usual = version == "1.1" and self._target[:1] == b"/" and "transfer-encoding" not in headers
        if not (is_usual and headers.get("host") and method != b"CONNECT"):
            check_head(method, self._target, version, headers)
        self._length = length = int(headers.get("content-length", "0"))
        if length > _LARGE_BYTES or headers.get("content-type", "").lower().startswith(_FORM):
            self._expect_large(length)
        if length > self._body_limit:
            raise Refused(413, self._too_large)
        # Behind a pipelined request it would end up inside that one's answer; a client goes on without it.
        if self._headers.get("expect", "").lower() == "100-continue" and self.is_idle:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._events += 1
        if self._upload is not None:
            self._take(self._upload, body)
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            raise Refused(413, self._too_large)
        if self._body_bytes > _LARGE_BYTES and self._held is None:  # it came in chunks
            self._expect_large(self._body_limit)
        self._body.append(body)
        if len(self._body) > _MOST_PIECES:
            self._merge_body()

    def _merge_body(self) -> None:
        """Small pieces take more memory than what is in them."""
        whole = self._body[0] if isinstance(self._body[0], bytearray) else bytearray(self._body[0])
        for piece in self._body[1:]:
            whole += piece
        self._body = [whole]

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the parser stops here, before the body: see _without_upgrade
        self._events += 1
        self._message_bytes = 0
        self._read_deadline_s = None
        path, _, query = self._target.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=unquote(path) if "%" in path else path,
            headers=self._headers,
            body=b"".join(self._body),
            version=self._parser.get_http_version(),
            keep_alive=self._parser.should_keep_alive(),
            query=query,
            upload=self._upload,
        )
        held = self._held
        self._body, self._upload, self._held = [], None, None  # they are the request's now
        self._headers_done = False
        if self._active is None and not self._waiting and not self._transport.is_closing():
            self._handle(request, held)
            return
        self._waiting.append((request, held))
        if len(self._waiting) >= self._limits.max_pipelined_requests:
            self._transport.pause_reading()

    def _handle(self, request: Request, held: _Held | None) -> None:
        host = self._host
        if held is not None:
            host.memory.give_back(*held)
        self._active = exchange = Exchange(request, self)
        task = asyncio.get_running_loop().create_task(host.handler(exchange))
        host.tasks.add(task)
        task.add_done_callback(partial(host.handled, exchange))

    @property
    def _path(self) -> str:
        return unquote(self._target.decode("latin-1").partition("?")[0])

    # Large bodies

    def _expect_large(self, size_bytes: int) -> None:
        """Whose the body is, and whether there is room for it; raises Refused before it is read."""
        method = self._parser.get_method().decode("latin-1")
        try:
            terms = self._host.body_terms(method, self._path, self._headers)
        except Refused:
            if size_bytes > self._body_limit:
                raise Refused(413, self._too_large) from None
            raise
        if terms.max_upload_bytes is not None:
            self._expect_upload(terms.holder, terms.max_upload_bytes)
        elif _LARGE_BYTES < size_bytes <= self._body_limit:
            if not self._host.memory.take(terms.holder, size_bytes):
                raise Refused(503, "you have too many large requests in progress: try again later")
            self._held = (terms.holder, size_bytes)

    def _expect_upload(self, holder: str, max_bytes: int) -> None:
        slots = self._host.upload_slots
        if not slots.take(holder):
            raise Refused(503, "you have too many uploads in progress: try again later")
        self._body_limit = max_bytes
        self._upload = Upload(self._wait_for_disk, self._disk_is_free, lambda: slots.give_back(holder))
        self._read_deadline_s = time.monotonic() + self._limits.upload_grace_s

    def _take(self, upload: Upload, body: bytes) -> None:
        if upload.size_bytes + len(body) > self._body_limit:
            raise Refused(413, self._too_large)
        upload.add(body)
        if self._read_deadline_s is not None:
            # However fast it began, it must not stop for longer than any other body.
            self._read_deadline_s = min(
                self._read_deadline_s + len(body) / self._limits.least_upload_bytes_per_s,
                time.monotonic() + self._limits.body_timeout_s,
            )

    def _wait_for_disk(self) -> None:
        self._awaits_disk = True
        self._transport.pause_reading()

    def _disk_is_free(self) -> None:
        self._awaits_disk = False
        self._read_on()

    def _drop_body(self) -> None:
        """Of a request that will not be handled; otherwise the listener closes uploads after the answer."""
        if self._upload is not None:
            self._upload.close()
            self._upload = None
        if self._held is not None:
            self._host.memory.give_back(*self._held)
            self._held = None
        self._body = []

    @property
    def _too_large(self) -> str:
        return f"the request body is larger than {self._body_limit} bytes"

    @property
    def _head_too_large(self) -> str:
        return f"the headers are larger than {self._limits.max_header_bytes} bytes"

    def _check_size(self) -> None:
        if not self._headers_done and self._message_bytes > self._limits.max_header_bytes:
            raise Refused(431, self._head_too_large)
        # All bytes of one request, so that framing and trailers are bounded too.
        if self._message_bytes > self._limits.max_header_bytes + 2 * self._body_limit:
            raise Refused(413, self._too_large)

    def _without_upgrade(self) -> bytes:
        """The head of the request as one of plain HTTP/1.1, for a new parser.

        Some clients (Java's, by default) offer h2c with every request; the parser would drop the body.
        """
        self._drop_body()
        lines = [f"{self._parser.get_method().decode()} {self._target.decode()} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers.items() if name not in _UPGRADE_HEADERS]
        self._parser = httptools.HttpRequestParser(self)
        self._message_bytes = 0
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    # The answers

    def peer(self) -> str:
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if found else ""

    def date(self) -> str:
        return self._host.date

    def write(self, data: bytes) -> asyncio.Future[None]:
        """What many connections write in one turn of the event loop is sent after it, one after another."""
        if not self._unsent:
            self._host.written(self)
        self._unsent += data
        if len(self._unsent) > _MOST_UNSENT_BYTES:
            self.flush()
        return self._writable

    def flush(self) -> None:
        data, self._unsent = self._unsent, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        self.flush()
        self._transport.close()

    def finished(self, exchange: Exchange) -> None:
        self._active = None
        if not exchange.keep_alive:
            self._close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._handle_next)
        else:
            self._read_deadline_s = time.monotonic() + self._limits.idle_timeout_s

    def _handle_next(self) -> None:
        if self._active is None and self._waiting and not self._transport.is_closing():
            was_full = len(self._waiting) >= self._limits.max_pipelined_requests
            self._handle(*self._waiting.popleft())
            if was_full:
                self._read_on()

    def _refuse(self, status: int, message: str, answer: Refusal | None = None) -> None:
        """Answers a request that cannot be read to its end, then closes without cutting the answer off.

        Closing with unread input makes the kernel reset the connection and the client lose the answer, so
        the rest is read and dropped for a moment.
        """
        self._drop_body()
        if self._active is not None or self._waiting:
            self._close()
            return
        headers, body = answer or self._host.refuse(status, message, self._path, self._headers)
        framing = [("content-length", str(len(body))), ("connection", "close")]
        self.write(render_head(status, [("date", self.date()), *headers, *framing]) + body)
        self.flush()
        if self._transport.can_write_eof():  # TLS has no half of a connection
            self._transport.write_eof()
        self._discarding = True
        self._read_deadline_s = time.monotonic() + self._limits.linger_s

    # Time

    def check_deadlines(self, now_s: float) -> None:
        """Ends a connection that reads, sends or idles for too long; called about once a second."""
        if self._write_deadline_s is not None and now_s > self._write_deadline_s:
            self._transport.abort()
        elif self.is_idle and self._read_deadline_s is not None and now_s > self._read_deadline_s:
            if self._message_bytes and not self._discarding:
                self._refuse(408, "the request took too long to arrive")
            else:
                self._close()

    def close_when_idle(self) -> None:
        if self._active is not None:
            self._active.keep_alive = False
        else:
            self._close()

    def abort(self) -> None:
        self._transport.abort()
