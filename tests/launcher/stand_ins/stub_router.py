"""Run as a script in the router's place: is ready at once, and takes DRAIN_S seconds to finish on SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import FrameType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


def connected(url: str) -> socket.socket:
    if not url.startswith("unix:"):
        host, port = url.split(":")
        return socket.create_connection((host, int(port)), timeout=5)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(url.removeprefix("unix:"))
    return connection


def main() -> None:
    settings = tomllib.loads(Path("router.toml").read_text())
    urls = [server["url"] for server in settings["triton_servers"]]
    server = HTTPServer((settings["host"], settings["port"]), Handler)

    def drain(number: int, frame: FrameType | None) -> None:
        time.sleep(float(os.environ.get("DRAIN_S", "0")))
        for url in urls:
            with connected(url):
                print("drained while Triton was there", flush=True)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, drain)
    server.serve_forever()


if __name__ == "__main__":
    main()
