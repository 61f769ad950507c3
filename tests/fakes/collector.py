"""Stands in for a collector of traces: takes OTLP over HTTP, as a real one does, and remembers the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

SERVER, CLIENT, INTERNAL = 2, 3, 1
ERROR = 2


@dataclass(frozen=True)
class Seen:
    """One span, as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    status: int
    message: str
    state: str
    resource: dict[str, Any]

    @property
    def took_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class Collector:
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers_with: int = 200
    url: str = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.paths.append(path)
        self.headers.append(headers)
        if self.answers_with == 200:
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _plain(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self.spans += [_seen(span, resource) for span in of_scope.spans]


def children(spans: list[Seen], parent: Seen) -> list[Seen]:
    return [span for span in spans if span.parent_id == parent.span_id]


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _plain(span.attributes),
        [(event.name, event.time_unix_nano, _plain(event.attributes)) for event in span.events],
        span.status.code,
        span.status.message,
        span.trace_state,
        resource,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.answers_with)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
