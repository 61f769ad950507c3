"""The models that Triton's clients may name, and a request for one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire.ensemble_steps import STEPS, Step
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import CONTRACTS
from router.core.manifest import entry_name, member_name
from router.core.tenant import Caller, Scope
from router.kserve.parameters import Parameters, read_parameters
from router.kserve.tensors import (
    MAX_ROWS,
    RawTensors,
    Sent,
    Tensors,
    Values,
    read_inputs,
    read_tensors,
    refuse,
    shown,
)
from router.request.identity import check_model_allowed, check_scope
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from router.core.record import Record
    from router.kserve.answers import Answer
    from router.request.answer import Job
    from router.routing.models import Lineup, Registry, Served

_MAX_ID_CHARS = 256
_LLMAPI = "llmapi"
STEP_VERSION = "1"  # of each model inside another one


class Delivery(Protocol):
    """The way back to one client."""

    async def take(self, answer: Answer) -> None:
        """One answer of possibly many, until the final one; waits while the client is slow to read."""

    def fail(self, error: Exception) -> None:
        """There will be no complete answer; does nothing after the final one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One release of a model, as Triton's clients see it."""

    served: Served
    inputs: Tensors
    outputs: Tensors
    max_batch_size: int  # the most rows of a request; 0: shapes have no rows before a tensor's own dims
    is_decoupled: bool  # whether one request may have several answers
    job: Callable[[Asked, Record, bool, Delivery], Job]  # `whole`: all of its answer is wanted at once
    scope: Scope = Scope.INFERENCE  # what a key needs for it
    platform: str = ""
    steps: Mapping[str, Step] = field(default_factory=dict)  # of a language model, by Triton's names of them
    has_own_contract: bool = False  # by the model's config: its inputs are sent on as bytes

    @property
    def is_language_model(self) -> bool:
        return isinstance(self.served, ServedModel)


@lru_cache(maxsize=256)
def steps_of(model: str, version: int, triton_name: str) -> Mapping[str, Step]:
    """Those inside an added release are called after it."""
    is_added = triton_name == entry_name(model, version)
    return {member_name(model, version, step.model) if is_added else step.model: step for step in STEPS}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose every part is known and allowed; `name` and `client_id` are for the answer alone."""

    offer: Offer
    name: str
    client_id: str
    values: Values
    outputs: frozenset[str]
    parameters: Parameters
    tensors: RawTensors = field(default_factory=dict)

    @property
    def version(self) -> str:
        return str(self.offer.served.version)

    @property
    def elements(self) -> int:
        """Of all inputs that were read as values."""
        return sum(len(value.elements) for value in self.values.values())


class Offers:
    """The registry's models by their own names, by model@version, and by Triton's where that names only one.

    Behind a name, `.llmapi` asks for a language model by the contract of NVIDIA's LLM API model; alone,
    `llmapi` is that of the one that is called `ensemble` otherwise. Looked up for each request: releases come
    and go while the router runs.
    """

    def __init__(
        self,
        registry: Registry,
        make: Callable[[Served], Offer],
        make_llmapi: Callable[[ServedModel], Offer],
    ) -> None:
        self._registry = registry
        self._make = make
        self._make_llmapi = make_llmapi

    def for_caller(self, caller: Caller) -> list[Offer]:
        """Every release that the caller may ask."""
        allowed = caller.key.models
        lineups = [
            each for each in self._registry.lineups.values() if allowed is None or each.name in allowed
        ]
        found = [offer for lineup in lineups for offer in self._releases(lineup)]
        return [offer for offer in found if offer.scope in caller.key.scopes]

    def choose(self, name: str, version: str, record: Record) -> Offer:
        """The release that answers this request; it is noted in the record."""
        return self.find(name, version, record.caller, record)

    def find(self, name: str, version: str, caller: Caller, record: Record | None = None) -> Offer:
        """The release of that version, or the one that stands for its model."""
        model = name.partition("@")[0]
        lineup = self._registry.lineup(model) or self._by_triton_name(model)
        if lineup is None and (plain := _without_llmapi(name)):
            return self._by_llmapi(self.find(plain, version, caller, record), plain)
        if lineup is None:
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, self._why_not(name, caller), "model")
        check_model_allowed(caller, lineup.name)
        pinned = _pinned(lineup, name, version) if lineup.releases else ""
        chosen = f"{lineup.name}@{pinned}" if pinned else lineup.name
        offer = self._make(self._registry.find_any(chosen, record))
        check_scope(caller, offer.scope)
        return offer

    def find_all(self, name: str, version: str, caller: Caller) -> list[Offer]:
        """The release of that version, or all of its model."""
        found = self.find(name, version, caller)
        if version or "@" in name:
            return [found]
        lineup = self._registry.lineup(found.served.name)
        return [found] if lineup is None else self._releases(lineup)

    def find_step(self, name: str, version: str, caller: Caller) -> tuple[Offer, Step] | None:
        """What is inside a language model is described, and cannot be called by itself."""
        if version in ("", STEP_VERSION) and self._registry.lineup(name) is None:
            for offer in self.for_caller(caller):
                if name in offer.steps:
                    return offer, offer.steps[name]
        return None

    def alias(self, offer: Offer) -> str:
        """Triton's own name of its model, where that names only one; otherwise empty."""
        lineup = self._registry.lineup(offer.served.name)
        for served in () if lineup is None else lineup.releases.values():
            name = served.triton_name
            if self._registry.lineup(name) is None and self._by_triton_name(name) is lineup:
                return name
        return ""

    def versions(self, offer: Offer) -> list[str]:
        """Of all releases of its model."""
        lineup = self._registry.lineup(offer.served.name)
        return [] if lineup is None else _versions(lineup)

    def _releases(self, lineup: Lineup) -> list[Offer]:
        return [self._make(lineup.releases[version]) for version in sorted(lineup.releases)]

    def _by_triton_name(self, name: str) -> Lineup | None:
        """What Triton calls a model that a stack brings with it stands for that model, and pins nothing."""
        found = [
            lineup
            for lineup in self._registry.lineups.values()
            if any(
                served.triton_name == name != entry_name(lineup.name, version)
                for version, served in lineup.releases.items()
            )
        ]
        return found[0] if len(found) == 1 else None

    def _by_llmapi(self, found: Offer, name: str) -> Offer:
        if not isinstance(found.served, ServedModel):
            raise refuse(f"the model '{shown(name)}' is not a language model", "model")
        return self._make_llmapi(found.served)

    def _why_not(self, name: str, caller: Caller) -> str:
        models = caller.key.models
        names = [each for each in self._registry.lineups if models is None or each in models]
        allowed = f"there are {', '.join(names)}"
        if name in CONTRACTS and name not in ("ensemble", "embeddings"):
            return f"the model '{name}' is a step of other models and cannot be called directly; {allowed}"
        return f"the model '{shown(name)}' does not exist; {allowed}"


def _without_llmapi(name: str) -> str:
    """What it names, where it asks for the LLM API's contract."""
    if name == _LLMAPI:
        return "ensemble"
    return name.removesuffix(f".{_LLMAPI}") if name.endswith(f".{_LLMAPI}") else ""


def _versions(lineup: Lineup) -> list[str]:
    return [str(version) for version in sorted(lineup.releases)]


def _pinned(lineup: Lineup, name: str, version: str) -> str:
    """The version that the request or the name in it wants; empty where that is left to the split."""
    _, at, of_name = name.partition("@")
    if not at and not version:
        return ""
    versions = _versions(lineup)
    if at:
        _check_version(name, of_name, versions)
        versions = [of_name]
    if version:
        _check_version(name, version, versions)
    return version or of_name


def _check_version(name: str, version: str, versions: list[str]) -> None:
    if version not in versions:
        message = f"the model '{shown(name)}' has no version '{shown(version)}'; it has {', '.join(versions)}"
        raise InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")


def understand(
    offer: Offer,
    name: str,
    client_id: str,
    inputs: Sequence[Sent],
    outputs: Sequence[str],
    parameters: Mapping[str, Any],
) -> Asked:
    if len(client_id) > _MAX_ID_CHARS:
        raise refuse(f"the request's id has {len(client_id)} characters; allowed: up to {_MAX_ID_CHARS}")
    read = read_parameters(parameters)
    asked = _read_outputs(offer.outputs, outputs)
    if read.to_model and not offer.is_language_model:
        parameter = next(iter(read.to_model))
        raise refuse(f"parameter '{parameter}' is for language models", parameter)
    if offer.has_own_contract:
        tensors = read_tensors(offer.inputs, offer.max_batch_size, inputs)
        return Asked(offer, name, client_id, {}, asked, read, tensors)
    values = read_inputs(offer.inputs, inputs, MAX_ROWS if offer.max_batch_size else 0)
    return Asked(offer, name, client_id, values, asked, read)


def _read_outputs(known: Tensors, names: Sequence[str]) -> frozenset[str]:
    for name in names[: len(known) + 1]:
        if name not in known:
            raise refuse(f"output '{shown(name)}' does not exist; allowed are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise refuse("an output is requested twice")
    return frozenset(names)
