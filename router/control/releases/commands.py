"""Release commands: each is one transaction, with its audit entry and its event.

Running routers read it within a second, and the one in control carries it out.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.releases import records, writes
from router.control.releases.plan import Progress
from router.control.releases.records import RolloutState
from router.control.releases.states import State
from router.control.releases.writes import bump, is_release, put_split, put_tolerance, set_state, write_event
from router.core.actions import Action
from router.core.manifest import Kind
from router.routing.split import first_split
from router.store.database import read_counters
from router.store.schema import releases, rollouts, splits
from router.tenants.audited import AlreadyThere, PlatformCommands
from router.tenants.records import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from router.control.releases.plan import Plan, Tolerance
    from router.control.releases.records import GoldenPrompt, Release, Rollout
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit, Shadow, Sticky

_LOADED = (State.LOADING, State.WARMING, State.READY, State.DRAINING)


@dataclass(slots=True)
class _Act:
    """One command in its transaction; which release it is about may be found out in it."""

    connection: Connection
    version: int | None


class ReleaseCommands(PlatformCommands):
    _read_action = Action.RELEASE_READ

    @contextmanager
    def _act(self, model: str, version: int | None, what: str, reason: str = "") -> Iterator[_Act]:
        """Commands run one after the other, those of other processes too: `bump` waits for its turn."""
        label = f"release.{what}"
        self._check(Action.RELEASE_WRITE, label, _target(model, version))
        detail = {"reason": reason} if reason else {}
        with self._store.begin() as connection:
            bump(self._store, connection)
            act = _Act(connection, version)
            yield act
            write_event(connection, self._clock(), model, act.version, what, reason)
            self._record(connection, label, _target(model, act.version), detail)

    def next_version(self, model: str) -> int:
        with self.look() as connection:
            return writes.next_version(connection, model)

    def check(self, *, writes: bool) -> None:
        """Raises Forbidden for who may not look at releases, or change them."""
        action = Action.RELEASE_WRITE if writes else Action.RELEASE_READ
        self._check(action, action.label, "")

    def note_addition(self, model: str, version: int | None, detail: dict[str, Any]) -> None:
        """That somebody asked for a release to be added, which takes a while and may fail."""
        self._note("release.ask_to_add", model, version, detail)

    def note_code(self, model: str, version: int | None, address: str) -> None:
        """That somebody allowed what comes from an address to run code."""
        self._note("release.allow_code", model, version, {"source": address})

    def _note(self, label: str, model: str, version: int | None, detail: dict[str, Any]) -> None:
        target = _target(model, version)
        self._check(Action.RELEASE_WRITE, label, target)
        with self._store.begin() as connection:
            self._record(connection, label, target, detail)

    def add(self, manifest: Manifest, notes: str = "") -> Release:
        """What is there already with the same name is never replaced."""
        try:
            with self._act(manifest.model, manifest.version, "add") as act:
                refuse_other_kind(act.connection, manifest)
                if not records.is_there(act.connection, manifest.model, manifest.version):
                    refuse_used_number(act.connection, manifest.model, manifest.version)
                writes.add_release(act.connection, manifest, notes, self._clock())
                return records.find_release(act.connection, manifest.model, manifest.version)
        except sql.exc.IntegrityError:
            raise AlreadyThere(f"{manifest.name} already exists, and releases never change") from None

    def forget(self, model: str, version: int) -> Release:
        """Only what is not loaded and gets no traffic."""
        with self._act(model, version, "remove") as act:
            found = records.find_release(act.connection, model, version)
            split = records.find_split(act.connection, model)
            if split is not None and version in split.versions:
                raise ValueError(f"{model}@{version} is in the traffic split of {model}: change that first")
            if found.wanted or found.state in _LOADED:
                raise ValueError(f"{model}@{version} is {found.state.value}: unload it first")
            _refuse_with_adapters(act.connection, found)
            if found.manifest.is_built_in and found.state is not State.GONE:
                raise ValueError(
                    f"{model}@{version} is built into the stack: it cannot be removed, only unloaded"
                )
            act.connection.execute(sql.delete(releases).where(is_release(model, version)))
            writes.forget_seen(act.connection, found.manifest.name)
        return found

    def load(self, model: str, version: int) -> int:
        """The number of this change: what is `last_seen` from there on was seen after it was asked for."""
        with self._act(model, version, "load") as act:
            self._want(act.connection, model, version)
            return read_counters(act.connection)[writes.COUNTER]

    def unload(self, model: str, version: int, *, withdraw: bool = False) -> None:
        """The only release of a model goes where it does not serve, or to `withdraw` the model with it."""
        with self._act(model, version, "unload") as act:
            connection = act.connection
            found = records.find_release(connection, model, version)
            _refuse_with_adapters(connection, found)
            self._refuse_in_rollout(connection, model, version)
            split = records.find_split(connection, model)
            if split is not None and split.weight_of(version) > 0:
                is_dispensable = withdraw or found.state not in (State.READY, State.DRAINING)
                if split.versions != {version} or not is_dispensable:
                    raise ValueError(
                        f"{model}@{version} gets {split.weight_of(version):.0%} of the requests: promote "
                        "another release or change the split first"
                    )
                connection.execute(sql.delete(splits).where(splits.c.model == model))
            elif split is not None and version in split.versions:
                put_split(self._store, connection, split.without(version))
            values = {"wanted": False}
            connection.execute(sql.update(releases).where(is_release(model, version)).values(values))

    def set_split(
        self, model: str, arms: Sequence[tuple[int, float]], sticky: Sticky | None, shadow: Shadow | None
    ) -> ModelSplit:
        """Sets weights manually. All releases in it must be ready: no request waits for a load."""
        if not arms:
            raise ValueError("a split needs one or more releases")
        parts = [f"{version}={weight:g}" for version, weight in arms]
        parts += [f"sticky by {sticky.value}"] if sticky else []
        parts += [f"shadow {shadow.version}={shadow.share:g}"] if shadow else []
        with self._act(model, None, "split", ", ".join(parts)) as act:
            self._refuse_during_rollout(act.connection, model)
            for version in [version for version, _ in arms] + ([shadow.version] if shadow else []):
                self._require_ready(act.connection, model, version)
            split = records.find_split(act.connection, model) or first_split(model, arms[0][0])
            standby = split.stable if split.stable not in dict(arms) else split.standby
            changed = replace(
                split,
                arms=tuple(arms),
                sticky=sticky or split.sticky,
                shadow=shadow,
                standby=None if standby in dict(arms) else standby,
            )
            put_split(self._store, act.connection, changed)
        return changed

    def tolerance_of(self, model: str) -> Tolerance:
        with self.look() as connection:
            return records.tolerance_of(connection, model)

    def set_tolerance(self, model: str, tolerance: Tolerance) -> Tolerance:
        """For rollouts that begin from now on and do not say otherwise."""
        said = ", ".join(f"{name}={value:g}" for name, value in asdict(tolerance).items())
        with self._act(model, None, "tolerance", said) as act:
            if not records.list_releases(act.connection, model):
                raise NotFound(f"model {model} not found; `inflight release list` shows all models")
            put_tolerance(self._store, act.connection, model, tolerance)
        return tolerance

    def begin_rollout(
        self, model: str, canary: int, plan: Plan, golden: Sequence[GoldenPrompt] = ()
    ) -> Rollout:
        """Its first step begins when the canary is ready; it is loaded where it is not."""
        with self._act(model, canary, "canary", _uses_of_prompts(plan)) as act:
            self._refuse_during_rollout(act.connection, model)
            found = records.find_release(act.connection, model, canary)
            split = records.find_split(act.connection, model)
            if split is None:
                raise ValueError(f"{model} is not served yet: `inflight release promote {model}@{canary}`")
            if split.weight_of(canary) > 0:
                share = f"{split.weight_of(canary):.0%}"
                raise ValueError(f"{model}@{canary} already gets {share} of the requests")
            if sum(weight > 0 for _, weight in split.arms) > 1:
                what_to_do = "promote one of them first: a canary is compared with one release"
                raise ValueError(f"the requests to {model} are split over several releases; {what_to_do}")
            if plan.min_likeness and (split.shadow is None or split.shadow.version != canary):
                raise ValueError(
                    f"answers are compared only for a shadow, and {model}@{canary} is not one: "
                    f"`inflight release split {model} {split.stable}=100% --shadow {canary}=10%`"
                )
            _check_golden(found.manifest.kind, golden)
            self._want(act.connection, model, canary)
            row = {
                "model": model,
                "stable": split.stable,
                "canary": canary,
                "plan": json.dumps(asdict(plan)),
                "golden": json.dumps([asdict(each) for each in golden]),
                "state": RolloutState.RUNNING.value,
                "progress": json.dumps(asdict(Progress(step=-1))),
                "reason": "waiting for the canary to be ready",
                "figures": "{}",
                "began_s": self._clock(),
                "ended_s": None,
            }
            act.connection.execute(sql.insert(rollouts).values(row))
            return self._open_rollout(act.connection, model)

    def pause(self, model: str, paused: bool = True) -> None:
        """A paused rollout keeps its weights, and still rolls back automatically when its canary fails."""
        with self._act(model, None, "pause" if paused else "resume") as act:
            rollout = self._open_rollout(act.connection, model)
            act.version = rollout.canary
            state = RolloutState.PAUSED if paused else RolloutState.RUNNING
            progress = replace(rollout.progress, paused=paused)
            values = {"state": state.value, "progress": json.dumps(asdict(progress))}
            act.connection.execute(sql.update(rollouts).where(rollouts.c.id == rollout.id).values(values))

    def promote(self, model: str, version: int | None = None, reason: str = "by hand") -> int:
        """All requests to one release that is ready; the first of a model is loaded for it."""
        with self._act(model, version, "promote", reason) as act:
            connection = act.connection
            open_ones = records.list_rollouts(connection, model, only_open=True)
            if version is None:
                if not open_ones:
                    raise ValueError(f"{model} has no rollout: name the release, {model}@VERSION")
                version = act.version = open_ones[0].canary
            split = records.find_split(connection, model)
            if split is not None:
                self._require_ready(connection, model, version)
            for rollout in open_ones:
                self._end_rollout(connection, rollout, rollout.canary == version, reason)
            self._want(connection, model, version)
            changed = first_split(model, version) if split is None else split.all_to(version)
            put_split(self._store, connection, changed)
        return version

    def roll_back(self, model: str, reason: str = "by hand") -> int:
        """An open rollout ends with its stable release; without one, the standby takes over again."""
        with self._act(model, None, "rollback", reason) as act:
            connection = act.connection
            open_ones = records.list_rollouts(connection, model, only_open=True)
            split = records.find_split(connection, model)
            if split is None:
                raise ValueError(f"{model} is not served")
            if open_ones:
                target = open_ones[0].stable
                self._end_rollout(connection, open_ones[0], False, reason)
            elif split.standby is not None:
                target = split.standby
                self._require_ready(connection, model, target)
            else:
                raise ValueError(f"{model} has neither a rollout nor a standby release to roll back to")
            act.version = target
            put_split(self._store, connection, split.all_to(target))
        return target

    def _end_rollout(self, connection: Connection, rollout: Rollout, is_promoted: bool, reason: str) -> None:
        """A canary that is rolled back need not stay loaded, unless the split names it."""
        state = RolloutState.PROMOTED if is_promoted else RolloutState.ROLLED_BACK
        values = {"state": state.value, "reason": reason, "ended_s": self._clock()}
        connection.execute(sql.update(rollouts).where(rollouts.c.id == rollout.id).values(values))
        if not is_promoted:
            canary = is_release(rollout.model, rollout.canary)
            connection.execute(sql.update(releases).where(canary).values(wanted=False))

    def _want(self, connection: Connection, model: str, version: int) -> None:
        found = records.find_release(connection, model, version)
        if found.state is State.GONE:
            raise ValueError(f"{model}@{version} is gone: the stack it was built into serves another now")
        connection.execute(sql.update(releases).where(is_release(model, version)).values(wanted=True))
        if found.state is State.FAILED:  # asked again: tried again
            set_state(connection, self._clock(), model, version, State.UNLOADED, "")

    def _require_ready(self, connection: Connection, model: str, version: int) -> None:
        found = records.find_release(connection, model, version)
        if found.state is not State.READY:
            why = f": {found.reason}" if found.reason else ""
            what_to_do = f"first `inflight release load {model}@{version}`"
            raise ValueError(f"{model}@{version} is {found.state.value}{why}; {what_to_do}")

    def _refuse_during_rollout(self, connection: Connection, model: str) -> None:
        for rollout in records.list_rollouts(connection, model, only_open=True):
            raise ValueError(
                f"{model}@{rollout.canary} is being rolled out: promote it or roll it back first"
            )

    def _refuse_in_rollout(self, connection: Connection, model: str, version: int) -> None:
        for rollout in records.list_rollouts(connection, model, only_open=True):
            if version in (rollout.canary, rollout.stable):
                self._refuse_during_rollout(connection, model)

    def _open_rollout(self, connection: Connection, model: str) -> Rollout:
        for rollout in records.list_rollouts(connection, model, only_open=True):
            return rollout
        raise NotFound(f"{model} has no rollout in progress")


def _refuse_with_adapters(connection: Connection, base: Release) -> None:
    """What an adapter is an addition to goes after it."""
    for each in records.list_releases(connection):
        if each.manifest.base == base.manifest.name and (each.wanted or each.state in _LOADED):
            raise ValueError(
                f"{each.manifest.name} is an adapter of {base.manifest.name} and is "
                f"{each.state.value}: unload it first"
            )


def refuse_other_kind(connection: Connection, manifest: Manifest) -> None:
    """All releases of a model can stand in for each other."""
    for other in records.list_releases(connection, manifest.model):
        if other.state is not State.GONE and other.manifest.kind is not manifest.kind:
            raise ValueError(
                f"{manifest.model} is a model for {other.manifest.kind.value}, and this release is one for "
                f"{manifest.kind.value}: give it another name"
            )


def refuse_used_number(connection: Connection, model: str, version: int) -> None:
    """A version number is never reused: logs, metrics and clients' settings name the old release by it."""
    if writes.was_added(connection, model, version):
        raise AlreadyThere(
            f"{model}@{version} existed before and was removed: version numbers are never reused"
        )


def _check_golden(kind: Kind, golden: Sequence[GoldenPrompt]) -> None:
    if golden and kind is not Kind.TEXT:
        raise ValueError(
            f"golden prompts are for models that generate text, and this model is for {kind.value}"
        )


def _uses_of_prompts(plan: Plan) -> str:
    """For the history and the audit log: what people wrote is used once more."""
    per_s = plan.replay_per_s
    return f"replays prompts of the prompt log, up to {per_s:g} per second" if per_s else ""


def _target(model: str, version: int | None) -> str:
    return model if version is None else f"{model}@{version}"
