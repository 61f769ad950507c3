from __future__ import annotations

import asyncio
import tempfile

import pytest

from router.http.upload import MEMORY_BYTES, Upload


async def test_a_small_body_stays_in_memory() -> None:
    upload = Upload()
    upload.add(b"hello ")
    upload.add(b"world")
    await upload.arrived()
    assert upload.open().read() == b"hello world"
    assert upload._file is None


async def test_a_large_body_lies_on_disk_and_its_sender_waits_for_the_disk() -> None:
    calls: list[str] = []
    upload = Upload(lambda: calls.append("pause"), lambda: calls.append("resume"))
    pieces = [bytes([number]) * 700_000 for number in range(8)]
    for piece in pieces:
        upload.add(piece)
        await upload.arrived()
    assert calls == ["pause", "resume"] * 4
    assert len(upload._tail) <= MEMORY_BYTES
    assert upload.open().read() == b"".join(pieces)
    upload.close()


async def test_data_that_arrives_while_the_disk_is_busy_is_written_in_order() -> None:
    upload = Upload()
    pieces = [bytes([number]) * 1_500_000 for number in range(5)]
    for piece in pieces:
        upload.add(piece)
    await upload.arrived()
    assert upload.size_bytes == 7_500_000
    assert upload.open().read() == b"".join(pieces)
    upload.close()


async def test_closing_while_the_disk_is_busy_closes_behind_it() -> None:
    upload = Upload()
    upload.add(b"x" * (2 << 20))
    upload.close()
    writing = upload._writing
    assert writing is not None
    await asyncio.wait([writing])
    await asyncio.sleep(0)
    assert upload._file is not None
    assert upload._file.closed


async def test_a_full_disk_is_reported_to_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    upload = Upload()
    upload.add(b"x" * (2 << 20))
    with pytest.raises(OSError, match="No space left"):
        await upload.arrived()
    upload.close()
