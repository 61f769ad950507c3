"""A server with an OpenAI-compatible API whose answers take as long as they are told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT_MODEL, EMBEDDING_MODEL = "timed-text", "timed-vectors"


@dataclass
class TimedApi:
    """`bodies` are the requests as they came; `refuse` and `break_off` are asked before each answer."""

    first_token_s: float = 0.1
    between_tokens_s: float = 0.02
    refuse: Callable[[int], bool] = lambda number: False
    break_off: Callable[[int], bool] = lambda number: False
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: TimedApi

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": TEXT_MODEL}, {"id": EMBEDDING_MODEL}]})
        elif self.path == f"/v2/models/{TEXT_MODEL}":
            self._answer(200, {"inputs": [{"name": "text_input"}]})
        elif self.path == f"/v2/models/{EMBEDDING_MODEL}":
            self._answer(200, {"inputs": [{"name": "TEXT"}]})
        elif self.path == "/metrics":
            self._send(
                200,
                b'inflight_build_info{version="1.2.3"} 1\ninflight_waiting_requests{model="timed-text"} 3\n',
            )
        else:
            self._answer(404, {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = len(self.api.bodies)
        self.api.bodies.append(body)
        self.api.keys.append(self.headers.get("authorization", ""))
        if self.api.refuse(number):
            self._answer(
                429, {"error": {"message": "too many"}}, {"Retry-After": "1", "Retry-After-Ms": "150"}
            )
        elif self.path == "/v1/embeddings":
            self._answer(200, {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 7}})
        else:
            self._stream(body, self.api.break_off(number))

    def _stream(self, body: dict[str, Any], breaks_off: bool) -> None:
        self.send_response(200)
        for name, value in (("Transfer-Encoding", "chunked"), ("X-Request-Id", "timed-1")):
            self.send_header(name, value)
        self.send_header("X-Inflight-Release", "1")
        self.end_headers()
        tokens = body["max_tokens"]
        due_s = time.perf_counter() + self.api.first_token_s
        for number in range(tokens):
            time.sleep(max(0.0, due_s - time.perf_counter()))
            due_s += self.api.between_tokens_s
            if breaks_off and number == 2:
                self.close_connection = True
                return
            delta = {"delta": {"content": f" w{number}"}} if "messages" in body else {"text": f" w{number}"}
            self._chunk({"choices": [delta]})
        self._chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(event)}\n\n".encode())

    def _write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are part of a test."""


@contextmanager
def timed_api(api: TimedApi) -> Iterator[TimedApi]:
    handler = type("Handler", (_Handler,), {"api": api})
    server = _Server(("127.0.0.1", 0), handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
