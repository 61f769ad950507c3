"""The models that Triton's clients may name, and a request for one of them, understood."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import CONTRACTS
from router.identity import check_model_allowed
from router.kserve.parameters import Parameters, read_parameters
from router.kserve.tensors import Sent, Values, read_inputs, refuse, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from router.admission import Need
    from router.kserve.answers import Answer
    from router.kserve.tensors import Tensors
    from router.metrics import Metrics
    from router.record import Record
    from router.tenancy.keyring import Caller
    from router.tenancy.model import Scope
    from router.ticket import Ticket

VERSION = "1"
_MAX_ID_CHARS = 256


class Job(Protocol):
    """One request to a model, about to run."""

    need: Need

    async def check(self) -> None:
        """Raises where a rule of the operator forbids it."""

    async def run(self, ticket: Ticket, metrics: Metrics, take: Callable[[Answer], Awaitable[None]]) -> None:
        """Gives each answer to `take`, the final one too. Raises InflightError when the model fails."""

    async def settle(self) -> None:
        """Returns when the model is done with the request, however `run` ended."""


class Offer(Protocol):
    """One served model: `name` is the one of GET /v1/models, `triton_name` what Triton calls it."""

    @property
    def name(self) -> str: ...
    @property
    def triton_name(self) -> str: ...
    @property
    def inputs(self) -> Tensors: ...
    @property
    def outputs(self) -> Tensors: ...
    @property
    def platform(self) -> str: ...
    @property
    def scope(self) -> Scope:
        """What a key needs for it."""

    @property
    def is_decoupled(self) -> bool:
        """Whether one request may have several answers."""

    async def ready(self) -> bool: ...

    def job(self, asked: Asked, record: Record, whole: bool) -> Job:
        """Checks the rest of a request; `whole`: all of its answer is wanted at once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose every part is known and allowed; `name` and `client_id` are for the answer alone."""

    offer: Offer
    name: str
    client_id: str
    values: Values
    outputs: frozenset[str]
    parameters: Parameters


class Offers:
    """All models by their own names, and by Triton's where that names only one."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._own = {offer.name: offer for offer in offers}
        counts = Counter(offer.triton_name for offer in self._own.values())
        aliases = {o.triton_name: o for o in self._own.values() if counts[o.triton_name] == 1}
        self._all = {**aliases, **self._own}

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._own.values())

    def for_caller(self, caller: Caller) -> list[Offer]:
        allowed = caller.key.models
        return [
            offer
            for offer in self._own.values()
            if (allowed is None or offer.name in allowed) and offer.scope in caller.key.scopes
        ]

    def find(self, name: str, version: str, caller: Caller) -> Offer:
        offer = self._all.get(name)
        if offer is None:
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, self._why_not(name), "model")
        check_model_allowed(caller, offer.name)
        if offer.scope not in caller.key.scopes:
            raise InflightError(ErrorKind.FORBIDDEN, f"this key lacks the scope {offer.scope.value}")
        if version not in ("", VERSION):
            message = f"the model '{name}' has no version '{shown(version)}'; it has {VERSION}"
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")
        return offer

    def _why_not(self, name: str) -> str:
        allowed = f"there are {', '.join(self._own)}"
        if name in CONTRACTS and name not in ("ensemble", "embeddings"):
            return f"the model '{name}' is a step inside others and cannot be called by itself; {allowed}"
        return f"the model '{shown(name)}' does not exist; {allowed}"

    def understand(
        self,
        caller: Caller,
        name: str,
        version: str,
        client_id: str,
        inputs: Sequence[Sent],
        outputs: Sequence[str],
        parameters: Mapping[str, Any],
    ) -> Asked:
        offer = self.find(name, version, caller)
        if len(client_id) > _MAX_ID_CHARS:
            raise refuse(f"the request's id has {len(client_id)} characters; allowed: up to {_MAX_ID_CHARS}")
        read = read_parameters(parameters)
        asked = _read_outputs(offer.outputs, outputs)
        return Asked(offer, name, client_id, read_inputs(offer.inputs, inputs), asked, read)


def _read_outputs(known: Tensors, names: Sequence[str]) -> frozenset[str]:
    for name in names[: len(known) + 1]:
        if name not in known:
            raise refuse(f"there is no output '{shown(name)}'; allowed are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise refuse("an output is asked for twice")
    return frozenset(names)
