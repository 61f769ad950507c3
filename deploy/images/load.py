"""Chats that are asked again and again while something else happens: how each of them ended."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

CHATS_AT_ONCE = 4
AGAIN_AFTER_S = 0.2
TIMEOUT_S = 300.0
# While a container gets its address again nobody answers there, and the kernel would try for two minutes.
CONNECT_TIMEOUT_S = 2.0
QUESTION = "Name the capital of France."
# How a chat ended. `refused`: nothing was promised, by no connection or a status that says to come back.
ANSWERED, REFUSED, CUT, FAILED = "answered", "refused", "cut", "failed"
COME_BACK = (429, 503)


def body_of(model: str, tokens: int = 20, *, stream: bool = False) -> dict[str, Any]:
    message = {"role": "user", "content": QUESTION}
    return {"model": model, "max_tokens": tokens, "messages": [message], "stream": stream}


class Load:
    """Half of the chats are streamed."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )
        self._model = model
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._ended: Counter[str] = Counter()
        self.reasons: list[str] = []

    def ask(self, *, stream: bool = False) -> tuple[str, str]:
        """How it ended, and the answer or what was wrong."""
        begun = False
        try:
            with self._client.stream(
                "POST", "/v1/chat/completions", json=body_of(self._model, stream=stream)
            ) as got:
                if got.status_code != httpx.codes.OK:
                    got.read()
                    return (
                        REFUSED if got.status_code in COME_BACK else FAILED,
                        f"{got.status_code} {got.text}",
                    )
                begun = True
                return judged("".join(got.iter_text()), stream=stream)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return REFUSED, str(error)
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            # A kept connection that was closed before its next request, or while that one came.
            return (CUT if begun else REFUSED), str(error)
        except httpx.HTTPError as error:
            return (CUT if begun else FAILED), repr(error)

    def counts(self) -> Counter[str]:
        with self._lock:
            return self._ended.copy()

    @contextmanager
    def running(self) -> Iterator[Load]:
        threads = [
            threading.Thread(target=self._go_on, args=(each % 2 == 0,)) for each in range(CHATS_AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        self._client.close()

    def _go_on(self, stream: bool) -> None:
        while not self._stopping.is_set():
            how, said = self.ask(stream=stream)
            with self._lock:
                self._ended[how] += 1
                if how in (CUT, FAILED):
                    self.reasons.append(f"{how}: {said[:300]}")
            time.sleep(AGAIN_AFTER_S)


def judged(text: str, *, stream: bool) -> tuple[str, str]:
    """A stream is whole when its last event says so, and none of them is an error."""
    if not stream:
        return ANSWERED, str(json.loads(text)["choices"][0]["message"]["content"])
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return CUT, text[-300:]
    if errors := [event for event in events[:-1] if "error" in json.loads(event)]:
        return CUT, errors[0]
    return ANSWERED, text
