"""A small client for the router's OpenAI-compatible API."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8080"
# An answer may take as long as it takes; connecting and sending may not.
_TIMEOUT = httpx.Timeout(10.0, read=None)

Messages = str | Sequence[Mapping[str, Any]]


class RequestFailed(Exception):
    """A request that got no answer: `status` is 0 when the server was not reached or broke off."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class NotListening(RequestFailed):
    """Nothing answers at the address."""


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    id: str
    model: str
    text: str
    finish_reason: str
    usage: Usage


class TextStream:
    """Yields text as it comes; `finish_reason` and `usage` are set at the end.

    Closing it early, or leaving its `with` block, makes the server stop.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._texts = self._read()
        self.finish_reason: str | None = None
        self.usage: Usage | None = None

    def __iter__(self) -> Iterator[str]:
        return self._texts

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()

    def _read(self) -> Iterator[str]:
        with _explained(str(self._response.request.url)):
            for data in _events(self._response):
                if data == "[DONE]":
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _failure(0, chunk)
                if chunk.get("usage"):
                    self.usage = _usage(chunk["usage"])
                for choice in chunk["choices"]:
                    self.finish_reason = choice["finish_reason"] or self.finish_reason
                    text = choice["delta"].get("content") if "delta" in choice else choice["text"]
                    if text:
                        yield text
            raise RequestFailed(0, None, "the server ended the stream in the middle of an answer")


class InflightClient:
    """One connection pool to one router. Options are those of the OpenAI API, by their own names."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, model: str | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy meant for the world outside is of no use on the way to this machine.
        trust_env = not _is_loopback(httpx.URL(base_url).host)
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT, trust_env=trust_env)
        self._model = model

    def chat(self, messages: Messages, **options: Any) -> Answer:
        body = self._chat_body(messages, options)
        return _answer(self._post("/v1/chat/completions", body).json())

    def stream_chat(self, messages: Messages, **options: Any) -> TextStream:
        return self._stream("/v1/chat/completions", self._chat_body(messages, options))

    def complete(self, prompt: str, **options: Any) -> Answer:
        body = {"model": self.model(options), "prompt": prompt, **options}
        return _answer(self._post("/v1/completions", body).json())

    def stream_complete(self, prompt: str, **options: Any) -> TextStream:
        return self._stream("/v1/completions", {"model": self.model(options), "prompt": prompt, **options})

    def models(self) -> list[str]:
        request = self._http.build_request("GET", "/v1/models")
        return [model["id"] for model in self._send(request, stream=False).json()["data"]]

    def model(self, options: Mapping[str, Any]) -> str:
        """The model a request goes to: the one it names, the client's own, or the first that is served."""
        named = options.get("model") or self._model
        if named is None:
            served = self.models()
            if not served:
                raise RequestFailed(0, None, "the server has no models")
            named = self._model = served[0]
        return str(named)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> InflightClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _chat_body(self, messages: Messages, options: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {**options, "model": self.model(options), "messages": list(messages)}

    def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return self._send(self._http.build_request("POST", path, json=body), stream=False)

    def _stream(self, path: str, body: Mapping[str, Any]) -> TextStream:
        streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return TextStream(self._send(self._http.build_request("POST", path, json=streaming), stream=True))

    def _send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        with _explained(str(self._http.base_url)):
            response = self._http.send(request, stream=stream)
            if response.status_code != 200:
                response.read()
                raise _failure(response.status_code, _body(response))
        return response


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise NotListening(0, None, f"nothing is listening at {url}") from error
    except httpx.HTTPError as error:
        raise RequestFailed(
            0, None, f"the connection to {url} broke: {error or type(error).__name__}"
        ) from error


def _events(response: httpx.Response) -> Iterator[str]:
    """The data of each event. Lines end at a line feed alone: text may hold other kinds of line ends."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:].decode().rstrip("\r")


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return {}


def _failure(status: int, body: Any) -> RequestFailed:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return RequestFailed(status, None, f"the server answered with status {status}")
    return RequestFailed(status, error.get("code"), str(error.get("message")))


def _answer(body: Mapping[str, Any]) -> Answer:
    choice = body["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return Answer(body["id"], body["model"], text, choice["finish_reason"], _usage(body["usage"]))


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
