"""Finds Triton servers that come and go: all addresses of a DNS name, or those in a file."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.routing.replicas import Fleet
    from router.triton.server import TritonServer

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# Whoever has left and still has work after so long is left alone with it: the work goes on elsewhere.
LONGEST_LEAVE_S = 600.0
# The last one that serves a release may be gone soon: it is kept for newcomers for so long at most.
LONGEST_STAY_S = 20.0
_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")


class Place(Protocol):
    """Where addresses of servers are found."""

    async def find(self) -> Collection[str]:
        """Each as HOST:PORT; raises OSError or ValueError where they cannot be told."""


@dataclass(frozen=True)
class DnsName:
    """A headless service of Kubernetes, say, has one address for each pod that is ready."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"dns:///{self.host}:{self.port}"

    async def find(self) -> Collection[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        hosts = {str(address[0]) for *_, address in found}
        return {f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in hosts}


@dataclass(frozen=True)
class AddressFile:
    """One HOST:PORT a line; # begins a remark. Whoever writes it replaces it as a whole."""

    path: Path

    def __str__(self) -> str:
        return f"file://{self.path}"

    async def find(self) -> Collection[str]:
        text = await asyncio.to_thread(self.path.read_text, encoding="utf-8")
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        found = {line for line in lines if line}
        if wrong := [line for line in found if not _ADDRESS.fullmatch(line)]:
            raise ValueError(f"{min(wrong)!r} is not HOST:PORT")
        return found


def place_of(url: str) -> Place | None:
    """None where the url is the address of one server."""
    if url.startswith("dns:///"):
        host, _, port = url.removeprefix("dns:///").rpartition(":")
        return DnsName(host.strip("[]"), int(port))
    return AddressFile(Path(url.removeprefix("file://"))) if url.startswith("file:///") else None


@dataclass(frozen=True)
class Sought:
    """Servers to look for, and how one is made of its address."""

    place: Place
    new: Callable[[str], TritonServer]


@dataclass
class Member:
    server: TritonServer
    left_s: float | None = None  # since when it is sent nothing more, because it is found no more
    missed_s: float | None = None  # since when it is found no more, and needed until others are ready


class Discovery:
    """Servers that are found join the fleet; those that are found no more leave it when their work is done.

    A place that cannot be asked, or knows nobody, says nothing about the servers: they stay. A name server
    that is away must not take down what serves.
    """

    def __init__(
        self, fleet: Fleet, sought: Sequence[Sought], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._sought = tuple(sought)
        self._clock = clock
        self._members: list[dict[str, Member]] = [{} for _ in sought]
        self._troubles: dict[Place, str] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while self._sought:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except Exception:
                log.exception("the lookup of Triton servers failed; retrying in a moment")

    async def look(self) -> None:
        for sought, members in zip(self._sought, self._members, strict=True):
            found = await self._find(sought.place)
            if found:
                self._follow(sought, members, found)
            await self._let_go(members)

    async def close(self) -> None:
        servers = {each.server for members in self._members for each in members.values()}
        for server in {*servers, *self._fleet.servers}:
            await server.close()

    async def _find(self, place: Place) -> Collection[str]:
        try:
            found = await place.find()
            trouble = "" if found else "no Triton server found"
        except (OSError, ValueError) as error:
            found, trouble = (), f"Triton servers cannot be looked up: {error}"
        if trouble != self._troubles.get(place, ""):
            log.warning("%s: %s", place, trouble or "found again")
        self._troubles[place] = trouble
        return found

    def _follow(self, sought: Sought, members: dict[str, Member], found: Collection[str]) -> None:
        for url in sorted(found):
            member = members.get(url)
            if member is None:
                member = members[url] = Member(sought.new(url))
            else:
                member.missed_s = None
                if member.left_s is None:
                    continue
            member.left_s = None
            log.info("%s: %s joins", sought.place, url)
            self._fleet.join(member.server)
        for url, member in members.items():
            if url not in found and member.left_s is None and self._may_leave(sought, url, member):
                log.info("%s: %s leaves when its requests are done", sought.place, url)
                member.left_s = self._clock()
                self._fleet.leave(member.server)

    def _may_leave(self, sought: Sought, url: str, member: Member) -> bool:
        """Newcomers are sent nothing until they are ready: so long the last one that serves stays."""
        if self._fleet.can_spare(member.server):
            return True
        now_s = self._clock()
        if member.missed_s is None:
            log.info("%s: %s leaves when another server can replace it", sought.place, url)
            member.missed_s = now_s
        return now_s - member.missed_s > LONGEST_STAY_S

    async def _let_go(self, members: dict[str, Member]) -> None:
        for url, member in [(url, each) for url, each in members.items() if each.left_s is not None]:
            replicas = self._fleet.replicas_on(member.server)
            if member.left_s is not None and self._clock() - member.left_s > LONGEST_LEAVE_S:
                for replica in replicas:
                    replica.cut_all("its server is gone")
            elif not all(each.is_drained for each in replicas):
                continue
            del members[url]
            self._fleet.drop(member.server)
            await member.server.close()
            log.info("%s is gone", url)
