"""A rehearsal: both releases of a rollout measured on the same prompts before the canary has any traffic."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.control.releases.inspection import scrub
from router.control.releases.own_prompt import SENTENCE, ask
from router.control.releases.paired_times import (
    MOST_PAIRS,
    PairedTimes,
    Standing,
    standing,
    standing_of_all,
)
from router.core.generation import Failure
from router.core.manifest import Kind
from router.routing.replay import is_replicas_fault
from router.triton.failures import TritonError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from router.control.releases.own_prompt import Generates
    from router.core.manifest import Manifest

log = logging.getLogger(__name__)

# Fewer where a round takes long: more pairs tell more than longer answers.
_TOKENS, _FEW_TOKENS = 16, 8
_LONG_ROUND_S = 4.0
_TIMEOUT_S = 30.0
# A prompt that one release answers in this part of the time limit, the other should answer in time.
_MUCH_QUICKER = 4
# What the other release does meanwhile, again and again.
COMPANION_TOKENS = 256
_COMPANION_WITHIN_S = 1.0
# No pair is begun after that: a rehearsal that takes longer decides from what it has.
_MOST_S = 90.0
_NOTHING = "the comparison timed out"
# A canary that does not answer what the stable release does, so often, is not slow but broken.
_MOST_UNANSWERED = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one round: how long its prompts are, and how many are asked at once."""

    sentences: int
    at_once: int = 1

    def prompts(self) -> list[str]:
        """Each with an opening of its own: nothing of it is in a cache."""
        return [f"{secrets.token_hex(6)}. {SENTENCE * self.sentences}And" for _ in range(self.at_once)]


# One of them is read in pieces, and two at once share the steps of the engine.
SHAPES = (Shape(1), Shape(12), Shape(4), Shape(1, at_once=2))


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What came of it; an `objection` is why the canary is to meet nobody."""

    first_token: PairedTimes = field(default_factory=PairedTimes)
    between_tokens: PairedTimes = field(default_factory=PairedTimes)
    objection: str = ""
    note: str = ""
    memory_bytes: tuple[int, int] | None = None  # that each of them is said to need, the canary's first

    @property
    def figures(self) -> dict[str, Any]:
        """For people, in the rollout's figures."""
        found: dict[str, Any] = {"note": self.note, "line": self.line}
        for name, times in (("first_token", self.first_token), ("between_tokens", self.between_tokens)):
            if times.pairs:
                found[name] = {
                    "pairs": len(times.pairs),
                    "ratio": round(times.ratio, 3),
                    "canary_s": round(times.canary_s, 6),
                    "stable_s": round(times.stable_s, 6),
                }
        if self.memory_bytes is not None:
            found["memory_bytes"] = dict(zip(("canary", "stable"), self.memory_bytes, strict=True))
        return found

    @property
    def line(self) -> str:
        """Empty where nothing was measured and nothing is to be said of it."""
        parts = [
            f"{what} {times.ratio:.2f} times"
            for what, times in (("first token", self.first_token), ("between tokens", self.between_tokens))
            if times.pairs
        ]
        parts += [f"{len(self.first_token.pairs)} pairs"] if parts else []
        parts += [self.note] if self.note else []
        if parts and self.memory_bytes is not None:
            canary_mb, stable_mb = (count / 1e6 for count in self.memory_bytes)
            parts.append(f"needs {canary_mb:,.0f} MB of memory against {stable_mb:,.0f} MB")
        return f"before traffic: {', '.join(parts)}" if parts else ""


class RehearsalBroken(Exception):
    """The canary is not there; once it is, it can be tried again."""


class Unanswered(Exception):
    """A release did not answer a prompt by its own doing; the message says how."""


class RehearsalStage:
    """Asks one round at a time, with the lowest priority: the stable release serves users meanwhile.

    Where both share a machine, the canary has its users beside it and the stable release has nobody: it would
    seem faster for that alone. So whichever is measured, the other one answers a prompt at the same time.
    """

    def __init__(
        self,
        pipeline_of: Callable[[Manifest], Generates],
        clock: Callable[[], float] = time.monotonic,
        most_s: float = _MOST_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._pipeline_of = pipeline_of
        self._clock = clock
        self._most_s = most_s
        self._timeout_s = timeout_s

    async def compare(self, canary: Manifest, stable: Manifest, allowed_ratio: float) -> Rehearsed:
        """Raises RehearsalBroken."""
        if canary.kind is not Kind.TEXT:
            return Rehearsed()
        measuring = self._measure(canary, stable, allowed_ratio)
        try:
            return await asyncio.wait_for(measuring, self._most_s + 2 * self._timeout_s)
        except asyncio.TimeoutError:
            return Rehearsed(note=_NOTHING)

    async def _measure(self, canary: Manifest, stable: Manifest, allowed_ratio: float) -> Rehearsed:
        warm_until_s, until_s = (self._clock() + part * self._most_s for part in (0.25, 1.0))
        found, unanswered, number = Rehearsed(memory_bytes=_memory(canary, stable)), 0, -len(SHAPES)
        shapes, tokens = list(SHAPES), _FEW_TOKENS
        while shapes and number < MOST_PAIRS and self._clock() < until_s:
            shape = shapes[number % len(shapes)]
            began_s = self._clock()
            try:
                # The first round of each shape is for what is done once, and is not counted.
                times = await self._round(canary, stable, shape.prompts(), tokens, _is_swapped(number))
                found = _with(found, times) if number >= 0 else found
            except Unanswered as error:
                unanswered += 1
                if unanswered >= _MOST_UNANSWERED:
                    return replace(found, objection=_objection_to_silence(canary, stable, error))
            except (InflightError, asyncio.TimeoutError) as error:
                if _is_too_long(error):
                    shapes.remove(shape)
                    continue
                log.info("%s did not answer in its comparison with %s: %s", stable.name, canary.name, error)
            number += 1
            if number < 0 and self._clock() > warm_until_s:
                number = 0
            tokens = _TOKENS if self._clock() - began_s < _LONG_ROUND_S else _FEW_TOKENS
            times_so_far = (found.first_token, found.between_tokens)
            if standing_of_all(times_so_far, allowed_ratio) is not Standing.OPEN:
                break
        if not found.first_token.pairs:
            return replace(found, note=_NOTHING)
        return _judged(found, canary, stable, allowed_ratio)

    async def _round(
        self, canary: Manifest, stable: Manifest, prompts: Sequence[str], tokens: int, is_swapped: bool
    ) -> tuple[_Times, _Times]:
        async def ask_stable() -> _Times:
            async with self._companion(canary):
                return await self._ask(stable, prompts, tokens)

        async def ask_canary() -> _Times:
            async with self._companion(stable):
                return await self._ask_canary(canary, prompts, tokens)

        usual = await ask_stable() if is_swapped else None
        try:
            new = await ask_canary()
        except Unanswered:
            usual = usual or await ask_stable()
            if usual.whole_s * _MUCH_QUICKER > self._timeout_s:
                raise asyncio.TimeoutError from None  # it is the machine that is slow
            raise
        return new, usual or await ask_stable()

    @asynccontextmanager
    async def _companion(self, manifest: Manifest) -> AsyncIterator[None]:
        """This release is busy for as long; where it cannot be, it is not what is measured now."""
        is_busy, is_over = asyncio.Event(), asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._keep_busy(manifest, is_busy, is_over))
        beginning = asyncio.ensure_future(is_busy.wait())
        try:
            await asyncio.wait(
                [task, beginning], timeout=_COMPANION_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            yield
        finally:
            is_over.set()
            beginning.cancel()
            task.cancel()
            await asyncio.wait([task])

    async def _keep_busy(self, manifest: Manifest, is_busy: asyncio.Event, is_over: asyncio.Event) -> None:
        """Looks at `is_over` too: where an answer ends just then, a cancellation may be lost on the way."""
        pipeline = self._pipeline_of(manifest)
        (prompt,) = SHAPES[0].prompts()
        with suppress(InflightError, asyncio.TimeoutError):
            while not is_over.is_set():
                await ask(
                    pipeline,
                    prompt,
                    COMPANION_TOKENS,
                    self._timeout_s,
                    tier=Tier.BATCH,
                    ignore_eos=True,
                    on_first_token=is_busy.set,
                )

    async def _ask_canary(self, canary: Manifest, prompts: Sequence[str], tokens: int) -> _Times:
        try:
            return await self._ask(canary, prompts, tokens)
        except TritonError as error:
            if is_replicas_fault(error.failure) and error.failure is not Failure.ENGINE_DIED:
                raise RehearsalBroken(f"{canary.name} is not loaded: {error.said}") from error
            if _is_too_long(error):
                raise
            raise Unanswered(scrub(error.said)) from error
        except asyncio.TimeoutError:
            raise Unanswered(f"no answer within {self._timeout_s:g} s") from None

    async def _ask(self, manifest: Manifest, prompts: Sequence[str], tokens: int) -> _Times:
        own = partial(ask, self._pipeline_of(manifest), clock=self._clock, tier=Tier.BATCH, ignore_eos=True)
        answers = await asyncio.gather(*(own(prompt, tokens, self._timeout_s) for prompt in prompts))
        first_s = sum(each.first_token_s for each in answers) / len(answers)
        gaps = [each.decode_s / (each.tokens - 1) for each in answers if each.tokens > 1]
        whole_s = max(each.whole_s for each in answers)
        return _Times(first_s, sum(gaps) / len(gaps) if gaps else 0.0, whole_s)


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one release in one round; 0 where it cannot be told."""

    first_token_s: float
    between_tokens_s: float
    whole_s: float


def _is_too_long(error: Exception) -> bool:
    return isinstance(error, InflightError) and error.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED


def _is_swapped(number: int) -> bool:
    """Canary first, then stable first: what drifts favours nobody, nor does the order of the shapes."""
    return (number + number // len(SHAPES)) % 2 == 1


def _with(found: Rehearsed, times: tuple[_Times, _Times]) -> Rehearsed:
    new, usual = times
    first, between = found.first_token, found.between_tokens
    if new.first_token_s > 0 and usual.first_token_s > 0:
        first = first.plus(new.first_token_s, usual.first_token_s)
    if new.between_tokens_s > 0 and usual.between_tokens_s > 0:
        between = between.plus(new.between_tokens_s, usual.between_tokens_s)
    return replace(found, first_token=first, between_tokens=between)


def _judged(found: Rehearsed, canary: Manifest, stable: Manifest, allowed_ratio: float) -> Rehearsed:
    slower = [
        (what, times)
        for what, times in (("first token", found.first_token), ("between tokens", found.between_tokens))
        if standing(times, allowed_ratio, is_last=True) is Standing.SLOWER
    ]
    if not slower:
        return found
    said = " and ".join(
        f"{what} {times.canary_s * 1e3:,.1f} ms against {times.stable_s * 1e3:,.1f} ms of {stable.name} "
        f"on the same {len(times.pairs)} prompts ({times.ratio:.1f} times)"
        for what, times in slower
    )
    meant = math.ceil(max(times.ratio for _, times in slower) * 10.2) / 10
    return replace(
        found,
        objection=f"{said}: if that is intended, start the rollout again with --accept-slower {meant:g}x",
    )


def _objection_to_silence(canary: Manifest, stable: Manifest, error: Unanswered) -> str:
    return (
        f"{canary.name} failed to answer {_MOST_UNANSWERED} prompts before it got traffic, "
        f"which {stable.name} answered: {error}"
    )


def _memory(canary: Manifest, stable: Manifest) -> tuple[int, int] | None:
    """As their manifests have it; a model that the stack brings may not say."""
    needs = canary.needs.total_bytes, stable.needs.total_bytes
    return needs if all(needs) else None
