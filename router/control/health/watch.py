"""Watches one release on one Triton server: asks its models every second whether they live."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from router.control.health.background import Background
from router.control.health.pings import one_token, pings_of
from router.control.health.vital_signs import (
    LIVELY,
    NEVER_S,
    ProbeLimits,
    Pulse,
    counts_as_missed,
    is_broken,
    is_server_gone,
    is_silent,
    says_away,
    says_dead,
)
from router.core.manifest import Kind
from router.grpc.status import GrpcError, StatusCode
from router.triton.control import ControlError
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from router.control.health.pings import Ping
    from router.routing.replicas import Replica

log = logging.getLogger(__name__)

# So many pings of a model may be without an answer.
_MOST_OPEN = 4
_SERVER = ""
_GENERATION, _EPOCHS = "one token", "epochs"
_DIED = "a process of the model died"
_ENGINE_DIED = "its engine process died and is being started again"
_NO_WORD = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED})


class Watch:
    """`broken` are the Triton models that must be loaded again; `name` says which release, and where.
    `on_death` is told each time that its processes die or freeze after they were well.

    A ping belongs to the life of the model in which it was sent: what a model answered before it was given
    up counts neither for nor against its replacement.
    """

    def __init__(
        self,
        replica: Replica,
        limits: ProbeLimits,
        on_broken: Callable[[Watch], None],
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[Replica, str], None] = lambda replica, why: None,
    ) -> None:
        self._on_death = on_death
        self.replica = replica
        self.name = repr(replica)
        self.release = replica.manifest.name
        self.control = replica.server.control
        self.broken: set[str] = set()
        self._limits = limits
        self._on_broken = on_broken
        self._clock = clock
        self._pings = pings_of(replica.manifest)
        self._pulses: dict[str, Pulse] = {}
        self._answered: set[str] = set()  # in this life
        self._life = 0
        self._is_down = False
        self._is_awaited = False  # down, and someone is expected to revive it
        self._is_reviving = False  # the broken ones are being loaded
        self._mute: set[str] = set()  # broken, although it answers pings
        self._epochs: dict[str, str] = {}
        self._generations = 0
        self._generated_s = NEVER_S
        self._background = Background(_MOST_OPEN)

    def probe(self) -> None:
        """Sends one ping to each; what they come to is dealt with as it comes."""
        self._background.start(_SERVER, self._ask_server())
        if not self.replica.is_loaded:
            return
        self._learn_from_requests()
        for model, ping in self._pings.items():
            if not (self._is_reviving and model in self.broken):
                self._background.start(model, self._ask(model, ping))
        self._listen()
        if self._mute and not self._is_reviving:
            self._background.start(_EPOCHS, self._look_for_new_lives())

    async def close(self) -> None:
        await self._background.close()

    # For the reviver

    def revival_begins(self) -> None:
        self._is_reviving = True
        self._mark_down(_DIED, reviving=True)

    def revival_failed(self) -> None:
        self._is_reviving = False

    def revived(self, models: Collection[str]) -> None:
        """These were loaded again; whether they live now their next pings must tell."""
        self.replica.revivals += len(models)
        self._is_reviving = False
        self.broken.difference_update(models)
        self._mute.difference_update(models)
        self._begin_life()
        self.probe()

    # Triton itself

    async def _ask_server(self) -> None:
        sent_s, life = self._clock(), self._life
        timer = self._when_late(_SERVER, sent_s, life)
        try:
            is_ready = await self._is_entry_ready()
        except GrpcError as error:
            if error.code is StatusCode.UNAVAILABLE and life == self._life:
                self.replica.is_loaded = False
                self._forget()
                self._mark_down("Triton is unreachable", server_is_gone=True)
            return
        finally:
            timer.cancel()
        self._pulses[_SERVER] = LIVELY
        was_loaded, self.replica.is_loaded = self.replica.is_loaded, is_ready
        if not is_ready:
            self._forget()
        elif not was_loaded:
            self._background.start(_EPOCHS, self._look_for_new_lives(is_first_look=True))
        self._mark_up_if_well()

    async def _is_entry_ready(self) -> bool:
        """Asks again where a connection was lost: the server may have been about to close it."""
        request = service_pb2.ModelReadyRequest(name=self.replica.manifest.entry)
        connection, answer = self.replica.server.connection, service_pb2.ModelReadyResponse
        try:
            reply = await connection.call("ModelReady", request, answer, self._limits.silence_s)
        except GrpcError as error:
            if error.code is not StatusCode.UNAVAILABLE:
                raise
            reply = await connection.call("ModelReady", request, answer, self._limits.silence_s)
        return bool(reply.ready)

    def _forget(self) -> None:
        """It is not loaded, so there is nothing to be known, and nothing to be revived."""
        if self.broken or self._pulses.keys() - {_SERVER}:
            self.broken.clear()
            self._mute.clear()
            self._begin_life()

    # Its models

    async def _ask(self, model: str, ping: Ping) -> None:
        sent_s, life = self._clock(), self._life
        timer = self._when_late(model, sent_s, life)
        error: GrpcError | None = None
        try:
            await ping.send(self.replica.server.connection, self._limits.silence_s)
        except GrpcError as caught:
            error = caught
        finally:
            timer.cancel()
        if life != self._life or not self.replica.is_loaded:  # meanwhile: nobody is to load it again
            return
        if error is not None and says_dead(error.details):
            self._pulses[model] = self._pulse(model).after_death()
            self._judge(model)
        elif error is not None and says_away(error.details):
            self._wait_for_engine(model)
        elif error is None or error.code not in _NO_WORD:
            self._hear(model)

    def _hear(self, model: str) -> None:
        was_late = self._pulse(model).missed > 0
        self._pulses[model] = LIVELY
        self._answered.add(model)
        if not (self._is_reviving or model in self._mute):
            self.broken.discard(model)
        self._mark_up_if_well()
        if was_late:
            # Someone else may have revived it before we were sure.
            self._background.start(_EPOCHS, self._look_for_new_lives())

    def _when_late(self, model: str, sent_s: float, life: int) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(self._limits.late_s, self._miss, model, sent_s, life)

    def _miss(self, model: str, sent_s: float, life: int) -> None:
        if life == self._life and counts_as_missed(sent_s, self._clock(), self._limits):
            is_heard_of = model == _SERVER or self._pings[model].is_heard_of
            heard_s = self.replica.last_progress_s if is_heard_of else NEVER_S
            self._pulses[model] = self._pulse(model).after_miss(sent_s, heard_s)
            self._judge(model)

    def _judge(self, model: str) -> None:
        replica, pulse = self.replica, self._pulse(model)
        if model == _SERVER:
            if is_server_gone(pulse, self._limits):
                self._mark_down("Triton does not answer", server_is_gone=True)
            return
        patience_s = self._limits.patience_s(self._pings[model].queue, replica.open_count > 0)
        missed = self._pulse(_SERVER).missed
        if is_broken(pulse, self._clock(), patience_s, missed, self._limits):
            self._break(model, _DIED if pulse.is_dead else "the model does not answer")

    # Work that is not heard of

    def _listen(self) -> None:
        now_s, replica = self._clock(), self.replica
        if self._is_down or replica.manifest.kind is not Kind.TEXT or replica.manifest.base:
            return  # the engine of an adapter is its base's, which is listened to there
        heard_s = max(replica.heard_s, self._generated_s)
        if is_silent(now_s, replica.busy_since_s, heard_s, self._limits):
            self._generated_s = now_s + self._limits.one_token_s  # not again before this one is over
            self._background.start(_GENERATION, self._generate_one_token())

    async def _generate_one_token(self) -> None:
        self._generations += 1
        began_s, life, replica = self._clock(), self._life, self.replica
        log.warning("%s: no progress on its %d requests for too long", self.name, replica.open_count)
        ping = one_token(replica.manifest, self._generations)
        try:
            await ping.send(replica.server.connection, self._limits.one_token_s)
        except GrpcError as error:
            if error.code is StatusCode.DEADLINE_EXCEEDED:
                is_heard = replica.heard_s >= began_s or self._pulse(_SERVER).missed > 0
                if life == self._life and replica.open_count and not is_heard:
                    engine = replica.manifest.engine or replica.manifest.entry
                    if self.control.can_control:
                        self._mute.add(engine)
                    self._break(engine, "the model generates nothing")
                return
        await self._look_for_new_lives()

    async def _look_for_new_lives(self, is_first_look: bool = False) -> None:
        """Requests in flight in a process that another router has replaced would hang for ever."""
        if not self.control.can_control:
            return
        life, before = self._life, dict(self._epochs)
        try:
            found = {model: await self.control.epoch(model) for model in self._pings}
        except ControlError as error:
            log.warning("%s: whether its models were loaded again is unknown: %s", self.name, error)
            return
        self._epochs = found
        if is_first_look or life != self._life or not before or found == before:
            return
        self._mute.clear()
        if not self._is_down:
            self.replica.cut_all("the model was loaded again")

    def _learn_from_requests(self) -> None:
        """They say that a process is gone: pings tell which; where there are none it is the entry's."""
        health = self.replica.health
        if health.is_reviving and not self._is_down:
            self._is_down, self._is_awaited = True, False
            self._answered.clear()
            self._on_death(self.replica, _DIED)
            if not self._pings:
                self.broken.add(self.replica.manifest.entry)
            self.replica.cut_all(_DIED)
        elif health.is_up and self._is_down:  # they have tried, and it went well
            self._is_down = False
            self.broken.clear()

    # Down and up

    def _break(self, model: str, why: str) -> None:
        if model not in self.broken:
            log.error("%s: %s: %s", self.name, model, why)
            self.broken.add(model)
        if not self._is_down:  # what else breaks until it is up again belongs to the same death
            self._on_death(self.replica, why)
        self._mark_down(why, reviving=self.control.can_control)
        self._on_broken(self)

    def _wait_for_engine(self, model: str) -> None:
        """Its owner starts another by itself; until it answers there is nothing to be done."""
        if not self._is_down:
            log.error("%s: %s: %s", self.name, model, _ENGINE_DIED)
            self._on_death(self.replica, _ENGINE_DIED)
        self._answered.discard(model)
        self._mark_down(_ENGINE_DIED, reviving=True)

    def _mark_down(self, why: str, reviving: bool = False, server_is_gone: bool = False) -> None:
        """Says so once, and once more where it is worth waiting for now, or is not any more."""
        is_news = not self._is_down
        if is_news or reviving != self._is_awaited:
            self._is_down, self._is_awaited = True, reviving
            self.replica.mark_down(why, self._clock(), reviving, server_is_gone)
        if is_news:
            self.replica.cut_all(why)
            self._begin_life()

    def _mark_up_if_well(self) -> None:
        is_well = self.replica.is_loaded and not self.broken and self._answered >= self._pings.keys()
        if self._is_down and is_well and not self._is_reviving:
            self._is_down = False
            self.replica.mark_up(self._clock())
            self._background.start(_EPOCHS, self._look_for_new_lives(is_first_look=True))

    def _begin_life(self) -> None:
        self._life += 1
        self._answered.clear()
        self._pulses.clear()

    def _pulse(self, model: str) -> Pulse:
        return self._pulses.get(model, LIVELY)
