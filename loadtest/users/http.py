"""One connection to the router, read as bytes arrive.

The standard library's client, because it hands out what one read of the socket brought and nothing waits
in a buffer to be filled: the moment of a token is the moment its bytes came. Under gevent its sockets give
way to other users while they wait.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from loadtest.results import RequestResult
from loadtest.tenants import Tenant
from loadtest.users.answers import StreamedAnswer, embedding_tokens, error_sentence, note_moments

SERVICE_TIERS = {"interactive": "priority", "standard": "default", "batch": "flex"}
_READ_BYTES = 65536
_TIMEOUT_S = 300.0  # without a single byte
Told = Callable[[RequestResult], None]
_BROKEN = (OSError, http.client.HTTPException, ValueError, KeyError)


class HttpAsker:
    """One user's connection; it asks one thing at a time.

    `told` hears of each result, of those too that the user does not wait for to their end. Moments count
    from `began_s` on the clock.
    """

    def __init__(
        self,
        url: str,
        tenant: Tenant,
        began_s: float,
        told: Told,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._address = urlsplit(url if "//" in url else f"http://{url}")
        if self._address.scheme not in ("http", "https") or not self._address.hostname:
            raise ValueError(f"{url!r} is not an address; for instance http://127.0.0.1:8080")
        self._tenant = tenant
        self._began_s = began_s
        self._told = told
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None

    def stream(
        self, kind: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[RequestResult, str]:
        """A generation as server-sent events: what it took, and the text."""
        answer = StreamedAnswer()
        asked = {
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
            "service_tier": SERVICE_TIERS[self._tenant.tier],
        }

        def read(response: http.client.HTTPResponse) -> None:
            while data := response.read1(_READ_BYTES):
                answer.feed(data, self._clock())
            if answer.error:
                raise ValueError(answer.error)
            if not answer.is_whole:
                raise http.client.HTTPException("the stream ended early")

        result = self._result(kind, body)
        result.asked_tokens = body["max_tokens"] if body.get("ignore_eos") else 0
        try:
            self._ask(result, path, asked, read, headers or {})
        finally:
            sent_s = self._began_s + result.at_s
            result.prompt_tokens = answer.prompt_tokens
            result.completion_tokens = answer.completion_tokens
            note_moments(result, [moment_s - sent_s for moment_s in answer.moments_s])
            self._told(result)
        return result, answer.text

    def embed(self, path: str, body: Mapping[str, Any]) -> RequestResult:
        """Vectors have no tiers: every such request is of the standard one."""
        result = self._result("embeddings", body)
        result.tier = "standard"

        def read(response: http.client.HTTPResponse) -> None:
            result.prompt_tokens = embedding_tokens(response.read())

        try:
            self._ask(result, path, body, read, {})
        finally:
            self._told(result)
        return result

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _result(self, kind: str, body: Mapping[str, Any]) -> RequestResult:
        return RequestResult(
            kind, 0.0, tenant=self._tenant.name, tier=self._tenant.tier, model=str(body.get("model", ""))
        )

    def _ask(
        self,
        result: RequestResult,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[http.client.HTTPResponse], None],
        headers: Mapping[str, str],
    ) -> None:
        """`read` takes the body of a 200; whatever else happens is in the result."""
        payload = json.dumps(body).encode()
        result.at_s = round(self._clock() - self._began_s, 6)
        try:
            response = self._send(path, payload, headers)
            _note_head(result, response)
            if response.status == 200:
                read(response)
            else:
                result.error = error_sentence(response.status, response.read())
        except _BROKEN as error:
            self.close()
            result.error = f"{type(error).__name__}: {error}"
        except BaseException:  # the user is stopped in the middle: the rest of this answer is nobody's
            self.close()
            raise
        result.ended_s = self._clock() - self._began_s - result.at_s

    def _send(self, path: str, payload: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """A connection that was kept may have been closed meanwhile; that is no failure of the server's."""
        was_kept = self._connection is not None
        try:
            return self._send_once(path, payload, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            if not was_kept:
                raise
            self.close()
            return self._send_once(path, payload, headers)

    def _send_once(self, path: str, payload: bytes, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        key = {"authorization": f"Bearer {self._tenant.key}"} if self._tenant.key else {}
        every = {"content-type": "application/json", **key, **headers}
        self._connection.request("POST", self._address.path.rstrip("/") + path, payload, every)
        return self._connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)


def _note_head(result: RequestResult, response: http.client.HTTPResponse) -> None:
    result.status = response.status
    result.request_id = response.getheader("x-request-id") or ""
    result.release = response.getheader("x-inflight-release") or ""
    wait_ms, wait_s = response.getheader("retry-after-ms"), response.getheader("retry-after")
    if wait_ms:
        result.retry_after_s = float(wait_ms) / 1000
    elif wait_s:
        result.retry_after_s = float(wait_s)
