"""How a shadow's answers compared with those of the release it shadows, added up over all routers."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from functools import reduce
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.control.recorder import Recorder
from router.store.schema import shadow_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from router.control.releases.comparison import Comparison
    from router.store.database import StoreAccess


@dataclass(frozen=True, slots=True)
class ShadowSums:
    """Times and likeness are sums over the answers that came, equal or not."""

    equal: int = 0
    different: int = 0
    failed: int = 0
    likeness: float = 0.0
    took_s: float = 0.0
    shadow_took_s: float = 0.0

    @property
    def compared(self) -> int:
        return self.equal + self.different

    def plus(self, other: ShadowSums) -> ShadowSums:
        return ShadowSums(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(ShadowSums))
        )


def sums_of(one: Comparison) -> ShadowSums:
    if one.error:
        return ShadowSums(failed=1)
    return ShadowSums(
        int(one.is_equal), int(not one.is_equal), 0, one.likeness, one.took_s, one.shadow_took_s
    )


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """One release's answers, held against those of the one that answered the clients."""

    shadow: int
    version: int
    sums: ShadowSums


class ShadowRecorder(Recorder):
    _what = "the comparisons with shadows"

    def __init__(
        self, access: StoreAccess, process: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(access, process)
        self._clock = clock
        self._sums: dict[tuple[str, int, int], ShadowSums] = {}
        self._changed: set[tuple[str, int, int]] = set()

    def add(self, one: Comparison) -> None:
        key = (one.model, one.shadow_version, one.version)
        self._sums[key] = self._sums.get(key, ShadowSums()).plus(sums_of(one))
        self._changed.add(key)

    async def write(self) -> None:
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        rows = [
            {
                **dict(zip(("model", "shadow", "version"), key, strict=True)),
                "process": self.process,
                "at_s": self._clock(),
                **asdict(self._sums[key]),
            }
            for key in changed
        ]

        def put(connection: Connection) -> None:
            for row in rows:
                connection.execute(self._access.store.insert_or_update(shadow_figures, row))

        if not await self._commit(put):
            self._changed |= changed


def list_shadows(connection: Connection, model: str) -> list[ShadowFigures]:
    """Of all routers together, one for each pair of releases."""
    row = shadow_figures.c
    found: dict[tuple[int, int], list[ShadowSums]] = {}
    query = sql.select(shadow_figures).where(row.model == model).order_by(row.shadow, row.version)
    for each in connection.execute(query).mappings():
        sums = ShadowSums(**{field.name: each[field.name] for field in fields(ShadowSums)})
        found.setdefault((each["shadow"], each["version"]), []).append(sums)
    return [
        ShadowFigures(shadow, version, reduce(ShadowSums.plus, every))
        for (shadow, version), every in found.items()
    ]
