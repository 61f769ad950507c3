"""The console at /ui: static files, which tell nothing; what they show comes from the public API."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from router.core.actions import Action
from router.request.errors import HttpError
from router.request.routes import Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.core.record import Record
    from router.http.exchange import Exchange

STATIC = Path(__file__).parent / "static"
PATH = "/ui"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PAGE = "index.html"
_CLASSIC = "theme.js"  # runs before the first paint, and so is no module
_FILES_MARK, _MODULES_MARK = "{{files}}", "{{modules}}"
# Nothing from elsewhere, no code but these files', and no text that could become markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_FOR_GOOD = ("cache-control", "public, max-age=31536000, immutable")
_ASK_AGAIN = ("cache-control", "no-cache")


@dataclass(frozen=True, slots=True)
class StaticFile:
    kind: str
    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, name: str, content: bytes) -> StaticFile:
        return cls(_KINDS[Path(name).suffix], content, gzip.compress(content, 9, mtime=0))


@cache
def static_files() -> tuple[str, Mapping[str, StaticFile]]:
    """The digest of all of them, which is part of their paths, and each by its name."""
    found = {
        path.relative_to(STATIC).as_posix(): path.read_bytes()
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in _KINDS
    }
    digest = sha256()
    for name, content in found.items():
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
    files = digest.hexdigest()[:16]
    found[_PAGE] = _page(found[_PAGE].decode(), files, found).encode()
    return files, {name: StaticFile.of(name, content) for name, content in found.items()}


def _page(text: str, files: str, names: Iterable[str]) -> str:
    """All modules are asked for at once: else each would wait for the one that imports it."""
    modules = [name for name in names if name.endswith(".js") and name != _CLASSIC]
    preloads = "\n".join(f'<link rel="modulepreload" href="{_FILES_MARK}/{name}">' for name in modules)
    return text.replace(_MODULES_MARK, preloads).replace(_FILES_MARK, f"{PATH}/{files}")


async def show_page(exchange: Exchange, record: Record) -> None:
    _, files = await asyncio.to_thread(static_files)
    _respond(exchange, record, files[_PAGE], _ASK_AGAIN)


async def show_file(exchange: Exchange, record: Record) -> None:
    """A path holds the digest of all files, so what is at one never changes."""
    digest, files = await asyncio.to_thread(static_files)
    asked, _, name = record.values["file"].partition("/")
    if asked != digest or name not in files:
        raise HttpError(404, f"file not found; the console is at {PATH}")
    _respond(exchange, record, files[name], _FOR_GOOD)


def _respond(exchange: Exchange, record: Record, file: StaticFile, caching: tuple[str, str]) -> None:
    headers = [("content-type", file.kind), caching, ("vary", "accept-encoding"), *_GUARDS]
    headers.append(("x-request-id", record.request_id))
    takes_packed = "gzip" in exchange.request.headers.get("accept-encoding", "")
    if takes_packed:
        headers.append(("content-encoding", "gzip"))
    exchange.respond(200, file.packed if takes_packed else file.plain, headers)


def routes() -> list[Route]:
    return [
        Route("GET", PATH, show_page, "The console", answer="text/html", action=Action.ABOUT_READ),
        Route("GET", f"{PATH}/{{file}}", show_file, "The console's files",
              answer="text/javascript or text/css or text/plain or image/svg+xml or text/html",
              action=Action.ABOUT_READ,
              takes_rest=True),
    ]  # fmt: skip
