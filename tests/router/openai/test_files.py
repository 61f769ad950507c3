from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import openai
import pytest
import sqlalchemy as sql

from router.content.files import rows
from router.content.files.model import FileLimits
from router.core.tenant import Scope
from router.http.connection import Limits
from router.store.content_tables import file_pieces, files
from tests.router.raw import RawClient
from tests.router.running import RunningRouter, running_router

FILES = frozenset({Scope.FILES})


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_a_file_is_uploaded_read_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.files.create(file=("Größe.txt", b"hello"), purpose="user_data")
    assert (made.bytes, made.filename, made.purpose) == (5, "Größe.txt", "user_data")
    assert (made.status, made.expires_at) == ("processed", None)
    assert await client.files.retrieve(made.id) == made
    content = await client.files.content(made.id)
    assert content.content == b"hello"
    assert content.response.headers["content-disposition"] == (
        "attachment; filename=\"Gr__e.txt\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe.txt"
    )
    assert (await client.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        await client.files.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.delete(made.id)


async def test_a_large_file_comes_back_as_it_was_uploaded(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    content = b"".join(number.to_bytes(4, "little") for number in range(3 << 18))
    made = await client.files.create(file=("big.bin", content), purpose="assistants")
    assert (await client.files.content(made.id)).content == content
    sizes = sql.select(sql.func.length(file_pieces.c.data)).order_by(file_pieces.c.number)
    pieces = await router.parts.store.read(lambda connection: connection.scalars(sizes).all())
    assert pieces == [1 << 20] * 3
    kept = await router.parts.store.read(lambda c: c.scalar(sql.select(files.c.sha256)))
    assert kept == hashlib.sha256(content).hexdigest()


async def test_files_are_listed_in_pages(client: openai.AsyncOpenAI) -> None:
    made = [(await client.files.create(file=b"x", purpose="batch")).id for _ in range(5)]
    await client.files.create(file=b"x", purpose="user_data")
    assert [file.id async for file in client.files.list(limit=2, purpose="batch")] == made[::-1]
    page = await client.files.list(limit=2, purpose="batch", order="asc")
    assert [file.id for file in page.data] == made[:2]
    assert page.has_more
    assert [file.id async for file in client.files.list(order="asc", after=made[3], purpose="batch")] == (
        made[4:]
    )


async def test_a_file_expires_as_requested(router: RunningRouter, client: openai.AsyncOpenAI) -> None:
    made = await client.files.create(
        file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600
    batch = await client.files.create(file=b"x", purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 86_400
    await router.parts.store.write(lambda c: c.execute(sql.update(files).values(expires_s=1.0)))
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)


async def test_an_invalid_upload_is_refused_with_the_reason(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match="'fine-tune' is not supported") as refused:
        await client.files.create(file=b"x", purpose="fine-tune")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="expected 3600 to 2592000"):
        await client.files.create(
            file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
        )
    assert (await router.http.post("/v1/files", json={})).status_code == 415
    answer = await router.http.post("/v1/files", files={"file": ("a", b"x")})
    assert answer.json()["error"]["message"] == "Missing required parameter: purpose"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "order=up", "colour=red", "purpose=%00"]
)
async def test_an_invalid_page_query_is_refused(router: RunningRouter, query: str) -> None:
    assert (await router.http.get(f"/v1/files?{query}")).status_code == 400


@pytest.mark.parametrize("file_id", ["nope", "%01", "%ff", "x" * 300, "..%2f..", "%F0%9F%92%A9"])
async def test_an_unknown_file_is_not_found(router: RunningRouter, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert (await router.http.get(path)).status_code == 404
    assert (await router.http.get(f"/v1/files?after={file_id}")).status_code == 404


async def test_files_are_invisible_to_other_organisations(router: RunningRouter) -> None:
    ours = await router.new_key(await router.new_tenant("ours"), FILES)
    theirs = await router.new_key(await router.new_tenant("theirs"), FILES)
    async with (
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=ours, max_retries=0) as we,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=theirs, max_retries=0) as they,
    ):
        made = await we.files.create(file=b"x", purpose="batch")
        for act in (they.files.retrieve, they.files.content, they.files.delete):
            with pytest.raises(openai.NotFoundError) as refused:
                await act(made.id)
            with pytest.raises(openai.NotFoundError) as unknown:
                await act("file-none")
            assert str(refused.value).replace(made.id, "file-none") == str(unknown.value)
        assert (await they.files.list()).data == []
        assert (await we.files.retrieve(made.id)).id == made.id


async def test_a_key_without_the_scope_is_refused(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), frozenset({Scope.INFERENCE}))
    answer = await router.http.get("/v1/files", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 403


async def test_uploads_beyond_an_organisations_quota_are_refused_until_something_is_deleted() -> None:
    async with (
        running_router(file_limits=FileLimits(max_bytes_per_tenant=1000)) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = await client.files.create(file=b"x" * 600, purpose="batch")
        with pytest.raises(openai.APIStatusError, match="take 600 of its 1000 bytes") as refused:
            await client.files.create(file=b"x" * 600, purpose="batch")
        assert refused.value.status_code == 413
        await client.files.delete(first.id)
        await client.files.create(file=b"x" * 600, purpose="batch")


async def test_head_shows_a_files_size_without_its_content(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    made = await client.files.create(file=b"hello", purpose="batch")
    answer = await router.http.head(f"/v1/files/{made.id}/content")
    assert (answer.headers["content-length"], answer.content) == ("5", b"")
    empty = await client.files.create(file=b"", purpose="batch")
    assert (await client.files.content(empty.id)).content == b""


async def test_a_client_that_reads_slowly_holds_back_its_download(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_piece = rows.read_piece

    def counted(connection: sql.Connection, file_id: str, number: int) -> bytes:
        read.append(number)
        return read_piece(connection, file_id, number)

    monkeypatch.setattr(rows, "read_piece", counted)
    async with running_router(Limits(write_buffer_bytes=1 << 16, write_stall_timeout_s=0.3)) as router:
        body = {"file": ("a", b"x" * (16 << 20))}
        made = await router.http.post("/v1/files", files=body, data={"purpose": "user_data"})
        client = await RawClient.connect(router.port)
        await router.until(lambda: router.listener.connection_count == 2)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport
        await client.send(
            f"GET /v1/files/{made.json()['id']}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await router.until(lambda: router.listener.connection_count == 1)
        await client.close()
    assert len(read) < 12


async def test_a_file_that_vanishes_during_a_download_cuts_it_off(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    made = await client.files.create(file=b"x" * (3 << 20), purpose="user_data")
    second = sql.delete(file_pieces).where(file_pieces.c.number == 1)
    await router.parts.store.write(lambda connection: connection.execute(second))
    raw = await RawClient.connect(router.port)
    await raw.send(f"GET /v1/files/{made.id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await raw.read_until(b"\r\n\r\n")
    assert b"content-length: 3145728" in head
    assert await raw.reader.read() == b"x" * (1 << 20)
    await raw.close()
