"""What an organisation stores is counted together, whatever it is, and ends at its quota."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from python_backend.wire.errors import ErrorKind, InflightError
from router.content import storage_quota
from router.content.files.model import FileLimits
from router.content.storage_quota import StorageQuota
from tests.router.running import MODEL, RunningRouter, running_router

QUOTA = 1 << 20
LARGE = "x" * 100_000


async def test_conversations_responses_and_files_share_one_quota() -> None:
    async with running_router(file_limits=FileLimits(max_bytes_per_tenant=QUOTA)) as router:
        message = {"role": "user", "content": LARGE}
        made = [await router.http.post("/v1/conversations", json={"items": [message]}) for _ in range(8)]
        statuses = [response.status_code for response in made]
        assert set(statuses) == {200, 413}
        assert statuses == sorted(statuses)
        assert "bytes of storage" in made[-1].text
        first = made[0].json()["id"]
        added = await router.http.post(f"/v1/conversations/{first}/items", json={"items": [message]})
        assert added.status_code == 413
        await _answers_without_storing(router)
        upload = await router.http.post(
            "/v1/files", data={"purpose": "user_data"}, files={"file": b"x" * 300_000}
        )
        assert upload.status_code == 413
        assert (await router.http.delete(f"/v1/conversations/{first}")).status_code == 200
        upload = await router.http.post(
            "/v1/files", data={"purpose": "user_data"}, files={"file": b"x" * 100_000}
        )
        assert upload.status_code == 200


async def _answers_without_storing(router: RunningRouter) -> None:
    """Where a response must be stored there is none; where nobody asked for it, it is only answered."""
    asked = {"model": MODEL, "input": LARGE}
    before = len(router.pipeline.calls)
    assert (await router.http.post("/v1/responses", json={**asked, "store": True})).status_code == 413
    assert len(router.pipeline.calls) == before  # before any model was asked
    answered = await router.http.post("/v1/responses", json=asked)
    assert (answered.status_code, answered.json()["store"]) == (200, False)


def test_sums_are_remembered_for_a_while_and_looked_up_again_before_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, stored, sums = 0.0, 0, 0

    def stored_bytes(connection: Connection, organisation_id: str) -> int:
        nonlocal sums
        sums += 1
        return stored

    monkeypatch.setattr(storage_quota, "stored_bytes", stored_bytes)
    quota = StorageQuota(100, lambda: now_s)
    connection: Connection = None  # type: ignore[assignment]  # nobody asks it here
    for _ in range(10):
        quota.take(connection, "acme", 10)
    assert sums == 1
    for _ in range(3):
        with pytest.raises(InflightError, match="take 100 of its 100 bytes") as refused:
            quota.take(connection, "acme", 1)
        assert refused.value.kind is ErrorKind.TOO_LARGE
    with pytest.raises(InflightError):
        quota.check("acme", 1)
    quota.take(connection, "other", 1)
    assert sums == 2
    now_s, stored = 2.0, 50  # something was deleted
    quota.check("acme", 1)
    quota.take(connection, "acme", 1)
    now_s, stored = 20.0, 100  # others have stored something
    with pytest.raises(InflightError):
        quota.take(connection, "acme", 1)
