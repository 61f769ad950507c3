from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sql
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import UsageRecord
from router.store.database import Store
from router.store.schema import usage as usage_table
from router.tenants.spool import SpoolInUse, UsageSpool, from_line, read_segment, to_line
from router.tenants.treasury import Treasury
from tests.router.tenants.values import MONTH, usage
from tests.waiting import wait_until

KILLS = 24


class FakeStore:
    """Takes records, or is away, or cannot take some."""

    def __init__(self) -> None:
        self.records: dict[str, UsageRecord] = {}
        self.deliveries = 0
        self.is_away = False
        self.unacceptable: set[str] = set()

    def charge(self, records: Sequence[UsageRecord]) -> None:
        if self.is_away:
            raise ConnectionError("away")
        self.deliveries += len(records)
        if any(record.request_id in self.unacceptable for record in records):
            raise sql.exc.DataError("insert", {}, ValueError("no such value"))
        for record in records:
            self.records.setdefault(record.request_id, record)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[UsageSpool]:
    opened = UsageSpool(tmp_path / "spool", max_bytes=10_000)
    yield opened
    opened.close()


def files(directory: Path) -> list[str]:
    return sorted(path.suffix for path in (directory / "spool").iterdir() if path.suffix)


def test_a_record_survives_the_round_trip_to_disk() -> None:
    record = usage("request-1")
    assert from_line(to_line(record)) == record


@settings(deadline=None)
@given(st.integers(0, 600), st.integers(1, 255))
def test_a_line_with_any_byte_changed_is_not_read(at: int, change: int) -> None:
    line = bytearray(to_line(usage("request-1")))
    line[at % len(line)] ^= change
    assert from_line(bytes(line)) is None


@settings(deadline=None)
@given(st.integers(0, 2000))
def test_a_torn_file_gives_all_lines_before_the_tear(
    tmp_path_factory: pytest.TempPathFactory, size: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "file"
    lines = [to_line(usage(f"request-{number}")) for number in range(4)]
    path.write_bytes(b"".join(lines)[:size])
    contents = read_segment(path)
    whole = sum(size >= sum(map(len, lines[: number + 1])) for number in range(4))
    assert [record.request_id for record in contents.records] == [f"request-{n}" for n in range(whole)]
    assert contents.damaged_lines == 0


def test_an_appended_record_is_on_disk_soon_and_in_the_store_when_delivered(
    spool: UsageSpool, tmp_path: Path
) -> None:
    spool.start()
    spool.append(usage("request-1"))
    wait_until(lambda: not spool.pending)
    assert spool.bytes > 0
    store = FakeStore()
    assert spool.deliver(store.charge) == 1
    assert store.records == {"request-1": usage("request-1")}
    assert (spool.bytes, spool.pending, files(tmp_path)) == (0, 0, [".usage"])  # the next one, still empty


def test_closing_the_spool_writes_what_is_left(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "spool")
    spool.append(usage("request-1"))
    spool.close()
    again = UsageSpool(tmp_path / "spool")
    store = FakeStore()
    assert again.bytes > 0
    again.deliver(store.charge)
    assert list(store.records) == ["request-1"]
    assert again.process == spool.process
    again.close()


def test_while_the_store_is_unreachable_the_spool_grows_warns_and_loses_nothing(
    spool: UsageSpool, tmp_path: Path
) -> None:
    store = FakeStore()
    store.is_away = True
    for number in range(60):
        spool.append(usage(f"request-{number}"))
        with pytest.raises(ConnectionError):
            spool.deliver(store.charge)
        spool.flush()
    assert spool.is_full
    assert len(files(tmp_path)) == 2
    store.is_away = False
    assert spool.deliver(store.charge) == 60
    assert (spool.bytes, store.deliveries) == (0, 60)


def test_a_full_disk_keeps_records_in_memory_until_there_is_room(
    spool: UsageSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half_write(descriptor: int, data: memoryview) -> int:
        if len(data) > 100:
            return write(descriptor, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    spool.append(usage("request-0"))
    spool.flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_write)
        for number in range(1, 5):
            spool.append(usage(f"request-{number}"))
            spool.flush()
        assert spool.pending == 4
        assert spool.failed_writes >= 4
        assert set(files(tmp_path)) == {".usage"}
    store = FakeStore()
    spool.deliver(store.charge)
    assert len(store.records) == 5
    assert (spool.pending, spool.failed_writes, spool.bytes) == (0, 0, 0)


def test_a_damaged_line_costs_itself_alone_and_its_file_is_kept(tmp_path: Path, spool: UsageSpool) -> None:
    lines = [to_line(usage(f"request-{number}")) for number in range(3)]
    lines[1] = lines[1].replace(b"finished", b"f1nished")
    (tmp_path / "spool" / "0-old.usage").write_bytes(b"".join(lines))
    store = FakeStore()
    spool.deliver(store.charge)
    assert list(store.records) == ["request-0", "request-2"]
    assert spool.damaged_lines == 1
    assert files(tmp_path) == [".damaged"]


def test_a_record_that_the_store_refuses_is_kept_aside_and_blocks_no_other(
    tmp_path: Path, spool: UsageSpool
) -> None:
    store = FakeStore()
    store.unacceptable = {"request-1"}
    for number in range(3):
        spool.append(usage(f"request-{number}"))
    spool.deliver(store.charge)
    assert list(store.records) == ["request-0", "request-2"]
    assert from_line((tmp_path / "spool" / "refused").read_bytes()) == usage("request-1")


def test_two_processes_never_share_a_spool(tmp_path: Path, spool: UsageSpool) -> None:
    with pytest.raises(SpoolInUse, match="another process already spools"):
        UsageSpool(tmp_path / "spool")


def test_a_process_killed_again_and_again_loses_nothing_and_doubles_nothing(
    tmp_path: Path, store: Store, store_url: str
) -> None:
    """Every number a child printed was appended by then; the store must end with each of them, once."""
    spool_dir, number, chance = tmp_path / "spool", 0, random.Random(7)
    command = [sys.executable, "-m", "tests.router.tenants.spooling", str(spool_dir), store_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        for _ in range(KILLS):
            number = _run_until_killed(server, number, chance.uniform(0.0, 0.06))
        server.communicate()
    spool = UsageSpool(spool_dir)
    treasury = Treasury(store, spool.process)
    spool.deliver(treasury.charge)
    with store.read() as connection:
        found = set(connection.scalars(sql.select(usage_table.c.request_id)))
    assert {f"request-{each}" for each in range(number)} <= found
    assert treasury.spent("org-1", MONTH) == 10 * len(found)
    assert number > KILLS
    spool.close()


def _run_until_killed(server: subprocess.Popen[str], first: int, after_s: float) -> int:
    """Answers the first number that is not known to be on disk."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{first}\n")
    server.stdin.flush()
    pid, safe = 0, first
    while not pid or safe == first:
        word, _, rest = server.stdout.readline().strip().partition(" ")
        if word == "pid":
            pid = int(rest)
        else:
            safe = int(word)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    while (line := server.stdout.readline()) != "gone\n":
        safe = int(line)
    return safe
