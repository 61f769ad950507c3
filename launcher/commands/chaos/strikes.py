"""What each fault does to the stack, and how it is undone."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from launcher.commands.chaos.arena import model_of
from launcher.commands.chaos.damaged_release import want_damaged_release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from launcher.commands.chaos.arena import Arena
    from loadtest.chaos.links import Link
    from loadtest.chaos.plan import Strike

    Act = Callable[[Arena, Strike], Awaitable[str]]

_DELAY_S = 0.3
_NO_LIMIT = (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)


async def strike(arena: Arena, blow: Strike) -> str:
    """Does it, and undoes what does not undo itself; the answer names the victim."""
    return await ACTS[blow.fault.name](arena, blow)


async def _signal(arena: Arena, blow: Strike, kind: str) -> str:
    """Kills a process of a kind, or stops it for as long as the fault holds."""
    victims = sorted(arena.by_kind()[kind], key=lambda each: each.pid)
    if not victims:
        return f"no {kind} was running"
    victim = victims[blow.one_of(len(victims))]
    name = f"{model_of(victim) if kind == 'model' else kind} ({victim.pid})"
    with suppress(psutil.NoSuchProcess):
        if not blow.holds_s:
            victim.send_signal(signal.SIGKILL)
            return name
        victim.send_signal(signal.SIGSTOP)
        await asyncio.sleep(blow.holds_s)
        victim.send_signal(signal.SIGCONT)
    return name


def _of_kind(kind: str) -> Act:
    async def act(arena: Arena, blow: Strike) -> str:
        return await _signal(arena, blow, kind)

    return act


def _to_router(arena: Arena) -> tuple[str, list[Link]]:
    return "router", arena.links


def _to_triton(arena: Arena) -> tuple[str, list[Link]]:
    return "Triton server", arena.triton_links


def _drop(links_of: Callable[[Arena], tuple[str, list[Link]]]) -> Act:
    async def act(arena: Arena, blow: Strike) -> str:
        name, links = links_of(arena)
        number = blow.one_of(len(links))
        return f"{links[number].drop() // 2} connections to {name} {number}"

    return act


def _delay(links_of: Callable[[Arena], tuple[str, list[Link]]]) -> Act:
    async def act(arena: Arena, blow: Strike) -> str:
        name, links = links_of(arena)
        number = blow.one_of(len(links))
        links[number].delay_s = _DELAY_S
        await asyncio.sleep(blow.holds_s)
        links[number].delay_s = 0.0
        return f"{name} {number}"

    return act


async def _fill_disk(arena: Arena, blow: Strike) -> str:
    routers = sorted(arena.by_kind()["router"], key=lambda each: each.pid)
    if not routers:
        return "no router was running"
    router = routers[blow.one_of(len(routers))]
    with suppress(psutil.NoSuchProcess):
        router.rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
        await asyncio.sleep(blow.holds_s)
        router.rlimit(psutil.RLIMIT_FSIZE, _NO_LIMIT)
    return f"router ({router.pid})"


def _kill_backing(name: str) -> Act:
    async def act(arena: Arena, blow: Strike) -> str:
        server = arena.backing[name]
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(blow.holds_s)
        await asyncio.to_thread(server.start)
        return name

    return act


def _freeze_backing(name: str) -> Act:
    async def act(arena: Arena, blow: Strike) -> str:
        server = arena.backing[name]
        server.freeze()
        await asyncio.sleep(blow.holds_s)
        server.go_on()
        return name

    return act


async def _skew_clock(arena: Arena, blow: Strike) -> str:
    skew = "+1h" if blow.chance < 0.5 else "-1h"
    file = arena.folder / "skew"
    file.write_text(skew)
    await asyncio.sleep(blow.holds_s)
    file.write_text("+0")
    return f"the second router, by {skew}"


async def _break_release(arena: Arena, blow: Strike) -> str:
    return await want_damaged_release(arena)


async def _nothing(arena: Arena, blow: Strike) -> str:
    """The load does it."""
    await asyncio.sleep(blow.holds_s)
    return "the tenant that floods"


ACTS: dict[str, Act] = {
    **{f"{verb}-{kind}": _of_kind(kind) for verb in ("kill", "freeze") for kind in ("triton", "model")},
    **{f"{verb}-{kind}": _of_kind(kind) for verb in ("kill", "freeze") for kind in ("engine", "router")},
    **{f"kill-{name}": _kill_backing(name) for name in ("postgres", "redis")},
    **{f"freeze-{name}": _freeze_backing(name) for name in ("postgres", "redis")},
    "drop-clients": _drop(_to_router),
    "delay-clients": _delay(_to_router),
    "drop-triton": _drop(_to_triton),
    "delay-triton": _delay(_to_triton),
    "full-disk": _fill_disk,
    "skew-clock": _skew_clock,
    "broken-release": _break_release,
    "flood": _nothing,
}
