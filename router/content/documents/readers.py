"""Has documents read within limits, by programs that cannot hurt this one and give way to it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.document_program import Unreadable
from router.core.program_pool import BrokenProgram, ProgramPool
from router.core.side_work import SideWork

_PROGRAM = Path(__file__).with_name("document_program.py")
# Of one tenant. Waiting costs nothing but memory; a request that is refused was read for nothing.
_WAITING_EACH = 32
_MOST_WAITING_BYTES = 32 << 20
_COME_BACK_S = 1.0


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """`max_files` are those of one request, the rest holds for each file.

    How much text a model can read is another limit, its own.
    """

    max_files: int = 20
    max_bytes: int = 10 << 20
    max_characters: int = 400_000
    max_pdf_pages: int = 500
    pdf_time_s: float = 20.0
    pdf_memory_bytes: int = 512 << 20


class DocumentReader:
    """Of one kind of documents, so that a tenant's files of one do not wait for those of another."""

    def __init__(
        self,
        what: str,
        limits: DocumentLimits,
        share: ProcessorShare | None = None,
        side_work: SideWork | None = None,
        waiting_each: int = _WAITING_EACH,
    ) -> None:
        self._what = what
        self._limits = limits
        self._waiting: Counter[str] = Counter()  # bytes
        cpu_s = math.ceil(limits.pdf_time_s)
        given = (limits.max_pdf_pages, limits.max_characters, limits.pdf_memory_bytes, cpu_s)
        self._programs = ProgramPool(what, _PROGRAM, [*map(str, given)], waiting_each, share, side_work)

    async def read(self, tenant: str, kind: bytes, data: bytes) -> str:
        """The text; raises Unreadable, and RATE_LIMITED where too many of this tenant wait already."""
        limit_s = self._limits.pdf_time_s
        try:
            with self._memory(tenant, len(data)):
                is_text, answer = await self._programs.ask(tenant, kind, data, limit_s)
        except asyncio.TimeoutError:
            raise Unreadable(f"takes more than {limit_s:g} s to read") from None
        except BrokenProgram:
            raise Unreadable("needs too much memory or time to read") from None
        if not is_text:
            raise Unreadable(answer.decode())
        return answer.decode()

    @contextmanager
    def _memory(self, tenant: str, size_bytes: int) -> Iterator[None]:
        if self._waiting[tenant] and self._waiting[tenant] + size_bytes > _MOST_WAITING_BYTES:
            message = f"this organisation has too many bytes waiting for {self._what}; try again later"
            raise InflightError(ErrorKind.RATE_LIMITED, message, retry_after_s=_COME_BACK_S)
        self._waiting[tenant] += size_bytes
        try:
            yield
        finally:
            self._waiting[tenant] -= size_bytes
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    async def close(self) -> None:
        await self._programs.close()
