"""What this router measures of the arms of rollouts, and the rows that all routers add up."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.control.recorder import Recorder
from router.control.releases.arm_stats import (
    PAST,
    ArmStats,
    Sample,
    merge_stats,
    stats_from_json,
    stats_to_json,
)
from router.control.releases.evidence import Proportion
from router.core.answer_text import is_refusal
from router.core.objective import Objective
from router.core.record import Outcome
from router.store.schema import arm_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from router.control.releases.own_prompt import Answer
    from router.control.releases.replay import ReplayAnswers
    from router.core.answer_text import AnswerTimes
    from router.core.record import Record
    from router.request.answer import Job
    from router.store.database import StoreAccess

_FOLD_AT = 64  # so that no request waits long for what those before it have left to be counted
_FORGET_AFTER_S = 3600.0
# Of a release without a rollout about so many requests are remembered; a failure among them weighs more than
# one of long ago, and more of them would say nothing new.
_MOST_PAST = 2000
NO_OBJECTIVE = Objective("", Tier.STANDARD)


@dataclass(frozen=True, slots=True)
class ArmKey:
    rollout_id: int
    step: int
    version: int


class Arm:
    """One arm in one step, as this router has seen it."""

    def __init__(self) -> None:
        self.stats = ArmStats()
        self.changed_s = 0.0
        self.is_written = True
        self._waiting: list[Sample] = []

    def add(self, sample: Sample, now_s: float) -> None:
        self._waiting.append(sample)
        self.changed_s = now_s
        self.is_written = False
        if len(self._waiting) >= _FOLD_AT:
            self.fold()

    def begin_with(self, stats: ArmStats, now_s: float) -> None:
        self.stats = merge_stats(self.stats, stats)
        self.changed_s = now_s
        self.is_written = False

    def fold(self) -> ArmStats:
        if self._waiting:
            self.stats = self.stats.with_all(self._waiting)
            self._waiting.clear()
        return self.stats


class Past:
    """How often each release of a model failed lately, where no rollout counts it."""

    def __init__(self) -> None:
        self._models: dict[str, dict[int, Proportion]] = {}

    def add(self, model: str, version: int, failed: bool) -> None:
        releases = self._models.setdefault(model, {})
        seen = releases.get(version, Proportion()).with_one(failed)
        if seen.total >= _MOST_PAST:
            seen = Proportion(-(-seen.hits // 2), seen.total // 2)
        releases[version] = seen

    def take(self, model: str) -> dict[int, Proportion]:
        """By version; a rollout counts from here on."""
        return self._models.pop(model, {})


class ArmRecorder(Recorder):
    _what = "the measurements of a rollout"

    def __init__(
        self,
        access: StoreAccess,
        process: str = "",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        objective_of: Callable[[str, Tier], Objective] = Objective,
    ) -> None:
        super().__init__(access, process)
        self._objective_of = objective_of
        self._clock = clock
        # Stretches of time have the same borders in all routers, so they need the time of day.
        self._from_monotonic_s = clock() - monotonic()
        self._arms: dict[ArmKey, Arm] = {}
        self._past = Past()

    @property
    def arms(self) -> Mapping[ArmKey, Arm]:
        return self._arms

    hears_begin = False

    def begun(self, job: Job, record: Record) -> None:
        """Nothing is known of it yet."""

    def ended(self, job: Job, record: Record, cause: BaseException | None) -> None:
        self.closed(record, cause)

    def closed(self, record: Record, cause: BaseException | None) -> None:
        """For each request, when it has ended; `cause` is why it did not finish.

        What was cancelled says nothing about a release, and neither does what its caller did wrong. What the
        release lost has failed, also where another replica or a second run has saved it for the client.
        """
        rollout_id, step = record.rollout
        is_lost = record.lost_attempts > 0
        if record.dispatched_s is None or not (is_lost or _counts(record, cause)):
            return
        failed = is_lost or record.outcome == Outcome.FAILED.value
        version = int(record.model_version)
        if rollout_id is None:
            self._past.add(record.model, version, failed)
            return
        for before, errors in self._past.take(record.model).items():
            self._arm(ArmKey(rollout_id, PAST, before)).begin_with(ArmStats(errors), self._clock())
        objective = self._objective_of(record.model, record.tier)
        sample = sample_of(record, failed, self._from_monotonic_s, objective)
        self._arm(ArmKey(rollout_id, step, version)).add(sample, self._clock())

    def copied(
        self, record: Record, version: int, times: AnswerTimes | None, error: Exception | None
    ) -> None:
        """For each mirrored request whose copy came to an end, and whose client has its answer."""
        rollout_id, step = record.rollout
        if rollout_id is None or (isinstance(error, InflightError) and _is_nobodys(error.kind)):
            return
        original = sample_of(record, False, self._from_monotonic_s)
        sample = copy_sample(original, times, error is not None)
        self._arm(ArmKey(rollout_id, step, version)).add(sample, self._clock())

    def replayed(self, rollout: tuple[int, int], versions: tuple[int, int], answers: ReplayAnswers) -> None:
        """For each recorded prompt that both releases were asked, with the canary's answer first."""
        now_s = self._clock()
        for version, sample in zip(versions, replay_samples(answers, now_s), strict=True):
            self._arm(ArmKey(*rollout, version)).add(sample, now_s)

    def _arm(self, key: ArmKey) -> Arm:
        arm = self._arms.get(key)
        if arm is None:
            arm = self._arms[key] = Arm()
        return arm

    async def write(self) -> None:
        now_s = self._clock()
        changed = {key: arm for key, arm in self._arms.items() if not arm.is_written}
        if changed:
            rows = [self._row(key, arm.fold(), now_s) for key, arm in changed.items()]
            for arm in changed.values():
                arm.is_written = True  # what comes while it is being written is for the next time
            if not await self._commit(lambda connection: self._put(connection, rows)):
                for arm in changed.values():
                    arm.is_written = False
        for key, arm in list(self._arms.items()):
            if arm.is_written and now_s - arm.changed_s > _FORGET_AFTER_S:
                del self._arms[key]

    def _row(self, key: ArmKey, stats: ArmStats, now_s: float) -> dict[str, Any]:
        return {**asdict(key), "process": self.process, "figures": stats_to_json(stats), "at_s": now_s}

    def _put(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            connection.execute(self._access.store.insert_or_update(arm_figures, row))


def _counts(record: Record, cause: BaseException | None) -> bool:
    if record.outcome == Outcome.FAILED.value and isinstance(cause, InflightError):
        return not _is_nobodys(cause.kind)
    return record.outcome != Outcome.CANCELLED.value


def _is_nobodys(kind: ErrorKind) -> bool:
    """A model that Triton does not know is not the caller's fault: the caller named one that is served."""
    return kind is ErrorKind.CANCELLED or (kind.is_callers_fault and kind is not ErrorKind.MODEL_NOT_FOUND)


def sample_of(
    record: Record, failed: bool, from_monotonic_s: float = 0.0, objective: Objective = NO_OBJECTIVE
) -> Sample:
    """Models that make no text have the time of the whole answer in place of that of its first token.

    What gave no text, or none that was looked at, has not refused and has not complied either.
    """
    began_s = record.dispatched_s or record.arrived_s
    at_s = began_s + from_monotonic_s
    if failed or record.received_s is None:
        return Sample(failed, at_s=at_s)
    first_s, tokens = record.first_token_s, record.completion_tokens
    if first_s is None:
        late = _is_late(record.received_s - record.arrived_s, objective.end_to_end_s)
        return Sample(False, record.received_s - began_s, at_s=at_s, late_first=late)
    between_s = _decode_s(record, first_s, record.received_s) / (tokens - 1) if tokens > 1 else None
    refused = is_refusal(record.opening) if record.opening else None
    return Sample(
        False,
        first_s - began_s,
        between_s,
        tokens or None,
        refused,
        at_s,
        max(record.prompt_tokens - record.cached_tokens, 0),
        _is_late(first_s - record.arrived_s, objective.first_token_s),
        _is_late(between_s, objective.inter_token_s),
        record.is_mirrored,
    )


def copy_sample(original: Sample, times: AnswerTimes | None, failed: bool) -> Sample:
    """Of the canary's copy of a request, at the same time as that."""
    copy = Sample(failed, at_s=original.at_s, is_mirrored=True, original=original)
    if failed or times is None:
        return copy
    between_s = times.decode_s / (times.tokens - 1) if times.tokens > 1 else None
    return replace(
        copy,
        first_token_s=times.first_token_s,
        between_tokens_s=between_s,
        tokens=times.tokens or None,
        prompt_tokens=times.prompt_tokens,
    )


def replay_samples(answers: ReplayAnswers, at_s: float) -> tuple[Sample, Sample]:
    """Without times to the first token where one of them had more of the prompt in its cache, and without
    lengths where both were cut short."""
    given = [each for each in answers if each is not None]
    is_even = len({each.cached_tokens for each in given}) == 1
    is_cut = all(each.is_cut for each in given)

    def sample(answer: Answer | None) -> Sample:
        replayed = Sample(answer is None, at_s=at_s, is_mirrored=True, is_replayed=True)
        if answer is None:
            return replayed
        return replace(
            replayed,
            first_token_s=answer.first_token_s if is_even else None,
            between_tokens_s=answer.between_tokens_s,
            tokens=None if is_cut else answer.tokens or None,
            refused=is_refusal(answer.text) if answer.text else None,
        )

    copy, original = map(sample, answers)
    return replace(copy, original=original), original


def _is_late(took_s: float | None, limit_s: float | None) -> bool | None:
    return None if took_s is None or limit_s is None else took_s > limit_s


def _decode_s(record: Record, first_s: float, received_s: float) -> float:
    """By the engine's clock, where it tells: on a busy machine tokens arrive here in bundles, and what lies
    between the bundles says nothing about the release."""
    engine = record.engine
    return received_s - first_s if engine is None else engine.last_token_s - engine.first_token_s


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """What one router has measured of one arm in one step."""

    rollout_id: int
    step: int
    version: int
    process: str
    stats: ArmStats


def read_figures(connection: Connection, rollout_id: int) -> list[ArmFigures]:
    """Of all routers, with the times that comparisons are made by."""
    query = sql.select(arm_figures).where(arm_figures.c.rollout_id == rollout_id)
    return [
        ArmFigures(row.rollout_id, row.step, row.version, row.process, stats_from_json(row.figures))
        for row in connection.execute(query)
    ]
