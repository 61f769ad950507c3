"""A board in memory for several routers, which may be away."""

from __future__ import annotations

from collections.abc import Mapping

from router.control.peers.board import BoardAway


class FakeBoard:
    def __init__(self) -> None:
        self.told: dict[str, bytes] = {}
        self.is_away = False

    async def swap(self, router: str, told: bytes) -> Mapping[str, bytes]:
        if self.is_away:
            self.told.clear()  # so it is when it comes back, for words do not last
            raise BoardAway("it is away")
        self.told[router] = told
        return {name: word for name, word in self.told.items() if name != router}

    async def close(self, router: str) -> None:
        self.told.pop(router, None)
