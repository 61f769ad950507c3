"""What routers have seen of shadows is added up in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sql

from router.control.releases.comparison import Comparison
from router.control.releases.shadow_figures import ShadowRecorder, ShadowSums, list_shadows
from router.store.database import Store, StoreAccess

EQUAL = Comparison(1.0, "smol", 1, 2, True, 1.0, 10, 10, 0.5, 1.0)
OTHER = replace(EQUAL, is_equal=False, likeness=0.5, shadow_took_s=2.0)
FAILED = replace(EQUAL, is_equal=False, likeness=0.0, error="no answer")


async def test_comparisons_of_two_routers_are_added_up(store: Store) -> None:
    access = StoreAccess(store)
    one, another = ShadowRecorder(access), ShadowRecorder(access)
    one.add(EQUAL)
    await one.write()
    for each in (OTHER, FAILED):
        one.add(each)
    another.add(EQUAL)
    another.add(replace(EQUAL, model="other"))
    another.add(replace(EQUAL, version=3))
    for recorder in (one, another, one):
        await recorder.write()
    access.close()
    with store.read() as connection:
        found = list_shadows(connection, "smol")
    assert [(each.shadow, each.version) for each in found] == [(2, 1), (2, 3)]
    assert found[0].sums == ShadowSums(2, 1, 1, 2.5, 1.5, 4.0)
    assert found[0].sums.compared == 3


async def test_comparisons_that_cannot_be_written_are_written_later(
    lite: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = StoreAccess(lite)
    recorder = ShadowRecorder(access)
    recorder.add(EQUAL)

    def away() -> object:
        raise sql.exc.OperationalError("insert", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(lite, "begin", away)
        await recorder.write()
    recorder.add(EQUAL)
    await recorder.write()
    access.close()
    with lite.read() as connection:
        assert [each.sums.equal for each in list_shadows(connection, "smol")] == [2]
