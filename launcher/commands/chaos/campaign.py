"""Episode after episode: load, a fault under it, then the sheet when everything is at rest again."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from launcher.commands.chaos.arena import KEEPER, POOR, USUAL, set_price
from launcher.commands.chaos.damaged_release import NotNoticed
from launcher.commands.chaos.observation import NotThere, Observer
from launcher.commands.chaos.strikes import strike
from loadtest.chaos.episode import EpisodeResult
from loadtest.chaos.keyed_clients import KeyedClients
from loadtest.chaos.limits import Calm, rest_limit_s, silence_limit_s
from loadtest.chaos.plan import FLOODING
from loadtest.chaos.sheet import (
    Condition,
    of_answers,
    of_condition,
    of_kept,
    of_money,
    of_waits,
    silence_s,
)
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import Target, play
from router.store.database import StoreAway
from router.tenants.tenancy import open_store, tenancy_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from launcher.commands.chaos.arena import Arena
    from loadtest.chaos.plan import Episode, Strike
    from loadtest.results import RequestResult

_PROMPTS = 8
_FLOOD_FACTOR = 10
_AFTER_S = 2.0  # how long the load lasts after a fault is over
_LOOK_PERIOD_S = 0.5
_PATIENCE_S = 300.0  # for what a client asks while nothing is wrong


@dataclass(frozen=True)
class Load:
    """Requests a second for each router, and how long their answers are."""

    per_s: float
    tokens: int
    seconds: float
    recovery_limit_s: float  # beside what a start takes
    # What a request may reserve of a budget, at a micro-dollar a token: the prompts are short.
    prompt_tokens: int = 64


@dataclass
class Campaign:
    """`told` hears of every episode when it is over."""

    arena: Arena
    load: Load
    seed: int
    told: Callable[[EpisodeResult], None]
    texts: dict[str, str] = field(default_factory=dict)
    calm: Calm = field(default_factory=lambda: Calm(0.0, 0.0))
    chance: random.Random = field(init=False)
    _left_regions: int = 0
    _billed: set[str] = field(default_factory=set)  # in episodes before

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    async def run(self, episodes: Iterable[Episode], until_s: float) -> list[EpisodeResult]:
        """As many as begin before `until_s`, on the clock of `time.monotonic`."""
        settings = tenancy_settings(self.arena.folder / "state", self.arena.store_url)
        results = []
        with open_store(settings) as store:
            async with aiohttp.ClientSession() as session:
                observer = Observer(self.arena, store, session)
                before = await self._begin(observer)
                for episode in episodes:
                    if time.monotonic() >= until_s:
                        break
                    results.append(await self._play(episode, observer, before))
                    self.told(results[-1])
        return results

    async def _begin(self, observer: Observer) -> Condition:
        """The undisturbed run: what each prompt is answered with, by either router."""
        await asyncio.to_thread(set_price, self.arena)
        await self._until(lambda: self._are_up(observer), "the second router did not start")
        plan = [self._request(0.1 * number, number, USUAL) for number in range(_PROMPTS)]
        asked, longest_s = set(), 0.0
        for results in await asyncio.gather(*(self._send(url, plan) for url in self.arena.urls)):
            for result in results:
                asked.add(result.request_id)
                longest_s = max(longest_s, silence_s(result))
                if not result.is_answered or self.texts.setdefault(result.kind, result.text) != result.text:
                    raise NotThere(
                        f"an answer without faults is incomplete, or differs between runs: {result}"
                    )
        await self._until(lambda: self._are_billed(observer, asked), "the run without faults was not billed")
        self.calm = Calm(self.arena.start_s, longest_s, crowding())
        return await observer.condition()

    async def _are_billed(self, observer: Observer, asked: set[str]) -> bool:
        self._billed = set((await asyncio.to_thread(observer.money, frozenset())).billed)
        condition = await observer.condition()
        return asked <= self._billed and not condition.in_flight and not condition.used_blocks

    async def _until(self, holds: Callable[[], Awaitable[bool]], complaint: str) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not await holds():
            if time.monotonic() > deadline_s:
                raise NotThere(complaint)
            await asyncio.sleep(_LOOK_PERIOD_S)

    async def _are_up(self, observer: Observer) -> bool:
        try:
            found = await observer.condition()
        except NotThere:
            return False
        return found.replicas_up == len(self.arena.doors) * found.processes["triton"]

    async def _play(self, episode: Episode, observer: Observer, before: Condition) -> EpisodeResult:
        began_s = time.monotonic()
        result = EpisodeResult(episode)
        lasts_s = max(self.load.seconds, episode.over_s + _AFTER_S)
        sending = [
            asyncio.create_task(self._send(url, self._plan(lasts_s, episode))) for url in self.arena.urls
        ]
        sending.append(asyncio.create_task(self._send_keyed(lasts_s, episode)))
        result.struck_s = min(each.at_s for each in episode.strikes)
        striking = await asyncio.gather(*(self._strike(each) for each in episode.strikes))
        result.victim = "; ".join(victim for victim, _ in striking)
        result.violations += [complaint for _, complaint in striking if complaint]
        result.over_s = time.monotonic() - began_s
        for answers in await asyncio.gather(*sending):
            result.requests += answers
        await self._settle(result, observer, before, began_s)
        return result

    async def _strike(self, blow: Strike) -> tuple[str, str]:
        """Whom it hit, and what it should have done and did not."""
        await asyncio.sleep(blow.at_s)
        self._left_regions += blow.fault.name.endswith("-model")
        try:
            return await strike(self.arena, blow), ""
        except NotNoticed as error:
            return "", str(error)

    async def _settle(
        self, result: EpisodeResult, observer: Observer, before: Condition, began_s: float
    ) -> None:
        """Waits until the sheet is clean; what is on it when the limit has passed are violations."""
        ended_s = max(time.monotonic(), began_s + result.over_s)
        while True:
            result.limit_s = rest_limit_s(self.calm, self.load.recovery_limit_s, crowding())
            open_points = [point async for point in self._open_points(result, observer, before)]
            if not open_points or time.monotonic() > ended_s + result.limit_s:
                break
            await asyncio.sleep(_LOOK_PERIOD_S)
        result.recovered_s = time.monotonic() - began_s
        with suppress(*StoreAway):
            self._billed |= (await asyncio.to_thread(observer.money, self._billed)).billed.keys()
        answers = of_answers(result.requests, self.texts, result.episode.may_cut)
        waits = of_waits(result.requests, FLOODING, self._silence_limit_s(result))
        kept: Iterable[str] = ()
        if not result.episode.may_lose_kept(has_redis="redis" in self.arena.backing):
            kept = of_kept(result.requests, KEEPER)
        result.violations += [*open_points, *answers, *kept, *waits]

    def _silence_limit_s(self, result: EpisodeResult) -> float:
        """Where no replica may be left, what is told waits until one is there again."""
        held_s = result.over_s - result.struck_s
        if result.episode.takes_all_replicas:
            return held_s + result.limit_s
        return silence_limit_s(self.calm, held_s, crowding())

    async def _open_points(
        self, result: EpisodeResult, observer: Observer, before: Condition
    ) -> AsyncIterator[str]:
        try:
            for point in of_condition(before, await observer.condition(self._left_regions)):
                yield point
            money = await asyncio.to_thread(observer.money, self._billed)
        except (NotThere, *StoreAway) as error:
            yield str(error)
            return
        for point in of_money(result.requests, money, result.episode.may_cut):
            yield point

    def _plan(self, lasts_s: float, episode: Episode) -> list[PlannedRequest]:
        """The usual load; beside it one poor tenant, and during a flood the one that floods."""
        count = int(self.load.per_s * lasts_s)
        plan = [
            self._request((number + self.chance.random()) / self.load.per_s, number, USUAL)
            for number in range(count)
        ]
        plan += [self._request(second + 0.5, second, POOR) for second in range(int(lasts_s))]
        for blow in episode.strikes:
            if blow.fault.name == FLOODING:
                flood = int(self.load.per_s * _FLOOD_FACTOR * blow.holds_s)
                plan += [
                    self._request(blow.at_s + number / flood * blow.holds_s, number, FLOODING)
                    for number in range(flood)
                ]
        return sorted(plan, key=lambda each: each.at_s)

    async def _send_keyed(self, lasts_s: float, episode: Episode) -> list[RequestResult]:
        """One request a second, through either router."""
        plan = [self._request(second + 0.2, second, KEEPER) for second in range(int(lasts_s))]
        arena = self.arena
        name, key = f"{self.seed}-{episode.number}", arena.keys[KEEPER]
        return await KeyedClients(arena.urls, arena.model, key, name, lasts_s + _PATIENCE_S).play(plan)

    def _request(self, at_s: float, number: int, tenant: str) -> PlannedRequest:
        prompt = f"Number {number % _PROMPTS}: tell me about it."
        return PlannedRequest(at_s, prompt, self.load.tokens, kind=str(number % _PROMPTS), tenant=tenant)

    async def _send(self, url: str, plan: Sequence[PlannedRequest]) -> list[RequestResult]:
        results: list[RequestResult] = []
        gives_up_s = (plan[-1].at_s if plan else 0.0) + _PATIENCE_S
        target = Target(
            url, self.arena.model, self.arena.keys, tells_tier=False, gives_up_s=gives_up_s, keeps_text=True
        )
        await play(target, plan, time.perf_counter(), results.append)
        return results


def crowding() -> float:
    """How many processes want to run on each processor, over the last minute; 1 where there is room."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
