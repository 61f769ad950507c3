"""Lists that are too long for one answer: a page of them, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

Entry = TypeVar("Entry")
Shown = TypeVar("Shown")


class PageQuery(msgspec.Struct, frozen=True):
    """`after` is the id of the last entry that the caller has."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Entry]):
    entries: Sequence[Entry]
    has_more: bool = False

    @classmethod
    def of(cls, entries: Sequence[Entry], limit: int) -> Page[Entry]:
        """From a list that has one more than the limit where there are more."""
        return cls(entries[:limit], len(entries) > limit)

    def rendered(self, show: Callable[[Entry], dict[str, Any]]) -> dict[str, Any]:
        data = [show(entry) for entry in self.entries]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": self.has_more,
        }
