"""A request body that may be larger than memory should hold."""

from __future__ import annotations

import asyncio
import io
import tempfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_BYTES = 1 << 20


class Upload:
    """Takes a body as it arrives; whatever is beyond a mebibyte lies in a file that has no name.

    The file is written by a thread while the sender is paused, so that neither the event loop waits for a
    disk nor memory fills up before one.
    """

    def __init__(
        self,
        pause: Callable[[], None] = lambda: None,
        resume: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.size_bytes = 0
        self._closed: Callable[[], None] | None = closed
        self._pause = pause
        self._resume = resume
        self._tail = bytearray()
        self._file: IO[bytes] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    @classmethod
    def holding(cls, body: bytes) -> Upload:
        """One that has arrived already."""
        upload = cls()
        upload._tail += body
        upload.size_bytes = len(body)
        return upload

    def add(self, data: bytes) -> None:
        self._tail += data
        self.size_bytes += len(data)
        if len(self._tail) > MEMORY_BYTES:
            self._pause()
            if self._writing is None:
                self._spill()

    async def arrived(self) -> None:
        """Once all was added: returns when none of it is on its way to the disk any more.

        Raises OSError when the disk did not take all of it.
        """
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # its callback may begin another
        if self._failure is not None:
            raise self._failure

    def open(self) -> IO[bytes]:
        """The body from its beginning, for a thread to read; after `arrived`, and until `close`."""
        if self._file is None:
            return io.BytesIO(self._tail)
        self._write(self._tail)
        self._tail = bytearray()
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """What is being written is closed behind the writer: its descriptor must not become another's."""
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        self._tail = bytearray()
        if self._writing is not None:
            self._writing.add_done_callback(lambda _: self._close_file())
        else:
            self._close_file()

    def _spill(self) -> None:
        data, self._tail = self._tail, bytearray()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, data)
        self._writing.add_done_callback(self._spilled)

    def _spilled(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        self._failure = self._failure or writing.exception()
        if len(self._tail) > MEMORY_BYTES:
            self._spill()
        else:
            self._resume()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="inflight-upload-")  # noqa: SIM115 - see close
        self._file.write(data)
