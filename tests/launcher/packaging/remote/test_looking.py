"""Places that answer without an end, too slowly, or with too much: nobody else's memory or time is theirs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from launcher.packaging.remote.address import parse_address
from launcher.packaging.remote.looking import MOST_FILES, look_at
from launcher.packaging.remote.registry import bounded_answers
from launcher.packaging.remote.source import SourceError, Unreachable

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def lying(answer: Answer) -> Iterator[str]:
    """Its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                answer(self)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b" " * (1 << 20))


def test_a_list_without_an_end_takes_no_more_memory_than_it_may() -> None:
    with lying(endless) as host, pytest.raises(SourceError, match="takes more than 300 MiB of memory"):
        look_at(parse_address(f"oci://{host}/team/llama:v1"), memory_bytes=300 << 20)


def test_a_list_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not ended.wait(0.1):
            request.wfile.write(b" ")

    with lying(drip) as host:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
        with pytest.raises(Unreachable, match="has not listed its files within 3 s"):
            look_at(parse_address("hf://team/llama"), limit_s=3)
        ended.set()


def test_more_files_than_a_model_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(request: BaseHTTPRequestHandler) -> None:
        files = [{"rfilename": f"{number}.safetensors", "size": 1} for number in range(MOST_FILES + 1)]
        body = json.dumps({"id": "team/llama", "sha": "a" * 40, "siblings": files}).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with lying(many) as host:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
        with pytest.raises(SourceError, match="it lists 10,001 files; allowed: at most 10,000"):
            look_at(parse_address("hf://team/llama"))


def test_a_token_without_an_end_is_not_read() -> None:
    with lying(endless) as host, requests.Session() as session:
        session.mount("http://", bounded_answers())
        with pytest.raises(requests.RequestException, match="more than 1048576 bytes"):
            session.get(f"http://{host}/token")
        with session.get(f"http://{host}/blob", stream=True) as pieces:
            assert len(next(pieces.iter_content(1 << 20))) == 1 << 20
