"""Gives a Triton model another queue delay: its own config with that changed, loaded and read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.json_format import MessageToJson

from router.triton.control import ControlError

if TYPE_CHECKING:
    from router.control.tuning.queue_delay import QueueDelay

# What the model's own files say, kept in the config that it was loaded with: the next router in control knows
# what to restore, and a restarted Triton has neither.
UNTUNED = "inflight_untuned"
_US_PER_MS = 1000


class Control(Protocol):
    """What is used of a TritonControl; all but the first raise ControlError."""

    @property
    def can_control(self) -> bool: ...

    async def config(self, model: str) -> Any:
        """The ModelConfig that it was loaded with."""

    async def load(self, model: str, config_json: str | None = None) -> None: ...

    async def statistics(self, model: str) -> Any:
        """A ModelStatisticsResponse."""


@dataclass(frozen=True, slots=True)
class Queueing:
    """The part of a config that is tuned."""

    delay_us: int
    preferred: tuple[int, ...] = ()
    queue_size: int = 0  # 0: without a bound

    @property
    def delay_ms(self) -> float:
        return self.delay_us / _US_PER_MS


@dataclass(frozen=True, slots=True)
class Batched:
    """A model whose requests Triton gathers; `own` is what its files say."""

    max_batch: int
    queueing: Queueing
    own: Queueing
    is_tuned: bool
    is_on_gpu: bool
    instances: int


def read_batched(config: Any) -> Batched | None:
    """None for a model that gathers nothing, or that answers as often as it likes: it returns at once, and
    what it batches is its own affair."""
    is_decoupled = bool(config.model_transaction_policy.decoupled)
    if not config.HasField("dynamic_batching") or is_decoupled or config.max_batch_size < 2:
        return None
    batching = config.dynamic_batching
    queueing = Queueing(
        int(batching.max_queue_delay_microseconds),
        tuple(batching.preferred_batch_size),
        int(batching.default_queue_policy.max_queue_size),
    )
    own = _own(config)
    groups = config.instance_group
    return Batched(
        int(config.max_batch_size),
        queueing,
        own or queueing,
        own is not None,
        any(group.kind == group.KIND_GPU for group in groups),
        max(1, sum(group.count for group in groups)),
    )


def queueing_for(aim: QueueDelay, batched: Batched) -> Queueing:
    """Without a delay the rest stays: preferred sizes would split batches that form anyway."""
    own = batched.own
    if aim.delay_ms == own.delay_ms:
        return own
    if aim.delay_ms == 0:
        return Queueing(0, own.preferred, own.queue_size)
    preferred = tuple(sorted({min(aim.batch, batched.max_batch), batched.max_batch} - {0}))
    # A bound that somebody has set is only widened: fewer would be refused what they are not refused today.
    queue_size = max(aim.queue_size, own.queue_size)
    return Queueing(round(aim.delay_ms * _US_PER_MS), preferred, queue_size)


async def apply(control: Control, model: str, wanted: Queueing) -> None:
    """Requests in flight end on the old copy. Raises ControlError; then the old one goes on serving."""
    config = await control.config(model)
    batched = read_batched(config)
    if batched is None:
        raise ControlError(f"{model} no longer has dynamic batching")
    if batched.queueing == wanted:
        return
    write_queueing(config, wanted, batched.own)
    await control.load(model, MessageToJson(config, preserving_proto_field_name=True))
    found = read_batched(await control.config(model))
    if found is None or found.queueing != wanted:
        raise ControlError(f"{model} was loaded, but not with the new queue delay")


def write_queueing(config: Any, wanted: Queueing, own: Queueing) -> None:
    """All else stays: `inflight_epoch` too, by which routers know that a process was replaced."""
    batching = config.dynamic_batching
    batching.max_queue_delay_microseconds = wanted.delay_us
    del batching.preferred_batch_size[:]
    batching.preferred_batch_size.extend(wanted.preferred)
    batching.default_queue_policy.max_queue_size = wanted.queue_size
    if wanted == own:
        if UNTUNED in config.parameters:
            del config.parameters[UNTUNED]
    else:
        config.parameters[UNTUNED].string_value = json.dumps(asdict(own))


def _own(config: Any) -> Queueing | None:
    """What was there before it was tuned; None where it was not, or says so in words that nobody knows."""
    if UNTUNED not in config.parameters:
        return None
    try:
        values = json.loads(config.parameters[UNTUNED].string_value)
        preferred = tuple(int(each) for each in values["preferred"])
        return Queueing(int(values["delay_us"]), preferred, int(values["queue_size"]))
    except (ValueError, TypeError, KeyError):
        return None
