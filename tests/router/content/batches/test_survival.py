"""A router may die at any point; what it was doing is begun again, and every line is answered once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from router.content.batches import claims, input_check, output_writer, rows
from router.content.batches.claims import Answer
from router.content.batches.decisions import Event, Life, Status
from router.content.batches.input_check import InputCheck, LostHold
from router.content.batches.output_writer import OutputWriter
from router.content.batches.rows import Batch
from router.content.files import rows as file_rows
from router.content.files.model import PIECE_BYTES, StoredFile
from router.core.tenant import LOCAL
from router.store.content_tables import batch_lines, batches, files
from router.store.database import Store, StoreAccess
from tests.router.content.batches.doomed import ANSWERED, COUNT
from tests.router.content.batches.running import QUICK, batch_client, batch_runner, new_runner, request
from tests.router.content.batches.test_claims import NOW_S, found, running_batch
from tests.router.running import running_router
from tests.waiting import soon

LEASE_S = 600.0


def end_leases(store: Store) -> None:
    """As time does."""
    with store.begin() as connection:
        connection.execute(sql.update(batches).values(lease_s=0.0))


@pytest.fixture
def access(store: Store) -> Iterator[StoreAccess]:
    made = StoreAccess(store)
    yield made
    made.close()


async def test_a_router_that_is_killed_loses_no_line_and_doubles_none(tmp_path: Path) -> None:
    doomed = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.router.content.batches.doomed",
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    assert doomed.stdout is not None
    batch_id = (await soon(doomed.stdout.readline(), 60)).decode().strip()
    doomed.kill()
    await doomed.wait()
    async with (
        running_router(data_dir=tmp_path) as router,
        batch_client(router) as client,
        batch_runner(router),
    ):
        ended = await client.until_over(await client.openai.batches.retrieve(batch_id))
        lines = await client.lines(ended.output_file_id)
    assert ended.status == "completed"
    assert [line["custom_id"] for line in lines] == [f"r{number}" for number in range(COUNT)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert ended.request_counts is not None
    assert (ended.request_counts.completed, ended.request_counts.total) == (COUNT, COUNT)
    # Those that were answered were not asked again; those that were under way, were.
    assert sorted(call.seed for call in router.pipeline.calls) == list(range(ANSWERED, COUNT))
    assert QUICK.concurrency < COUNT - ANSWERED


def answered_batch(store: Store, count: int) -> Batch:
    """Every third line failed, and the last was never run."""
    batch = running_batch(store, count)
    with store.begin() as connection:
        taken = claims.take(connection, batch, count - 1, "a", NOW_S, 30.0)
        answers = [
            Answer(claim, claim.number % 3 != 0, json.dumps({"number": claim.number})) for claim in taken
        ]
        claims.answer(connection, "a", answers)
        ending = rows.advance(connection, batch.id, Event.WINDOW_CLOSED, NOW_S)
    assert ending is not None
    return ending


def numbers(store: Store, file_id: str | None) -> list[int | None]:
    assert file_id is not None
    with store.read() as connection:
        file = file_rows.find(connection, "org-1", file_id, NOW_S)
        data = file_rows.read_range(connection, file_id, 0, file.size_bytes)
    return [json.loads(line).get("number") for line in data.splitlines()]


async def test_a_half_written_output_is_written_again(
    store: Store, access: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_writer, "_LINES_A_TRANSACTION", 4)
    batch = answered_batch(store, 20)
    dead = OutputWriter(access, batch, "dead", LEASE_S)
    await access.write(dead._begin)
    await access.write(dead._copy)
    with pytest.raises(LostHold):
        await OutputWriter(access, batch, "too-early", LEASE_S).run()
    end_leases(store)
    assert await OutputWriter(access, batch, "alive", LEASE_S).run()
    with pytest.raises(LostHold):
        await access.write(dead._copy)
    ended = found(store, batch)
    assert ended.status is Status.EXPIRED
    assert numbers(store, ended.output_file_id) == [n for n in range(1, 20) if n % 3]
    assert numbers(store, ended.error_file_id) == [3, 6, 9, 12, 15, 18, None]
    with store.read() as connection:
        assert connection.scalar(sql.select(sql.func.count()).select_from(batch_lines)) == 0
        assert connection.scalar(sql.select(sql.func.count()).select_from(files)) == 3


async def test_a_half_read_input_is_read_again(store: Store, access: StoreAccess) -> None:
    filler = "x" * 1000
    texts = [json.dumps(request(f"r{n}", user=filler)).encode() for n in range(2500)]
    data = b"\n".join(texts)
    file = StoredFile("file-1", "org-1", "in", "batch", len(data), NOW_S)
    life = Life(Status.VALIDATING, NOW_S, NOW_S + 86_400)
    batch = Batch("batch_1", "org-1", "key-1", "/v1/chat/completions", "file-1", life)
    assert file.piece_count == 3
    with store.begin() as connection:
        file_rows.begin(connection, file)
        for number in range(3):
            piece = data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            file_rows.add_piece(connection, "file-1", number, piece)
        file_rows.finish(connection, "file-1", len(data), "")
        rows.insert(connection, batch)

    def checker(worker: str) -> InputCheck:
        return InputCheck(access, batch, worker, LEASE_S, 1 << 20, lambda name: None)

    dead = checker("dead")
    await access.write(dead._begin)
    await access.write(lambda connection: dead._read(connection, file, 0))
    end_leases(store)
    await checker("alive").run()
    with pytest.raises(LostHold):
        await access.write(lambda connection: dead._read(connection, file, 1))
    ready = found(store, batch)
    assert (ready.status, ready.total_count, ready.model) == (Status.IN_PROGRESS, 2500, "tiny")
    with store.begin() as connection:
        taken = claims.take(connection, ready, 2500, "a", NOW_S, 30.0)
    assert [json.loads(claim.body)["user"] for claim in taken[1200:1210]] == [filler] * 10
    assert [claim.custom_id for claim in taken] == [f"r{number}" for number in range(2500)]


async def test_a_missing_input_file_fails_the_batch(store: Store, access: StoreAccess) -> None:
    life = Life(Status.VALIDATING, NOW_S, NOW_S + 86_400)
    batch = Batch("batch_1", "org-1", "key-1", "/v1/chat/completions", "file-gone", life)
    with store.begin() as connection:
        rows.insert(connection, batch)
    await input_check.InputCheck(access, batch, "a", 5.0, 1 << 20, lambda name: None).run()
    failed = found(store, batch)
    assert failed.status is Status.FAILED
    assert json.loads(failed.errors)[0]["code"] == "invalid_input_file"


async def test_two_runners_with_one_store_answer_each_line_once(store: Store, access: StoreAccess) -> None:
    async with running_router() as router:
        texts = [json.dumps(request(f"r{n}", seed=n)).encode() for n in range(60)]
        data = b"\n".join(texts)
        file = StoredFile("file-1", LOCAL, "in", "batch", len(data), NOW_S)
        life = Life(Status.VALIDATING, NOW_S, time.time() + 86_400)
        batch = Batch("batch_1", LOCAL, LOCAL, "/v1/chat/completions", "file-1", life)
        with store.begin() as connection:
            file_rows.begin(connection, file)
            file_rows.add_piece(connection, "file-1", 0, data)
            file_rows.finish(connection, "file-1", len(data), "")
            rows.insert(connection, batch)
        runners = [new_runner(router, access) for _ in range(2)]
        for runner in runners:
            await runner.start()
        await router.until(lambda: found(store, batch).status.is_over)
        for runner in runners:
            await runner.stop()
        ended = found(store, batch)
        assert (ended.status, ended.completed_count) == (Status.COMPLETED, 60)
        assert sorted(call.seed for call in router.pipeline.calls) == list(range(60))
    with store.read() as connection:
        output = file_rows.find(connection, LOCAL, ended.output_file_id or "", NOW_S)
        lines = file_rows.read_range(connection, output.id, 0, output.size_bytes).splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == [f"r{n}" for n in range(60)]
