"""The models a client may name, their objectives, and the release of each that answers a request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import ServedEmbedder
from router.core.manifest import split_name
from router.core.objective import Objective
from router.core.tenant import Scope
from router.routing.chat_template import ChatTemplate
from router.routing.checkpoint import CONTEXT_TOKENS, SamplingDefaults
from router.routing.split import Asking, ModelSplit, Split, choose_version, is_shadowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from python_backend.wire.tensors import Tensor
    from python_backend.wire.tiers import Tier
    from router.core.generation import Pipeline, RawGeneration
    from router.core.images import Vision
    from router.core.record import Record
    from router.core.tenant import Caller


class Served(Protocol):
    """One release of a model, as requests are served by it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def created_s(self) -> int: ...
    @property
    def triton_name(self) -> str:
        """What Triton calls the model that requests go to."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """One model: its loaded releases, all of one kind, and how requests are split over them.

    `is_main`: the router is not ready without it; the others may fail on their own.
    """

    name: str
    releases: Mapping[int, Served]
    split: ModelSplit
    is_main: bool = True
    divided: Split = field(init=False, repr=False)  # made once: every request asks it

    def __post_init__(self) -> None:
        object.__setattr__(self, "divided", self.split.split())

    @property
    def stable(self) -> Served | None:
        """What stands for the model where no request is to be answered; None where nothing is loaded.

        Where the stable release is not loaded it is the one before, or else any.
        """
        for version in (self.split.stable, self.split.standby):
            if version is not None and version in self.releases:
                return self.releases[version]
        return next(iter(self.releases.values()), None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The models by name, and the objectives that are set by model and tier."""

    lineups: Mapping[str, Lineup] = field(default_factory=dict)
    objectives: Mapping[tuple[str, Tier], Objective] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def _no_objective(model: str, tier: Tier) -> Objective:
    return Objective(model, tier)


class Published:
    """The current snapshot: control publishes the next one, and a request reads one for all it decides."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.current = snapshot or Snapshot()

    def publish(self, snapshot: Snapshot) -> None:
        self.current = snapshot

    def objective_of(self, model: str, tier: Tier) -> Objective:
        """An empty one where none is set."""
        found = self.current.objectives.get((model, tier))
        return _no_objective(model, tier) if found is None else found


_ALONE = "alone"  # the salt of a split that has nothing to divide


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A release of a model that generates text."""

    name: str
    pipeline: Pipeline
    template: ChatTemplate | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    context_tokens: int = CONTEXT_TOKENS
    checkpoint_dir: Path | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: int = 1
    triton_name: str = "ensemble"
    parent: str | None = None  # of an adapter: the model that it is an addition to

    @property
    def vision(self) -> Vision | None:
        """What it takes of images; None where it reads text alone, or its template has no place for any."""
        return self.pipeline.vision if self.template is not None and self.template.sees else None

    async def ready(self) -> bool:
        return await self.pipeline.ready()


class TensorPort(Protocol):
    """The model itself; a request names no model, which is the port's to fill in."""

    async def infer(
        self, request: Any, timeout_s: float, on_lost: Callable[[int], None] | None = None
    ) -> Any:
        """One request, one response. Raises InflightError; a cancelled call leaves nothing behind."""

    def stream(self, request: Any) -> RawGeneration:
        """One request, any number of responses; starts nothing until the first is asked for."""

    async def ready(self) -> bool:
        """Whether a request sent now would be served."""


class TensorContract(NamedTuple):
    """What a config says to clients; dims are without the rows that a `max_batch_size` above 0 puts first."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    max_batch_size: int
    is_decoupled: bool


@dataclass(frozen=True, slots=True)
class ServedTensors:
    """A release of a model that takes and gives the tensors its config.pbtxt names, whatever they mean."""

    name: str
    tensors: TensorPort
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    max_batch_size: int = 0
    is_decoupled: bool = False
    version: int = 1
    triton_name: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))

    async def ready(self) -> bool:
        return await self.tensors.ready()


Kind = TypeVar("Kind", bound=Served)


def lineup_of(served: Served) -> Lineup:
    """A model with one release, which gets everything."""
    split = ModelSplit(served.name, ((served.version, 1.0),), _ALONE)
    return Lineup(served.name, {served.version: served}, split, isinstance(served, ServedModel))


class Registry:
    """The models of the current snapshot; a name that is not in it is not found, and goes no further.

    A request sees the releases and the split of one moment: each method reads the snapshot once. The name
    of a cascade is found as the last of its models, by whoever does not try the others first.
    """

    def __init__(
        self,
        models: Iterable[ServedModel] = (),
        embedders: Iterable[ServedEmbedder] = (),
        published: Published | None = None,
        cascades: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        served: list[Served] = [*models, *embedders]
        lineups = {each.name: lineup_of(each) for each in served}
        self.published = published or Published(Snapshot(lineups))
        self._cascades = cascades or {}

    def publish(self, lineups: Mapping[str, Lineup]) -> None:
        self.published.publish(replace(self.published.current, lineups=lineups))

    def find(self, name: str, record: Record | None = None) -> ServedModel:
        """One that generates text."""
        served = self.find_any(name, record)
        if isinstance(served, ServedModel):
            return served
        if isinstance(served, ServedEmbedder):
            makes = "generates none" if served.limits.is_reranker else "no text"
            what = f"{_what_it_does(served)} and {makes}; use {_its_door(served)}"
        else:
            what = "takes tensors and generates no text; use /v2/models"
        raise InflightError(ErrorKind.INVALID_REQUEST, f"The model '{served.name}' {what}", "model")

    def find_embedder(self, name: str, record: Record | None = None) -> ServedEmbedder:
        served = self.find_any(name, record)
        if isinstance(served, ServedEmbedder) and not served.limits.is_reranker:
            return served
        known = [other.name for other in self.embedders if not other.limits.is_reranker]
        raise _not_for(served, "makes no embeddings", known, "no embedding model is served here")

    def find_scorer(self, name: str, record: Record | None = None) -> ServedEmbedder:
        """A reranker, or an embedder: its vectors can be compared."""
        served = self.find_any(name, record)
        if isinstance(served, ServedEmbedder):
            return served
        known = [other.name for other in sorted(self.embedders, key=lambda each: not each.limits.is_reranker)]
        raise _not_for(served, "does not score texts", known, "no model that does is served here")

    def find_any(self, name: str, record: Record | None = None) -> Served:
        """One of any kind; its release and shadow are chosen for the request of `record`, and noted there."""
        lineups = self.published.current.lineups
        if name in self._cascades:
            name = self._cascades[name][-1]
        model, pinned = (name, None) if name in lineups else _read_name(name)
        if pinned is None and record is not None and record.pinned_release:
            _, pinned = _read_name(f"{model}@{record.pinned_release}")
        lineup = lineups.get(model)
        if lineup is None:
            raise _unknown(name)
        if not lineup.releases:
            raise InflightError(ErrorKind.OVERLOADED, f"no release of the model '{model}' is loaded")
        if pinned is not None:
            if record is not None and not record.is_release_given:
                _check_pin(lineup, pinned, record.caller)
            served = lineup.releases.get(pinned)
        else:
            arms = lineup.split.arms
            if len(arms) == 1:
                served = lineup.releases.get(arms[0][0])
            else:
                served = None if record is None else self._divided(lineup, record)
            served = served or lineup.stable
        if served is None:
            there = ", ".join(f"{model}@{version}" for version in sorted(lineup.releases))
            message = f"The release '{model}@{pinned}' is not served; there are {there}"
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")
        if record is not None:
            record.model_version = str(served.version)
            split, shadow = lineup.split, lineup.split.shadow
            record.rollout = (split.rollout_id, split.step) if pinned is None else (None, 0)
            mirror = None if split.rollout_id is None else split.mirror
            record.shadow, record.is_mirrored = None, False
            if shadow is not None and is_shadowed(shadow, split.salt, record.request_id, served.version):
                record.shadow = shadow.version
            elif mirror is not None and mirror != served.version and pinned is None:
                record.shadow, record.is_mirrored = mirror, True
        return served

    def offered(self) -> Iterator[tuple[set[str], Served]]:
        """What a client may name, and the models that it takes a right to."""
        lineups = self.lineups
        for name, lineup in lineups.items():
            if lineup.stable is not None:
                yield {name}, lineup.stable
        for name, models in self._cascades.items():
            last = lineups[models[-1]].stable if models[-1] in lineups else None
            if isinstance(last, ServedModel):
                yield set(models), replace(last, name=name)

    def shadow_of(self, record: Record) -> Served | None:
        """The release that is to get this request too, without the client's knowing, if it is still there."""
        lineup = self.lineups.get(record.model)
        return None if lineup is None or record.shadow is None else lineup.releases.get(record.shadow)

    def serves(self, model: str, release: str) -> bool:
        """Whether requests are sent to this release, or may be."""
        lineup = self.lineups.get(model)
        return lineup is not None and any(str(version) == release for version in lineup.releases)

    def lineup(self, name: str) -> Lineup | None:
        return self.lineups.get(name)

    @property
    def lineups(self) -> Mapping[str, Lineup]:
        return self.published.current.lineups

    @property
    def embedders(self) -> tuple[ServedEmbedder, ...]:
        return self.of(ServedEmbedder)

    def of(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Each model of a kind, by its stable release."""
        stable = (lineup.stable for lineup in self.lineups.values())
        return tuple(served for served in stable if isinstance(served, kind))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.of(ServedModel))

    def _divided(self, lineup: Lineup, record: Record) -> Served | None:
        split = lineup.split
        asking = Asking(record.request_id, record.tenant, record.user, record.conversation)
        version = choose_version(lineup.divided, split.sticky, asking, lineup.releases.keys())
        return None if version is None else lineup.releases[version]


def _what_it_does(served: ServedEmbedder) -> str:
    return "scores texts" if served.limits.is_reranker else "makes embeddings"


def _its_door(served: ServedEmbedder) -> str:
    return "/v1/rerank" if served.limits.is_reranker else "/v1/embeddings"


def _not_for(served: Served, what: str, known: list[str], none: str) -> InflightError:
    advice = f"use {' or '.join(map(repr, known))} instead" if known else none
    if isinstance(served, ServedModel):
        what = f"generates text, by /v1/chat/completions or /v1/completions, and {what}"
    elif isinstance(served, ServedEmbedder):
        what = f"{_what_it_does(served)}, by {_its_door(served)}, and {what}"
    return InflightError(ErrorKind.INVALID_REQUEST, f"The model '{served.name}' {what}; {advice}", "model")


def _check_pin(lineup: Lineup, pinned: int, caller: Caller) -> None:
    """The stable release is everybody's; to say whether another one is there is to say too much."""
    stable = lineup.stable
    if (stable is None or pinned != stable.version) and Scope.RELEASES_PIN not in caller.key.scopes:
        needed = f"this key lacks the scope {Scope.RELEASES_PIN.value}"
        message = (
            f"{needed}, which is needed to choose a release of '{lineup.name}' other than the stable one"
        )
        raise InflightError(ErrorKind.FORBIDDEN, message, "model")


def _read_name(name: str) -> tuple[str, int | None]:
    try:
        return split_name(name)
    except ValueError:
        raise _unknown(name) from None


def _unknown(name: str) -> InflightError:
    shown = name if name.isprintable() and len(name) <= 64 else "that name"
    message = f"The model '{shown}' does not exist; GET /v1/models lists all models"
    return InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")
