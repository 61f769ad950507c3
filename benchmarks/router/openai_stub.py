"""An OpenAI-compatible upstream for the peers, which sends the same tokens as the Triton stub.

Usage: python -m benchmarks.router.openai_stub PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import httptools
import msgspec
import uvloop

from benchmarks.router.pacing import Pacer
from benchmarks.router.words import PROMPT_TOKENS, word

_MODEL = "bench"
_SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_DONE = b"data: [DONE]\n\n"
_END = b"0\r\n\r\n"
# What the routers ask before they send anything here.
_ABOUT = {
    b"/health": {},
    b"/v1/models": {
        "object": "list",
        "data": [{"id": _MODEL, "object": "model", "created": 1, "owned_by": "x"}],
    },
    b"/get_server_info": {"model_path": _MODEL, "served_model_name": _MODEL},
    b"/get_model_info": {"model_path": _MODEL},
}


class _Body(msgspec.Struct):
    max_tokens: int
    stream: bool = False


_read_body = msgspec.json.Decoder(_Body).decode


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choice: dict[str, Any]) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": _MODEL,
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


_FIRST = _event({"delta": {"role": "assistant", "content": ""}})
_LAST = _event({"delta": {}, "finish_reason": "length"})
_known: dict[int, bytes] = {}


def _token(number: int) -> bytes:
    if number not in _known:
        _known[number] = _event({"delta": {"content": word(number)}})
    return _known[number]


def _whole(tokens: int) -> bytes:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": _MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(word(n + 1) for n in range(tokens))},
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": tokens,
            "total_tokens": PROMPT_TOKENS + tokens,
        },
    }
    return msgspec.json.encode(body)


class EventAnswer:
    def __init__(self, connection: OpenAIStub, total: int) -> None:
        self._connection = connection
        self.total = total
        self._sent = 0

    def play(self, tokens: int) -> bool:
        if self._connection.transport.is_closing():
            return False
        out = []
        if self._sent == 0:
            out += [_SSE_HEAD, _framed(_FIRST)]
        for _ in range(min(tokens, self.total - self._sent)):
            self._sent += 1
            out.append(_framed(_token(self._sent)))
        more = self._sent < self.total
        if not more:
            out += [_framed(_LAST), _framed(_DONE), _END]
        self._connection.transport.write(b"".join(out))
        return more


class OpenAIStub(asyncio.Protocol):
    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path.endswith(b"/chat/completions"):
            body = _read_body(b"".join(self._body))
            if body.stream:
                self._pacer.add(EventAnswer(self, body.max_tokens))
            else:
                self._respond(_whole(body.max_tokens))
        else:
            self._respond(msgspec.json.encode(_ABOUT.get(path, {})))

    def _respond(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


async def serve(port: int) -> None:
    pacer = Pacer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: OpenAIStub(pacer), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
