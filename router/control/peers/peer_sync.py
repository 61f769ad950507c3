"""Tells other routers four times a second what is used here, and takes into account what they use.

Requests never wait for it. While no other router is heard each counts alone: all of a limit, all slots.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from typing import TYPE_CHECKING

from router.admission.capacity import UNLIMITED
from router.control.peers.board import LASTS_S, BoardAway, RedisBoard
from router.control.peers.message import Message, decode, encode
from router.control.peers.slots import Load, PeerLoads
from router.tenants.shared_usage import Others

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.admission.gates import Gates
    from router.control.peers.board import Board
    from router.tenants.ledger import Ledger

log = logging.getLogger(__name__)

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 1.0


class PeerSync:
    """One a router; `is_reachable` tells whether the last message got through.

    What others report of releases goes into `loads`, which the gates read.
    """

    def __init__(
        self,
        board: Board,
        ledger: Ledger,
        gates: Gates | None = None,
        loads: PeerLoads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loads = loads or new_loads()
        self.name = self._loads.name
        self.is_reachable = False
        self._board = board
        self._ledger = ledger
        self._gates = gates
        self._clock = clock
        self._others = Others()
        self._heard_s = clock()
        self._is_told = False  # that it is away, or has come back
        self._strange: set[str] = set()

    @property
    def other_routers(self) -> int:
        return self._others.count

    async def run(self) -> None:
        """Until it is cancelled; then the others know at once that it is gone."""
        pause_s = PERIOD_S
        try:
            while True:
                began_s = self._clock()
                pause_s = PERIOD_S if await self.swap() else min(2 * pause_s, _LONGEST_PAUSE_S)
                await asyncio.sleep(max(pause_s - (self._clock() - began_s), 0.0))
        finally:
            await self._board.close(self.name)

    async def swap(self) -> bool:
        """One round; whether it succeeded."""
        try:
            self._loads.own = self._load_of_gates()
            told = encode(Message(self._ledger.used(self._now_ns()), dict(self._loads.own)))
            heard = await self._board.swap(self.name, told)
        except BoardAway as error:
            self._lost(str(error))
        except Exception:
            log.exception("shared usage could not be sent to the other routers")
            self._lost("see above")
        else:
            self._hear(self._decoded(heard))
        if self._gates is not None:
            self._gates.refresh()
        return self.is_reachable

    def _now_ns(self) -> int:
        return int(self._clock() * 1e9)

    def _load_of_gates(self) -> dict[str, Load]:
        loads = {}
        for gate in () if self._gates is None else self._gates.values():
            if gate.capacity.slots < UNLIMITED:
                signals = gate.signals()
                load = Load(gate.taken_slots, sum(signals.waiting.values()), signals.kv_reserved_tokens)
                loads[f"{gate.model}@{gate.release}"] = load
        return loads

    def _hear(self, messages: Mapping[str, Message]) -> None:
        if not self.is_reachable:
            log.info("Redis is reachable: limits and slots are shared with %d other routers", len(messages))
        self.is_reachable = True
        self._heard_s = self._clock()
        charges = self._others.hear({router: message.used for router, message in messages.items()})
        self._ledger.share(self._others, charges, self._now_ns())
        self._loads.others = {}
        for router, message in messages.items():
            for release, load in message.loads.items():
                self._loads.others.setdefault(release, {})[router] = load

    def _lost(self, why: str) -> None:
        """For a moment what was heard last holds; then this router counts alone."""
        if self.is_reachable or not self._is_told:
            log.warning(
                "Redis is unreachable; until it is back this router counts limits and slots alone: %s", why
            )
        self.is_reachable, self._is_told = False, True
        if self._clock() - self._heard_s > LASTS_S:
            self._others = Others()
            self._ledger.share(None, (), self._now_ns())
            self._loads.others = {}

    def _decoded(self, heard: Mapping[str, bytes]) -> dict[str, Message]:
        messages = {}
        for router, told in heard.items():
            try:
                messages[router] = decode(told)
            except ValueError as error:
                if router not in self._strange:
                    log.warning("the message from router %s could not be read: %s", router, error)
                    self._strange.add(router)
        self._strange &= heard.keys()
        return messages


def open_board(url: str, deployment: str) -> RedisBoard:
    """`deployment` is the same for routers that share a store, and says nothing else of it."""
    return RedisBoard(url, hashlib.sha256(deployment.encode()).hexdigest()[:12])


def new_loads() -> PeerLoads:
    """Of a router with a name of its own."""
    return PeerLoads(secrets.token_hex(8))
