"""What a web page in somebody's browser may ask: which Host and Origin are served, and what CORS allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from router.core.address import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.http.exchange import Headers

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+?)\.?)(?::[0-9]{1,5})?")
_LOOPBACK = "localhost"
_CHANGES_NOTHING = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = ("none", "same-origin")
_READABLE = (
    "x-request-id, request-id, x-inflight-release, retry-after, retry-after-ms, "
    "inference-header-content-length"
)
_PREFLIGHT_S = "600"


@dataclass(frozen=True, slots=True)
class WebPages:
    """Any page may make a browser send requests to this machine, and a name of its own may lead here.

    So a router that asks for no key serves only names that nobody else can give it: loopback's and `hosts`.
    Pages of other origins change nothing anywhere, and without keys they get nothing at all, but for those of
    `origins`. What is no browser sends none of these headers.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def refusal(self, method: str, headers: Mapping[str, str], asks_for_keys: bool) -> tuple[int, str] | None:
        """Status and sentence for what is refused, None for what may go on."""
        host = headers.get("host", "")
        if not asks_for_keys:
            name = host_name(host) if host else _LOOPBACK  # HTTP/1.0 has none, and no browser speaks that
            if name != _LOOPBACK and name not in self.hosts:
                return 421, (
                    "without API keys the Host header has to be a loopback name (localhost, 127.0.0.1, "
                    "[::1]) or a name listed in the setting allowed_hosts"
                )
        elif method in _CHANGES_NOTHING:
            return None
        origin = headers.get("origin")
        if origin is None:
            is_own = headers.get("sec-fetch-site", "none") in _OWN_SITES
        else:
            _, found, place = origin.partition("://")
            is_own = origin in self.origins or (bool(found) and place == host.lower())
        if is_own:
            return None
        return (
            403,
            "web pages of other origins are refused; the setting cors_origins lists the allowed ones",
        )

    def answer_headers(self, origin: str | None) -> Headers:
        """What lets a page of an allowed origin read the answer; nothing for all others."""
        if origin not in self.origins:
            return ()
        return (
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", _READABLE),
            ("vary", "origin"),
        )

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """A browser asks whether it may send what a page of an allowed origin wants to."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and headers.get("origin") in self.origins
        )

    @staticmethod
    def preflight_headers(methods: str, headers: Mapping[str, str]) -> Headers:
        """Any header may be sent: which ones are known is up to the endpoint."""
        wanted = headers.get("access-control-request-headers", "")
        return (
            ("access-control-allow-methods", methods),
            *((("access-control-allow-headers", wanted),) if wanted else ()),
            ("access-control-max-age", _PREFLIGHT_S),
        )


@lru_cache(maxsize=256)
def host_name(host: str) -> str:
    """Of a Host header, in lower case and without its port; every name of loopback is `localhost`."""
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2]).lower()
    return _LOOPBACK if name.endswith(f".{_LOOPBACK}") or is_loopback(name) else name
