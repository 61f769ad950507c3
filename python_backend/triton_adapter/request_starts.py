"""Preprocessing tells postprocessing that a request has begun, so that an id used again is another stream.

NVIDIA's backend sends no stream marks (see `wire.stream_mark`) and never says which response is the last, so
by its id alone a new request would go on with the decoder of the one before. Preprocessing sees each
request before its first token exists: it sends the id as a datagram to abstract sockets named after their
common Triton server. One that is lost costs only what was so without it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import OrderedDict

_LISTENERS = 8  # postprocessing models of one Triton server that can hear; each costs a request a microsecond
_REMEMBERED = 100_000
_LONGEST_ID_BYTES = 4096


def _address(number: int) -> str:
    return f"\0inflight-{os.getppid()}-starts-{number}"


class StartTeller:
    """Preprocessing's side."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def begun(self, request_id: str) -> None:
        name = request_id.encode()
        if not 0 < len(name) <= _LONGEST_ID_BYTES:
            return
        for number in range(_LISTENERS):
            with contextlib.suppress(OSError):  # nobody has this number, or its engine marks its streams
                self._socket.sendto(name, _address(number))

    def close(self) -> None:
        self._socket.close()


class StartListener:
    """Postprocessing's side: how often each id has begun, as far as it was heard."""

    def __init__(self) -> None:
        self._begun: OrderedDict[str, int] = OrderedDict()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        for number in range(_LISTENERS):
            with contextlib.suppress(OSError):
                self._socket.bind(_address(number))
                return

    def times_begun(self, request_id: str) -> int:
        with contextlib.suppress(BlockingIOError):
            while name := self._socket.recv(_LONGEST_ID_BYTES):
                self._count(name.decode())
        return self._begun.get(request_id, 0)

    def _count(self, request_id: str) -> None:
        self._begun[request_id] = self._begun.pop(request_id, 0) + 1
        if len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)

    def close(self) -> None:
        self._socket.close()
