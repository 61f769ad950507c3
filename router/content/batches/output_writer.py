"""Writes what was answered into files, a few lines and a transaction at a time."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import sqlalchemy as sql
from sqlalchemy import Connection

from router.content.batches import claims, rows
from router.content.batches.decisions import Event, Status, TooLate
from router.content.batches.input_check import LostHold
from router.content.batches.rows import CANCELLED, EXPIRED, Batch, dropped_line
from router.content.files import rows as file_rows
from router.content.files.model import BATCH_OUTPUT, LONGEST_LIFE_S, PIECE_BYTES, StoredFile, new_file_id
from router.store.content_tables import batches
from router.store.database import StoreAccess

_LINES_A_TRANSACTION = 64


class _GrowingFile:
    """A file that is written without knowing how long it will be; it is begun with its first line."""

    def __init__(self, batch: Batch, kind: str) -> None:
        now_s = time.time()
        life_s = batch.output_lifetime_s or LONGEST_LIFE_S
        self.file = StoredFile(
            id=new_file_id(),
            organisation_id=batch.organisation_id,
            filename=f"{batch.id}_{kind}.jsonl",
            purpose=BATCH_OUTPUT,
            size_bytes=0,
            created_s=now_s,
            expires_s=now_s + life_s,
        )
        self._digest = hashlib.sha256()
        self._rest = bytearray()
        self._pieces = 0

    @property
    def size_bytes(self) -> int:
        return self._pieces * PIECE_BYTES + len(self._rest)

    def add(self, connection: Connection, line: str) -> None:
        if not self.size_bytes:
            file_rows.begin(connection, self.file)
        data = f"{line}\n".encode()
        self._digest.update(data)
        self._rest += data
        while len(self._rest) >= PIECE_BYTES:
            file_rows.add_piece(connection, self.file.id, self._pieces, bytes(self._rest[:PIECE_BYTES]))
            del self._rest[:PIECE_BYTES]
            self._pieces += 1

    def finish(self, connection: Connection) -> str | None:
        """The id of the file; None when there is nothing in it."""
        if not self.size_bytes:
            return None
        if self._rest:
            file_rows.add_piece(connection, self.file.id, self._pieces, bytes(self._rest))
        file_rows.finish(connection, self.file.id, self.size_bytes, self._digest.hexdigest())
        return self.file.id


class OutputWriter:
    """Begun anew by whichever router finds that the last one died over it: both files are made again."""

    def __init__(self, store: StoreAccess, batch: Batch, worker: str, lease_s: float) -> None:
        self._store = store
        self._batch = batch
        self._worker = worker
        self._lease_s = lease_s
        self._output = _GrowingFile(batch, "output")
        self._errors = _GrowingFile(batch, "error")
        self._why = CANCELLED if batch.status is Status.CANCELLING else EXPIRED
        self._last = -1

    async def run(self) -> bool:
        """False when lines are still under way; raises LostHold."""
        if not await self._store.write(self._begin, self._batch.organisation_id):
            return False
        while not await self._store.write(self._copy, self._batch.organisation_id):
            pass
        return True

    def _begin(self, connection: Connection) -> bool:
        self._hold(connection)
        batch = rows.find(connection, self._batch.organisation_id, self._batch.id)
        if batch.life.in_progress_s is None:
            claims.remove_all(connection, batch.id)  # it was never known what is in it
        if not claims.drop_rest(connection, batch.id, time.time()):
            return False
        for left in (batch.output_file_id, batch.error_file_id):
            if left is not None:
                file_rows.drop(connection, left)
        # Remembered for whoever has to begin anew; shown to nobody before they are whole.
        names = {"output_file_id": self._output.file.id, "error_file_id": self._errors.file.id}
        connection.execute(sql.update(batches).where(batches.c.id == self._batch.id).values(names))
        return True

    def _copy(self, connection: Connection) -> bool:
        self._hold(connection)
        lines = claims.after_number(connection, self._batch.id, self._last, _LINES_A_TRANSACTION)
        for line in lines:
            self._write(connection, line)
            self._last = line.number
        if len(lines) == _LINES_A_TRANSACTION:
            return False
        files = {
            "output_file_id": self._output.finish(connection),
            "error_file_id": self._errors.finish(connection),
        }
        try:
            rows.advance(connection, self._batch.id, Event.WRITTEN, time.time(), **files)
        except TooLate as status:
            raise LostHold(str(status)) from None
        claims.remove_all(connection, self._batch.id)
        return True

    def _write(self, connection: Connection, line: Any) -> None:
        if line.state == claims.DONE:
            file = self._output if line.succeeded else self._errors
            file.add(connection, line.answer)
        else:
            text = dropped_line(self._batch.id, line.number, line.custom_id, self._why)
            self._errors.add(connection, text)

    def _hold(self, connection: Connection) -> None:
        if not rows.hold(connection, self._batch, self._worker, time.time(), self._lease_s):
            raise LostHold(self._batch.id)
