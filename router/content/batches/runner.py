"""Works off all batches of the store, together with the runners of other routers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from python_backend.wire.errors import InflightError
from router.content.batches import claims, rows
from router.content.batches.claims import Answer, Claim, Returned
from router.content.batches.decisions import ENDING, Backlog, Event, Status, TooLate, shares
from router.content.batches.input_check import InputCheck, LostHold
from router.content.batches.line_run import Call, LineRun
from router.content.batches.output_writer import OutputWriter
from router.content.batches.rows import Batch
from router.content.files.rows import sweep
from router.core.tenant import LOCAL, LOCAL_CALLER, Caller
from router.request.identity import check_model_allowed
from router.routing.models import Registry
from router.store.database import StoreAccess
from router.tenants.keys import Keyring

log = logging.getLogger(__name__)

_STAGES_AT_ONCE = 2
_SWEEP_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """`lease_s`: how long after a router's death its lines wait for another one."""

    concurrency: int = 8
    max_body_bytes: int = 1 << 20
    lease_s: float = 60.0
    poll_s: float = 1.0


class BatchRunner:
    """Every turn: put away what was answered, move batches on, and take lines for the places that are free.

    Nothing of a batch is remembered here that is not in the store, but for the lines under way; those are
    held by leases, so that they are run by somebody else if this process ends.
    """

    def __init__(
        self,
        store: StoreAccess,
        models: Registry,
        keyring: Keyring,
        call: Call,
        settings: BatchSettings | None = None,
    ) -> None:
        self._store = store
        self._registry = models
        self._keyring = keyring
        self._call = call
        self._settings = settings or BatchSettings()
        self._worker = f"router-{secrets.token_hex(8)}"
        self._runs: dict[asyncio.Task[None], LineRun] = {}
        self._stages: dict[str, asyncio.Task[None]] = {}
        self._results: list[Answer | Returned] = []
        self._paused_until_s: dict[str, float] = {}
        self._renew_s = self._sweep_s = 0.0
        self._woken = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop().create_task(self._work())

    async def stop(self, grace_s: float = 5.0) -> None:
        """Lets lines end for a moment; those that do not are cut, and given back for others to run."""
        self._stopping = True
        self._woken.set()
        if self._loop is not None:
            await self._loop
        if self._runs:
            await asyncio.wait(self._runs, timeout=grace_s)
        for run in self._runs.values():
            run.cut()
        if self._runs:
            await asyncio.wait(self._runs, timeout=grace_s)
        for task in [*self._runs, *self._stages.values()]:
            task.cancel()
            await asyncio.wait([task])
        if not self._results:
            return
        try:
            await self._store.write(self._put_away)
        except InflightError:
            log.warning("the store is unreachable: the lines answered last will be computed again")

    async def _work(self) -> None:
        while not self._stopping:
            self._woken.clear()
            try:
                await self._turn(time.time())
            except InflightError as error:
                log.warning("batches are waiting: %s", error.message)
                await asyncio.sleep(self._settings.poll_s)
            except Exception:
                log.exception("an iteration of the batch runner failed")
                await asyncio.sleep(self._settings.poll_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._settings.poll_s)

    async def _turn(self, now_s: float) -> None:
        batches = await self._store.read(rows.all_open)
        running = {batch.id: batch for batch in batches if batch.status is Status.IN_PROGRESS}
        for run in self._runs.values():
            if run.claim.batch.id not in running:
                run.cut()
        for batch in batches:
            self._move_on(batch, now_s)
        await self._trade_lines(running, now_s)
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + _SWEEP_EVERY_S
            await self._store.write(partial(sweep, now_s=now_s))

    # Stages

    def _move_on(self, batch: Batch, now_s: float) -> None:
        if batch.id in self._stages or len(self._stages) >= _STAGES_AT_ONCE:
            return
        is_held = batch.worker not in (None, self._worker) and (batch.lease_s or 0) >= now_s
        if batch.status in ENDING:
            if not is_held:
                self._begin_stage(batch, partial(self._write_output, batch))
        elif now_s >= batch.life.expires_s:
            self._begin_stage(batch, partial(self._advance, batch, Event.WINDOW_CLOSED))
        elif batch.status is Status.IN_PROGRESS and not batch.unanswered:
            self._begin_stage(batch, partial(self._advance, batch, Event.ALL_ANSWERED))
        elif batch.status is Status.VALIDATING and not is_held:
            self._begin_stage(batch, partial(self._check_input, batch))

    def _begin_stage(self, batch: Batch, work: Callable[[], Awaitable[bool]]) -> None:
        async def stage() -> None:
            has_moved = False
            try:
                has_moved = await work()
            except (LostHold, TooLate):
                log.info("%s belongs to another router or has ended", batch.id)
            except InflightError as error:
                log.warning("%s is waiting: %s", batch.id, error.message)
            except Exception:
                log.exception("%s cannot make progress", batch.id)
            finally:
                del self._stages[batch.id]
            if has_moved:
                self._woken.set()

        self._stages[batch.id] = asyncio.get_running_loop().create_task(stage())

    async def _advance(self, batch: Batch, event: Event) -> bool:
        await self._store.write(lambda connection: rows.advance(connection, batch.id, event, time.time()))
        return True

    async def _check_input(self, batch: Batch) -> bool:
        def check_model(name: str) -> None:
            find = self._registry.find_embedder if batch.endpoint == "/v1/embeddings" else self._registry.find
            find(name)
            if owner is not None:
                check_model_allowed(owner, name)

        owner = self._owner(batch, time.time())
        settings = self._settings
        await InputCheck(
            self._store, batch, self._worker, settings.lease_s, settings.max_body_bytes, check_model
        ).run()
        return True

    async def _write_output(self, batch: Batch) -> bool:
        return await OutputWriter(self._store, batch, self._worker, self._settings.lease_s).run()

    # Lines

    async def _trade_lines(self, batches: dict[str, Batch], now_s: float) -> None:
        """One transaction for all: answers in, leases renewed, new lines out."""
        wanted = {} if self._stopping else self._wanted(batches, now_s)
        is_renewal = bool(self._runs) and now_s >= self._renew_s
        if not (self._results or wanted or is_renewal):
            return
        lease_s = self._settings.lease_s

        def trade(connection: Connection) -> list[Claim]:
            self._put_away(connection, results)
            mine = {run.claim.batch.id for run in under_way}
            if mine:
                claims.renew(connection, self._worker, mine, now_s, lease_s)
            return [
                claim
                for batch_id, count in wanted.items()
                for claim in claims.take(connection, batches[batch_id], count, self._worker, now_s, lease_s)
            ]

        results, under_way = list(self._results), list(self._runs.values())
        taken = await self._store.write(trade)
        del self._results[: len(results)]
        self._renew_s = now_s + lease_s / 3
        for claim in taken:
            self._begin(LineRun(claim, self._call, self._owner(claim.batch, now_s)))
        if any(isinstance(result, Answer) for result in results):
            self._woken.set()  # it may have been the last one

    def _wanted(self, batches: dict[str, Batch], now_s: float) -> dict[str, int]:
        mine = Counter(run.claim.batch.id for run in self._runs.values())
        mine.update(result.claim.batch.id for result in self._results if isinstance(result, Answer))
        backlogs = [
            Backlog(batch.id, batch.organisation_id, batch.unanswered - mine[batch.id])
            for batch in batches.values()
            if self._paused_until_s.get(batch.organisation_id, 0.0) <= now_s < batch.life.expires_s
        ]
        busy = Counter(run.claim.batch.organisation_id for run in self._runs.values())
        return shares(self._settings.concurrency - len(self._runs), backlogs, busy)

    def _put_away(self, connection: Connection, results: list[Answer | Returned] | None = None) -> None:
        results = self._results if results is None else results
        answers = [result for result in results if isinstance(result, Answer)]
        claims.answer(connection, self._worker, answers)
        returned = [result for result in results if isinstance(result, Returned)]
        claims.give_back(connection, self._worker, returned)

    def _begin(self, run: LineRun) -> None:
        task = asyncio.get_running_loop().create_task(self._run(run))
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)

    async def _run(self, run: LineRun) -> None:
        try:
            self._results.append(await run.result())
        except asyncio.CancelledError:
            self._results.append(Returned(run.claim, run.claim.attempts))
            raise
        except Exception:
            log.exception("line %d of %s failed", run.claim.number, run.claim.batch.id)
            self._results.append(run.failed())
        if run.wait_s:
            organisation_id = run.claim.batch.organisation_id
            until_s = max(self._paused_until_s.get(organisation_id, 0.0), time.time() + run.wait_s)
            self._paused_until_s[organisation_id] = until_s
        self._woken.set()

    def _owner(self, batch: Batch, now_s: float) -> Caller | None:
        if batch.key_id == LOCAL:
            return LOCAL_CALLER
        return self._keyring.holder(batch.organisation_id, batch.key_id, now_s)
