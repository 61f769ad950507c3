"""Reads metrics pages: the router's, and those of Tritons on this machine or wherever they are said to be."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import psutil

from launcher.commands.top.scrape import read_scrape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.commands.top.scrape import Scrape

TIMEOUT_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
NEEDS_KEY = (
    "its metrics need a key with the scope metrics:read: give one with --key or INFLIGHT_API_KEY; `inflight "
    "keys create NAME --scope metrics:read` makes one"
)


class PageUnreadable(Exception):
    """The page cannot be read: the message says why and what to do."""


def is_local(url: str) -> bool:
    return httpx.URL(url).host in _LOOPBACK


def http_client(url: str, key: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # A proxy meant for the world outside is of no use on the way to this machine.
    return httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=not is_local(url))


class RouterPage:
    """One router, asked again and again."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url
        try:
            self._http = http_client(url, key)
        except (httpx.InvalidURL, ValueError) as error:
            raise PageUnreadable(f"--url {url}: {error}") from error

    def metrics(self) -> Scrape:
        answer = self._get("/metrics")
        if answer.status_code in (401, 403):
            raise PageUnreadable(f"{self._url}: {NEEDS_KEY}")
        if answer.status_code != 200:
            raise PageUnreadable(
                f"{self._url}/metrics answers with status {answer.status_code}: is it the router?"
            )
        return _read(answer.text, f"{self._url}/metrics")

    def is_ready(self) -> bool:
        return self._get("/health/ready").status_code == 200

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise PageUnreadable(
                f"nothing answers at {self._url}: {why}; start it with `inflight up`, or name it with --url"
            ) from error


def triton_metrics(url: str) -> Scrape:
    try:
        with http_client(url) as http:
            answer = http.get(url)
            answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise PageUnreadable(f"--triton-metrics {url}: {str(error) or type(error).__name__}") from error
    return _read(answer.text, url)


def local_tritons() -> list[str]:
    """Where the Tritons on this machine show their metrics, by their command lines."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == "tritonserver" and (url := metrics_url(process.cmdline())):
                found.append(url)
    return sorted(found)


def metrics_url(command: Sequence[str]) -> str | None:
    options = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
    port = options.get("metrics-port")
    host = options.get("metrics-address", "")
    return None if port is None else f"http://{_ANYWHERE.get(host, host)}:{port}/metrics"


def _read(text: str, where: str) -> Scrape:
    try:
        return read_scrape(text, time.time())
    except ValueError as error:
        raise PageUnreadable(f"{where} is not a page of metrics: {error}") from error
