"""A web server of one folder, with ranges and ETags, and the Hub's routes over the same files."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_OF_HUB = re.compile(r"/api/models/(?P<repository>[\w.-]+/[\w.-]+)(?:/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/[\w.-]+/[\w.-]+/tree/(?P<revision>[^/]+)")
_RESOLVED = re.compile(r"/(?P<repository>[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class FileServer:
    """`breaks_after` is how much of a body it sends before it hangs up; `asked` are paths and ranges."""

    root: Path
    url: str = ""
    token: str = ""
    knows_ranges: bool = True
    breaks_after: int | None = None
    breaks_left: int = 0
    lies_about: dict[str, str] = field(default_factory=dict)  # file -> a sha256 that it has not
    asked: list[tuple[str, str]] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # path -> where it says that this is
    authorised: list[str] = field(default_factory=list)

    def body_sent(self, length: int) -> int:
        if self.breaks_after is None or self.breaks_left <= 0 or length <= self.breaks_after:
            return length
        self.breaks_left -= 1
        return self.breaks_after


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: FileServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.files.asked.append((path, self.headers.get("Range", "")))
        self.files.authorised += self.headers.get_all("Authorization", [])
        if path in self.files.moved:
            told = {"Location": self.files.moved[path], "X-Repo-Commit": COMMIT, "ETag": '"moved"'}
            self._json(302, {}, told)
        elif self.files.token and self.headers.get("Authorization") != f"Bearer {self.files.token}":
            self._json(401, {"error": "Unauthorized"})
        elif found := _OF_HUB.fullmatch(path):
            self._repository(found["repository"], found["revision"])
        elif _TREE.fullmatch(path):
            self._json(200, [_of_tree(self._sibling(each)) for each in self._paths()])
        elif found := _RESOLVED.fullmatch(path):
            self._file(self.files.root / found["file"], with_body, of_hub=True)
        else:
            self._file(self.files.root / path.lstrip("/"), with_body)

    def _repository(self, repository: str, revision: str | None) -> None:
        if revision not in (None, "main", COMMIT):
            self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [self._sibling(each) for each in self._paths()]
        self._json(200, {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings})

    def _paths(self) -> list[Path]:
        return sorted(each for each in self.files.root.rglob("*") if each.is_file())

    def _sibling(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.files.root).as_posix()
        facts: dict[str, Any] = {"rfilename": name, "size": path.stat().st_size, "blobId": _etag(path)[:40]}
        if path.suffix in (".safetensors", ".gguf"):
            sha256 = self.files.lies_about.get(name) or _etag(path)
            facts["lfs"] = {"sha256": sha256, "size": path.stat().st_size, "pointerSize": 134}
        return facts

    def _file(self, path: Path, with_body: bool, of_hub: bool = False) -> None:
        if not path.is_file():
            self._json(404, {"error": "not found"}, {"X-Error-Code": "EntryNotFound"} if of_hub else {})
            return
        content, etag = path.read_bytes(), f'"{_etag(path)}"'
        begin, end = 0, len(content)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        fits = self.headers.get("If-Range", etag) == etag and self.files.knows_ranges
        if wanted and fits:
            begin, end = int(wanted[1]), min(int(wanted[2] or end) + 1, end) if wanted[2] else end
        self.send_response(206 if wanted and fits else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", etag)
        if wanted and fits:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        if of_hub:
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            sent = self.files.body_sent(end - begin)
            self.wfile.write(content[begin : begin + sent])
            self.close_connection |= sent < end - begin

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not into the output of tests."""


def _of_tree(sibling: dict[str, Any]) -> dict[str, Any]:
    found = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"], "oid": sibling["blobId"]}
    if "lfs" in sibling:
        found["lfs"] = {**sibling["lfs"], "oid": sibling["lfs"]["sha256"]}
    return found


def _etag(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def file_server(root: Path, tls: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    files = FileServer(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"files": files}))
    files.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
