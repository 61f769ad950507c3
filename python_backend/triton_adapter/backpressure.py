"""Back-pressure between the engine's sender and postprocessing, which Triton itself does not give.

Triton takes responses without limit. A sender faster than what follows fills the queues between the steps,
and text arrives seconds late. So postprocessing tells the sender of each response it has handled, and the
sender keeps only a few in flight: as many as half of the machine's cores, since each keeps one busy. What
it cannot send yet joins the next response, so throughput is not lost.

The acknowledgement is a datagram to an abstract socket named after their common Triton server and the
sender's lane, a number that rides in the stream's mark. Nothing is left in the file system, and one that
never comes (another postprocessing, one that has died) costs a short wait, not a stream.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket

from python_backend.wire.stream_mark import LANES

_PATIENCE_S = 0.05


def _address(lane: int) -> str:
    """Both sides are children of the same Triton server."""
    return f"\0inflight-{os.getppid()}-{lane}"


class Pacer:
    """The sender's side: waits while too many responses are on their way."""

    def __init__(self) -> None:
        self._limit = max(1, (os.cpu_count() or 2) // 2)
        self._in_flight = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.lane = self._bind()

    def _bind(self) -> int:
        for lane in random.sample(range(LANES), LANES):
            with contextlib.suppress(OSError):
                self._socket.bind(_address(lane))
                return lane
        raise RuntimeError(f"all {LANES} lanes of this Triton server are in use")

    def wait_for_room(self) -> None:
        self._hear()
        while self._in_flight >= self._limit:
            if not select.select([self._socket], [], [], _PATIENCE_S)[0]:
                self._in_flight = 0  # postprocessing does not acknowledge, or no longer
                return
            self._hear()

    def sent(self) -> None:
        self._in_flight += 1

    def close(self) -> None:
        self._socket.close()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1):
                self._in_flight = max(0, self._in_flight - 1)


class Acknowledger:
    """Postprocessing's side."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def handled(self, lane: int) -> None:
        with contextlib.suppress(OSError):  # nobody there, or so far behind that it hardly matters
            self._socket.sendto(b"\1", _address(lane))

    def close(self) -> None:
        self._socket.close()
