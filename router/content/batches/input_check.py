"""Reads an input file into lines, a piece of the file and a transaction at a time."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import InflightError
from router.content.batches import claims, rows
from router.content.batches.lines import LineCheck, LineSplitter, Problem
from router.content.batches.status import Event, TooLate
from router.content.files.model import PIECE_BYTES
from router.content.files.rows import find, read_piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from router.content.batches.model import Batch
    from router.content.files.model import StoredFile
    from router.store.access import StoreAccess

# What a request has around its body.
_ENVELOPE_BYTES = 4096


class LostHold(Exception):
    """Another router works on this batch, or it is over."""


class InputCheck:
    """Begun anew by whichever router finds that the last one died over it."""

    def __init__(
        self,
        store: StoreAccess,
        batch: Batch,
        worker: str,
        lease_s: float,
        max_body_bytes: int,
        check_model: Callable[[str], None],
    ) -> None:
        self._store = store
        self._batch = batch
        self._worker = worker
        self._lease_s = lease_s
        max_line_bytes = max_body_bytes + _ENVELOPE_BYTES
        self._splitter = LineSplitter(max_line_bytes)
        self._check = LineCheck(batch.endpoint, max_line_bytes, check_model)

    async def run(self) -> None:
        """Raises LostHold; a store that is away leaves the batch to be checked later."""
        try:
            file = await self._store.write(self._begin)
        except InflightError as error:
            if not error.kind.is_callers_fault:
                raise
            self._check.problems.append(Problem("invalid_input_file", error.message, "input_file_id"))
        else:
            for number in range(file.piece_count):
                await self._store.write(partial(self._read, file=file, number=number))
                if self._check.is_hopeless:
                    break
            self._check.finish()
        await self._store.write(self._end)

    def _begin(self, connection: Connection) -> StoredFile:
        self._hold(connection)
        claims.remove_all(connection, self._batch.id)
        # As of its making: a file that expires meanwhile is kept for the batch.
        created_s = self._batch.life.created_s
        return find(connection, self._batch.organisation_id, self._batch.input_file_id, created_s)

    def _read(self, connection: Connection, file: StoredFile, number: int) -> None:
        self._hold(connection)
        found = list(self._splitter.feed(read_piece(connection, file.id, number)))
        if (number + 1) * PIECE_BYTES >= file.size_bytes:
            found += self._splitter.end()
        lines = []
        for each in found:
            line = self._check.check(each)
            if self._check.is_hopeless:
                return
            if line is not None:
                lines.append(line)
        if not self._check.problems:
            claims.add(connection, self._batch.id, lines)

    def _end(self, connection: Connection) -> None:
        self._hold(connection)
        problems = self._check.problems
        try:
            if problems:
                claims.remove_all(connection, self._batch.id)
                errors = msgspec.json.encode(problems).decode()
                rows.advance(connection, self._batch.id, Event.REJECTED, time.time(), errors=errors)
            else:
                facts = {"model": self._check.model, "total_count": self._check.count}
                rows.advance(connection, self._batch.id, Event.CHECKED, time.time(), **facts)
        except TooLate as status:
            raise LostHold(str(status)) from None

    def _hold(self, connection: Connection) -> None:
        if not rows.hold(connection, self._batch, self._worker, time.time(), self._lease_s):
            raise LostHold(self._batch.id)
