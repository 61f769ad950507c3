"""The administration of releases over HTTP, for the platform's administrators.

What is answered is what was written: the router in control brings it about, and the others follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from router.admin.bodies import (
    CanaryBody,
    NewestQuery,
    PromoteBody,
    RollBackBody,
    SplitBody,
    ToleranceBody,
)
from router.admin.endpoint import Act, Asked, admin_route, listed
from router.control.releases import records
from router.control.releases.commands import ReleaseCommands
from router.control.releases.plan import NO_PROMPT_LOG, Tolerance
from router.control.releases.records import Release, Rollout
from router.control.releases.shadow_figures import list_shadows
from router.core.actions import Action
from router.core.manifest import MODEL_NAME, read_version
from router.request.routes import Route
from router.routing.split import ModelSplit
from router.store.database import Store
from router.tenants.records import NotFound
from router.tenants.tenancy import Tenancy


@dataclass(frozen=True, slots=True)
class _Act:
    """One act on the releases of the model, or on the one release, that the path names."""

    commands: ReleaseCommands
    store: Store
    asked: Asked
    has_prompt_log: bool

    @property
    def given(self) -> Any:
        return self.asked.given

    @property
    def model(self) -> str:
        model = self.asked.values["model"]
        if not MODEL_NAME.fullmatch(model):
            raise self._not_found("model not found")
        return model

    @property
    def version(self) -> int:
        try:
            return read_version(self.asked.values["version"])
        except ValueError:
            raise self._not_found(f"{self.model} has no release of this number") from None

    def _not_found(self, what: str) -> NotFound:
        with self.commands.look():  # who may not look is told that, whatever the name
            return NotFound(f"{what}; GET /admin/releases lists all of them")

    def show_release(self) -> dict[str, Any]:
        """After a change to it, for which the right to look is not needed."""
        with self.store.read() as connection:
            found = records.find_release(connection, self.model, self.version)
            return _release(found, *_dividing(connection, self.model))

    def show_model(self) -> dict[str, Any]:
        with self.store.read() as connection:
            return _model(connection, self.model)


def _list(act: _Act) -> dict[str, Any]:
    with act.commands.look() as connection:
        splits = records.list_splits(connection)
        open_ones = {each.model: each for each in records.list_rollouts(connection, only_open=True)}
        found = [
            _release(each, splits.get(each.manifest.model), open_ones.get(each.manifest.model))
            for each in records.list_releases(connection)
        ]
    return {"object": "list", "data": found}


def _show_model(act: _Act) -> dict[str, Any]:
    with act.commands.look() as connection:
        return _model(connection, act.model)


def _show_release(act: _Act) -> dict[str, Any]:
    with act.commands.look() as connection:
        found = records.find_release(connection, act.model, act.version)
        shown = _release(found, *_dividing(connection, act.model))
    manifest = found.manifest
    return {
        **shown,
        "digest": found.digest,
        "weights_sha256": manifest.weights_sha256,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "triton_models": manifest.members,
        # Where things lie on the server's disk is nobody's business here.
        "parameters": {name: value for name, value in manifest.parameters.items() if "/" not in value},
        "needs": asdict(manifest.needs),
        "files": len(manifest.files),
        "file_bytes": sum(each.bytes for each in manifest.files),
        "profile": found.profile,
    }


def _load(act: _Act) -> dict[str, Any]:
    act.commands.load(act.model, act.version)
    return act.show_release()


def _unload(act: _Act) -> dict[str, Any]:
    act.commands.unload(act.model, act.version)
    return act.show_release()


def _set_split(act: _Act) -> dict[str, Any]:
    body: SplitBody = act.given
    arms = [(arm.version, arm.weight) for arm in body.arms]
    shadow = None if body.shadow is None else body.shadow.value()
    return _split(act.commands.set_split(act.model, arms, body.sticky, shadow))


def _begin_rollout(act: _Act) -> dict[str, Any]:
    body: CanaryBody = act.given
    golden = [each.value() for each in body.golden]
    plan = body.plan(act.commands.tolerance_of(act.model))
    if plan.replay_per_s and not act.has_prompt_log:
        raise ValueError(f"replay_per_s: {NO_PROMPT_LOG}")
    return _rollout(act.commands.begin_rollout(act.model, body.version, plan, golden))


def _show_tolerance(act: _Act) -> dict[str, Any]:
    return {"object": "tolerance", **asdict(act.commands.tolerance_of(act.model))}


def _set_tolerance(act: _Act) -> dict[str, Any]:
    """As a whole: what is left out is as for every model."""
    body: ToleranceBody = act.given
    return {"object": "tolerance", **asdict(act.commands.set_tolerance(act.model, body.value(Tolerance())))}


def _promote(act: _Act) -> dict[str, Any]:
    body: PromoteBody = act.given
    act.commands.promote(act.model, body.version, body.reason)
    return act.show_model()


def _roll_back(act: _Act) -> dict[str, Any]:
    act.commands.roll_back(act.model, act.given.reason)
    return act.show_model()


def _pause(act: _Act, paused: bool) -> dict[str, Any]:
    act.commands.pause(act.model, paused)
    return act.show_model()


def _rollouts(act: _Act) -> dict[str, Any]:
    with act.commands.look() as connection:
        found = records.list_rollouts(connection, act.model, newest=act.given.limit)
        if not found:
            _require(connection, act.model)
    return {"object": "list", "data": [_rollout(each) for each in found]}


def _events(act: _Act) -> dict[str, Any]:
    with act.commands.look() as connection:
        found = records.list_events(connection, act.model, newest=act.given.limit)
        if not found:
            _require(connection, act.model)
    return listed(found)


def _require(connection: Connection, model: str) -> list[Release]:
    found = records.list_releases(connection, model)
    if not found:
        raise NotFound(f"the model {model} has no releases; GET /admin/releases lists all of them")
    return found


def _dividing(connection: Connection, model: str) -> tuple[ModelSplit | None, Rollout | None]:
    """How the requests to a model are divided, and what may change that."""
    open_ones = records.list_rollouts(connection, model, only_open=True)
    return records.find_split(connection, model), open_ones[0] if open_ones else None


def _model(connection: Connection, model: str) -> dict[str, Any]:
    found = _require(connection, model)
    split, rollout = _dividing(connection, model)
    return {
        "object": "model.releases",
        "model": model,
        "kind": found[0].manifest.kind.value,
        "split": None if split is None else _split(split),
        "rollout": None if rollout is None else _rollout(rollout),
        "shadow_figures": [
            {"shadow": each.shadow, "version": each.version, **asdict(each.sums)}
            for each in list_shadows(connection, model)
        ],
        "releases": [_release(each, split, rollout) for each in found],
    }


def _release(found: Release, split: ModelSplit | None, rollout: Rollout | None) -> dict[str, Any]:
    manifest = found.manifest
    role = "" if split is None else split.role_of(manifest.version)
    if rollout is not None and rollout.canary == manifest.version:
        role = "canary"  # before its first step the split does not know of it
    return {
        "object": "release",
        "release": manifest.name,
        "model": manifest.model,
        "version": manifest.version,
        "kind": manifest.kind.value,
        "built_in": manifest.is_built_in,
        "state": found.state.value,
        "replicas": found.replicas,
        "replicas_up": found.replicas_up,
        "reason": found.reason,
        "since_s": found.since_s,
        "wanted": found.wanted,
        "share": 0.0 if split is None else split.weight_of(manifest.version),
        "role": role,
        "added_s": found.added_s,
        "notes": found.notes,
    }


def _split(split: ModelSplit) -> dict[str, Any]:
    return {
        "object": "split",
        "model": split.model,
        "arms": [{"version": version, "weight": weight} for version, weight in split.arms],
        "sticky": split.sticky.value,
        "shadow": None if split.shadow is None else asdict(split.shadow),
        "stable": split.stable,
        "standby": split.standby,
        "rollout_id": split.rollout_id,
    }


def _rollout(rollout: Rollout) -> dict[str, Any]:
    shown = asdict(rollout)
    return {"object": "rollout", **shown, "state": rollout.state.value}


def routes(tenancy: Tenancy, *, has_prompt_log: bool = False) -> list[Route]:
    store = tenancy.store
    read = partial(admin_route, tenancy, Action.RELEASE_READ)
    write = partial(admin_route, tenancy, Action.RELEASE_WRITE)

    def on(do: Callable[[_Act], Any]) -> Act:
        return lambda asked: do(_Act(ReleaseCommands(store, asked.actor), store, asked, has_prompt_log))

    model = "/admin/releases/{model}"
    release = f"{model}/versions/{{version}}"
    return [
        read("GET", "/admin/releases", "All releases, with their state, share and role", on(_list)),
        read("GET", model, "The releases of a model, its split and its rollout", on(_show_model)),
        read("GET", release, "One release and its contents", on(_show_release)),
        write("POST", f"{release}/load", "Load a release", on(_load), status=200),
        write("POST", f"{release}/unload", "Unload a release that gets no requests", on(_unload),
              status=200),
        write("PUT", f"{model}/split", "Set the traffic split of a model by hand", on(_set_split), SplitBody),
        write("POST", f"{model}/canary", "Roll a release out step by step", on(_begin_rollout), CanaryBody),
        read("GET", f"{model}/tolerance", "The tolerances for canaries of a model", on(_show_tolerance)),
        write("PUT", f"{model}/tolerance", "Set the tolerances for canaries of a model",
              on(_set_tolerance), ToleranceBody),
        write("POST", f"{model}/promote", "Send all requests to one release", on(_promote), PromoteBody,
              status=200),
        write("POST", f"{model}/rollback", "Roll back to the stable release, or to the standby",
              on(_roll_back), RollBackBody, status=200),
        write("POST", f"{model}/pause", "Pause a rollout at its step", on(partial(_pause, paused=True)),
              status=200),
        write("POST", f"{model}/resume", "Resume a rollout", on(partial(_pause, paused=False)),
              status=200),
        read("GET", f"{model}/rollouts", "The rollouts of a model, newest first", on(_rollouts),
              NewestQuery),
        read("GET", f"{model}/events", "The events of a model's releases, newest first",
              on(_events), NewestQuery),
    ]  # fmt: skip
