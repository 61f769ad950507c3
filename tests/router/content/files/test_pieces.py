from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeVar

import pytest
import sqlalchemy as sql
from sqlalchemy import Connection

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files import rows
from router.content.files.model import PIECE_BYTES, StoredFile
from router.store.content_tables import file_pieces, files
from router.store.database import Store, StoreAccess
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.router.tenants.values import NOW_S, PEPPER

Result = TypeVar("Result")


class Interrupted(StoreAccess):
    """Something else happens before one of the writes."""

    def __init__(self, store: Store, before: int, happen: Callable[[], None]) -> None:
        super().__init__(store)
        self._left = before
        self._happen = happen

    async def write(self, act: Callable[[Connection], Result], tenant: str = "") -> Result:
        if self._left == 0:
            self._happen()
        self._left -= 1
        return await super().write(act, tenant)


@pytest.mark.parametrize("before", [0, 1], ids=["before it begins", "before its first piece"])
async def test_an_upload_whose_tenant_is_deleted_meanwhile_leaves_nothing(store: Store, before: int) -> None:
    administration = Administration(store, PEPPER)
    tenant = administration.create_organisation(SYSTEM, "acme").id
    access = Interrupted(store, before, lambda: administration.delete_organisation(SYSTEM, tenant))
    file = StoredFile("file-1", tenant, "a", "batch", PIECE_BYTES + 1, NOW_S)
    with pytest.raises(InflightError, match="was deleted") as refused:
        await rows.keep(access, file, io.BytesIO(bytes(file.size_bytes)), 1 << 40)
    assert refused.value.kind is ErrorKind.NOT_FOUND
    with store.read() as connection:
        for table in (files, file_pieces):
            assert connection.scalar(sql.select(sql.func.count()).select_from(table)) == 0
    access.close()
