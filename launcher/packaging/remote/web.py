"""On web servers: a .gguf file, or a folder that lists its files in SHA256SUMS. Passwords: ~/.netrc."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from launcher.packaging.remote.hops import request_hook
from launcher.packaging.remote.ranged_download import WORKERS, RangedDownload
from launcher.packaging.remote.source import Listing, RemoteFile, SourceError, Unreachable, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from launcher.packaging.remote.address import Address

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_MOST_SUMS_BYTES = 10_000_000
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class WebPlace:
    def __init__(self, address: Address) -> None:
        self._address = address
        # Another host gets no password: httpx drops it there.
        self._client = httpx.Client(
            follow_redirects=True,
            timeout=_TIMEOUT,
            auth=_passwords(),
            event_hooks={"request": [request_hook] if address.scheme == "https" else []},
        )

    def look(self) -> Listing:
        address = self._address
        if address.is_one_file:
            return Listing((self._head(address.path.rsplit("/", 1)[-1], address.sha256),))
        text = b"".join(self._get(self._url(SUMS), {}, (200,))).decode("utf-8", "replace")
        named = [_LINE.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
        if not named or not all(named):
            raise SourceError(f"{address.without_pin}{SUMS} is not in the format that sha256sum writes")
        found = [(each[2].removeprefix("./"), each[1]) for each in named if each is not None]
        with ThreadPoolExecutor(WORKERS) as pool:
            return Listing(tuple(pool.map(lambda each: self._head(*each), found)))

    def download(self, listing: Listing, into: Path, advance: Callable[[int], None]) -> None:
        RangedDownload(self, advance).run(listing.files, into)

    def close(self) -> None:
        self._client.close()

    def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        if not file.is_divisible:
            yield from self._get(self._url(file.name), {}, (200,))
            return
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        if file.tag:
            headers["If-Range"] = file.tag  # one that has changed comes as a whole, which is refused
        yield from self._get(self._url(file.name), headers, (206,))

    def _head(self, name: str, sha256: str) -> RemoteFile:
        """By a request for one byte: not every server tells sizes otherwise."""
        with _as_ours(self._url(name)), self._open(self._url(name), {"Range": "bytes=0-0"}) as response:
            _require(response, (200, 206))
            tag = response.headers.get("ETag", "")
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            size = total if response.status_code == 206 else response.headers.get("Content-Length", "")
            if not size.isdigit():
                raise SourceError(f"{self._url(name)}: the server does not report its size")
            strong = "" if tag.startswith("W/") else tag
            return RemoteFile(name, int(size), strong, sha256, response.status_code == 206)

    def _get(self, url: str, headers: dict[str, str], allowed: tuple[int, ...]) -> Iterator[bytes]:
        with _as_ours(url), self._open(url, headers) as response:
            _require(response, allowed)
            # As it is: what is packed on the way would be of another length.
            yield from response.iter_raw()

    def _open(self, url: str, headers: dict[str, str]) -> AbstractContextManager[httpx.Response]:
        return self._client.stream("GET", url, headers={"Accept-Encoding": "identity", **headers})

    def _url(self, name: str) -> str:
        address = self._address
        path = address.path if address.is_one_file else address.path + name
        query = f"?{address.query}" if address.query else ""
        return f"{address.scheme}://{address.place}/{quote(path)}{query}"


def _require(response: httpx.Response, allowed: tuple[int, ...]) -> None:
    where, status = shown(str(response.url)), response.status_code
    if status in (401, 403):
        raise SourceError(f"no permission to read {where} ({status}): put the password into ~/.netrc")
    if status == 404:
        raise SourceError(f"{where} was not found")
    if status == 200 and 206 in allowed and 200 not in allowed:
        raise SourceError(f"{where} changed during the download: start again")
    if status not in allowed:
        raise Unreachable(f"{where}: the server answers {status}")


@contextmanager
def _as_ours(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"{shown(url)} cannot be read: {error or type(error).__name__}") from None


def _passwords() -> httpx.Auth | None:
    try:
        return httpx.NetRCAuth()
    except OSError:
        return None
